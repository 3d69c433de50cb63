#!/usr/bin/env bash
# The shipped plugins, as programs, against the conformance suite of gopccl plugins check; the one in Python with
# nothing but grpcio.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)" = Linux ] || elsewhere "plugins as programs" "Linux"
grpcio=1.76.0
venv=$cache/plugins/venv
"$venv/bin/python" -c "import grpc; assert grpc.__version__ == '$grpcio'" 2>/dev/null || {
	"${PYTHON:-python3}" -m venv "$venv"
	"$venv/bin/pip" install -q "grpcio==$grpcio"
}
[ "$(wc -l <plugins/python/solver.py)" -lt 80 ] || fail "plugins/python/solver.py was to show that 80 lines are enough"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/" ./cmd/gopccl ./plugins/...
check() { "$work/gopccl" plugins check "$@" || fail "plugin $*"; }
for plugin in moonshot lpexact; do
	check "$work/$plugin"
done
check --kind quantizer "$work/absmax"
check --kind backend "$work/generic"
check --no-mtls "$venv/bin/python" plugins/python/solver.py
