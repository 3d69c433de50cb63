#!/usr/bin/env bash
# The long forms: full counts of the end-to-end tests, many times the seeds of the simulation, the original library.
. "$(dirname "$0")/common.sh"

tools/ci/install.sh
tools/ci/original.sh
limit=${SOAK_TIMEOUT:-8h}
go test -count=1 -timeout "$limit" -v ./tests/e2e -soak
go test -count=1 -timeout "$limit" -v ./tests/churn ./tests/chaos -soak
if unshare --net true 2>/dev/null && (: <>/dev/net/tun) 2>/dev/null; then
	go test -count=1 -tags wan -timeout "$limit" -v ./tests/churn -run 'TestChurnOverAWideArea$' -soak
fi
ALL=1 SOAK=1 tools/ci/secure.sh
go test -count=1 -timeout "$limit" -v ./plugins/absmax ./plugins/generic -soak
go test -count=1 -timeout "$limit" -v ./internal/cuda/kernels -soak
go test -count=1 -timeout "$limit" -v ./tests/sim -sim.seeds="${SOAK_SEEDS:-1000000}" -sim.three=100000 -sim.messages=200000
go test -count=1 -timeout "$limit" -v ./tests/compat
# Many processes on one machine: 32 and 128 peers, tiny operations.
go run ./cmd/gopccl bench allreduce --world 32,128 --bytes 4KiB --rounds 10
echo "make soak: passed"
