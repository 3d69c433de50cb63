#!/usr/bin/env bash
# The fast gates: formatting, vet, staticcheck, assembly, architecture, conformance.
. "$(dirname "$0")/common.sh"

tool() { go tool -modfile=tools/go.mod "$@"; }

unformatted=$(tool gofumpt -l .)
[ -z "$unformatted" ] || fail "gofumpt would change: $(echo "$unformatted" | tr '\n' ' '); run 'make fmt'"

tools/ci/vet.sh
tool staticcheck ./... || fail "staticcheck"
tools/ci/asm.sh || fail "assembly"
go run -C tools ./protogen -check || fail "generated code of plugins/proto"
go test -count=1 ./tests/arch || fail "architecture"
go test -C tools ./... || fail "tests of the tools"
go run -C tools ./conformance -check || fail "conformance"
