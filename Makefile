# make test   everything that must hold before a change is taken; installs what it needs
# make soak   the long forms: full counts, all seeds (set SOAK_TIMEOUT, default 8h)
.PHONY: fsdpbench faultbench masterkills masterdies secure gpu-kit quick measure churn soak-plugins wan-topology wan-test ptx help test gates soak vet fmt bench conformance wan wan-flows libpccl python pytorch torchft wheel

help:
	@echo "test         all gates and tests (installs what the tests need)"
	@echo "quick        before each commit: gates for this system and quick tests, under three minutes"
	@echo "gates        the fast part: formatting, vet, staticcheck, architecture, conformance"
	@echo "soak         the long forms of the tests"
	@echo "secure       the tests with processes once more, with every connection in TLS"
	@echo "churn        kills, stops and cuts off trainers of a run for HOURS=8, and writes docs/churn.md"
	@echo "soak-plugins kills plugins a hundred times during runs; prints how often, and what it cost (a minute)"
	@echo "masterkills  kills the master of runs 1,000 times; prints how long their calls paused (ten minutes)"
	@echo "masterdies   100,000 simulated runs whose masters die, stop or are cut off in every phase; prints the table (two minutes), then 100,000 of three masters"
	@echo "vet          go vet for every supported system and architecture"
	@echo "fmt          format all Go files"
	@echo "bench        kernels, then collectives beside PCCL, Gloo and bare TCP (installs PyTorch once)"
	@echo "wan          all-reduces beside PCCL, Gloo and plain TCP over emulated wide-area networks; writes docs/internet.md"
	@echo "             (Linux, root; up to six minutes for most of the matches, on an idle machine; ONLY=lossy/ plays a part anew and keeps the rest)"
	@echo "wan-test     the networks that WAN measurements run in, tested (Linux, root)"
	@echo "wan-flows    what several connections per link bring (Linux, root; about five minutes)"
	@echo "measure      runs what measured rows of the conformance table name, checks bars, writes the figures (ONLY=expression)"
	@echo "libpccl      the C library libpccl.so, a replacement for that of PCCL 1.0.0"
	@echo "python       the tests of the Python package, with PyTorch"
	@echo "torchft      torchft's own tests, of its newest package, over our process group (behind make python)"
	@echo "faultbench   what a killed rank, a stopped one and abort() cost PyTorch, beside Gloo (behind make python; five minutes)"
	@echo "             WRITE=README.md puts the table there, on an idle machine"
	@echo "fsdpbench    a training step under FSDP2 over gopccl, by one over Gloo, in turns (behind make python; a minute)"
	@echo "wheel        the Python package as a manylinux wheel in dist/"
	@echo "wan-topology what the order of the ring is worth, in network namespaces (root)"
	@echo "ptx          write the PTX of the CUDA kernels, and assemble it for all targets"
	@echo "gpu-kit      a folder that runs on a machine with a GPU what only a GPU can show (docs/gpu.md)"
	@echo "conformance  write docs/conformance.md from the labels in the tests and the published figures"

test:
	@tools/ci/test.sh

quick:
	@tools/ci/quick.sh

gates:
	@tools/ci/gates.sh

soak:
	@tools/ci/soak.sh

secure:
	@ALL=1 tools/ci/secure.sh

HOURS ?= 8
churn:
	@go run ./tests/churn -for $(HOURS)h -write docs/churn.md

soak-plugins:
	@go test -count=1 -timeout 30m -v ./tests/e2e -run 'TestKilledPluginsCostNothing$$' -soak
	@go test -count=1 -timeout 30m -v ./plugins/absmax ./plugins/generic -run Kill -soak

masterkills:
	@go test -count=1 -timeout 60m -v ./tests/e2e -run 'TestMasterKills$$' -soak

masterdies:
	@go test -count=1 -timeout 60m -v ./tests/sim -run 'TestMasterDies$$' -sim.seeds 100000
	@go test -count=1 -timeout 60m -v ./tests/sim -run 'TestThreeMasters' -sim.seeds 100000 -sim.three 100000

vet:
	@tools/ci/vet.sh

fmt:
	@go tool -modfile=tools/go.mod gofumpt -w .

bench:
	@tools/ci/bench.sh

wan:
	@go run ./tests/wan/contest -write docs/internet.md $(if $(ONLY),-only '$(ONLY)')

wan-test:
	@go test -count=1 -tags wan ./tests/internal/lab/... ./tests/internal/netns
	@go test -count=1 -tags wan ./tests/wan/contest

wan-flows:
	@go run ./tests/wan/flows

ptx:
	@tools/ci/ptx.sh -w

conformance:
	@go run -C tools ./conformance

measure:
	@go run -C tools ./conformance -measure $(if $(ONLY),-only '$(ONLY)')

libpccl:
	@bindings/c/build.sh libpccl.so

python:
	@tools/ci/python.sh

pytorch:
	@tools/ci/pytorch.sh $(if $(ONLY),'$(ONLY)')

torchft:
	@tools/ci/torchft.sh

faultbench:
	@tools/ci/torchbench.sh fault_bench.py --table $(if $(WRITE),--write $(WRITE))

fsdpbench:
	@tools/ci/torchbench.sh fsdp_bench.py

wheel:
	@tools/ci/wheel.sh dist

gpu-kit:
	@tools/gpukit/build.sh gpu-kit

wan-topology:
	@go run ./tests/wan/topology
	@go run ./tests/wan/topology -join
	@go run ./tests/wan/topology -shared
