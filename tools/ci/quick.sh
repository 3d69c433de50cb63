#!/usr/bin/env bash
# What to run before each commit: the gates for this system, and the tests without the race detector and without
# processes. make test is what must pass.
. "$(dirname "$0")/common.sh"

began=$SECONDS
tools/ci/gates.sh here
mapfile -t packages < <(existing ./... | grep -vE "$heavy|$programs|/tests/arch$")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
gotest -short -timeout 120s "${packages[@]}" >"$log" || {
	grep -v '^ok ' "$log"
	fail "tests"
}
grep '^skipped' "$log" || true
echo "make quick: passed, ${#packages[@]} packages in $((SECONDS - began)) s"
