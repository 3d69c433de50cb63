#!/usr/bin/env bash
# Benchmarks: hashes, kernels and quantizers, then all-reduces beside PCCL 1.0.0, PyTorch's Gloo and
# bare TCP (arguments are those of tests/bench; PyTorch is some GB, the first time).
. "$(dirname "$0")/common.sh"

go test -run '^$' -bench . -benchtime "${BENCH_TIME:-300ms}" ./core/digest $(existing ./backends/... ./quantizers/...)
go run ./tests/bench "$@"
