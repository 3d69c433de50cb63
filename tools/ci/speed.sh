#!/usr/bin/env bash
# Tests that do more without the race detector, at full speed: the pure machines, all seeds of the simulation,
# allocation counts of the data path, the long hash vectors.
. "$(dirname "$0")/common.sh"

mapfile -t compute < <(existing ./... | grep -E "$kernels|$pure")
gotest -count=1 -tags invariants -timeout 600s ./internal/guard ./internal/link ./internal/collective ./internal/message ./internal/reduce ./internal/tlsconn ./internal/transport/... ./internal/wire "${compute[@]}"
# The data path again, on pinned threads: all tests, with fewer repetitions.
GOPCCL_TEST_THREADS=pinned gotest -count=1 -short -tags invariants -timeout 240s ./internal/link ./internal/collective ./internal/message ./internal/reduce
