#!/usr/bin/env bash
# All tests of the module with the race detector and internal checks. Packages that start processes or measure run
# one after another, so that they do not disturb each other.
. "$(dirname "$0")/common.sh"

mapfile -t quick < <(existing ./... | grep -vE "$heavy|$kernels|/tests/arch$")
mapfile -t short < <(existing ./... | grep -E "$kernels")
mapfile -t alone < <(existing ./... | grep -E "$heavy")
[ ${#quick[@]} -gt 0 ] || fail "no packages with tests found"

gotest -race -tags invariants -timeout 240s "${quick[@]}"
# Arithmetic on slices has little to race on: all lengths and alignments are for the tests at full speed.
gotest -race -short -tags invariants -timeout 240s "${short[@]}"
for package in "${alone[@]}"; do
	gotest -race -tags invariants -timeout 420s -count=1 "$package"
done
