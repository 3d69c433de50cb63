#!/usr/bin/env bash
# The tests of the module with the race detector and internal checks, but for the pure packages, which speed.sh runs.
# Packages that start processes wait more than they compute: two of them run at a time, apart from the others.
. "$(dirname "$0")/common.sh"

mapfile -t quick < <(existing ./... | grep -vE "$heavy|$kernels|$pure|/tests/arch$|/internal/collective$")
mapfile -t short < <(existing ./... | grep -E "$kernels|/internal/collective$")
# The longest first, so that it does not run alone at the end.
mapfile -t alone < <({ existing ./tests/e2e ./tests/compat ./tests/cabi; existing ./... | grep -E "$heavy" | grep -vE "$pure|/tests/(e2e|compat|cabi)$"; })
[ ${#quick[@]} -gt 0 ] || fail "no packages with tests found"

# A program with the race detector sleeps for a second before it ends, in case another of its threads is about to report
# a race. Here hundreds of them end, one for each package and for each process that a test starts.
export GORACE="atexit_sleep_ms=20 ${GORACE:-}"

gotest -race -tags invariants -timeout 240s "${quick[@]}"
# Arithmetic on slices has little to race on: all lengths and alignments are for the tests at full speed, and so are
# all frames at which a collective may fail.
gotest -race -short -tags invariants -timeout 240s "${short[@]}"
gotest -race -tags invariants -timeout 1200s -count=1 -p 2 "${alone[@]}"
