#!/usr/bin/env bash
# Tests that do more without the race detector, at full speed: all seeds of the simulation, allocation counts of the
# data path, the long hash vectors.
. "$(dirname "$0")/common.sh"

mapfile -t compute < <(existing ./... | grep -E "$kernels")
gotest -count=1 -tags invariants -timeout 420s ./tests/sim ./core/reduce ./core/transport/... ./core/wire "${compute[@]}"
# The data path again, on pinned threads.
GOPCCL_TEST_THREADS=pinned gotest -count=1 -tags invariants -timeout 240s ./core/reduce
# The calls of the CUDA driver, on a library that takes its place.
case "$(uname -s)" in Linux) gotest -count=1 -tags cuda -timeout 120s ./backends/cuda/libcuda ;; esac
