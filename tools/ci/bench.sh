#!/usr/bin/env bash
# Benchmarks: hashes, kernels and quantizers, then the all-reduce of whole processes.
. "$(dirname "$0")/common.sh"

go test -run '^$' -bench . -benchtime "${BENCH_TIME:-300ms}" ./core/digest $(existing ./backends/... ./quantizers/...)
go run ./cmd/gopccl bench allreduce --world "${BENCH_WORLDS:-2,4}" --bytes "${BENCH_BYTES:-4KiB,400000,64MiB}" \
	--dtype float32 --quantize none --rounds 5
