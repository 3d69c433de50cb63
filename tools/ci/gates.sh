#!/usr/bin/env bash
# The fast gates: formatting, vet, staticcheck, known vulnerabilities, assembly, architecture, conformance. With the
# argument "here" those that a change is likely to break: vet for this system alone, and no generators.
. "$(dirname "$0")/common.sh"

tool() { go tool -modfile=tools/go.mod "$@"; }

unformatted=$(tool gofumpt -l .)
[ -z "$unformatted" ] || fail "gofumpt would change: $(echo "$unformatted" | tr '\n' ' '); run 'make fmt'"

if [ "${1:-}" = here ]; then go vet ./... || fail "go vet"; else tools/ci/vet.sh; fi
tool staticcheck ./... || fail "staticcheck"
[ "${1:-}" = here ] || tools/ci/vuln.sh
[ "${1:-}" = here ] || tools/ci/asm.sh || fail "assembly"
[ "${1:-}" = here ] || go run -C tools ./protogen -check || fail "generated code of plugins/proto"
go test -count=1 ./tests/arch || fail "architecture"
go test -C tools ./... || fail "tests of the tools"
go run -C tools ./conformance -check || fail "conformance"
