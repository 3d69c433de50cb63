#!/usr/bin/env bash
# The long forms of the end-to-end tests and simulations: GOPCCL_SOAK=1 makes the tests use their full counts.
. "$(dirname "$0")/common.sh"

tools/ci/install.sh
tools/ci/original.sh
export GOPCCL_SOAK=1
mapfile -t packages < <(existing ./tests/... | grep -v '/tests/arch$')
[ ${#packages[@]} -gt 0 ] || fail "no packages with tests found"
go test -count=1 -p 1 -timeout "${SOAK_TIMEOUT:-8h}" -v "${packages[@]}"
echo "make soak: passed"
