#!/usr/bin/env bash
# Tests of the Python package: types, the API, pypccl's own files over our library (also beside the original), PyTorch.
# python.sh [PYTEST ARGS]. Installs numpy, PyTorch and the rest once, in the cache directory (some 6 GB).
. "$(dirname "$0")/common.sh"

[ "$(uname -s)" = Linux ] || elsewhere "the Python package" "Linux"
venv=$cache/py/venv
site=$cache/py/site
python=$venv/bin/python
packages=(cffi numpy ml_dtypes torch pytest mypy)
"$python" -c 'import cffi, numpy, ml_dtypes, torch, pytest, mypy' 2>/dev/null || {
	"${PYTHON:-python3}" -m venv "$venv"
	"$venv/bin/pip" install -q "${packages[@]}"
}
# What an interpreter without PyTorch needs to run pypccl's files.
[ -d "$site/numpy" ] ||
	"$venv/bin/pip" install -q --target "$site" cffi numpy

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/ci/wheel.sh "$work/dist"
# The way without a wheel: pip builds everything itself.
"$cache/py/wheel/bin/pip" install -q --no-deps --no-build-isolation --target "$work/plain" ./bindings/python
PYTHONPATH=$work/plain "$python" -c 'import gopccl, pccl; assert gopccl.__file__.startswith("'"$work/plain"'"), gopccl.__file__'
"$work/plain/gopccl/lib/gopccl" config defaults >/dev/null
"$venv/bin/pip" install -q --no-deps --force-reinstall "$work"/dist/gopccl-*.whl
bindings/c/build.sh "$work/libpccl.so"
(cd bindings/c && go build -buildmode=c-shared -tags interpreted -ldflags '-s -w' -o "$work/interpreted/libgopccl.so" .)

export TEST_LIBPCCL=$work/libpccl.so TEST_INTERPRETED=$work/interpreted/libgopccl.so TEST_ORIGINAL=${GOPCCL_ORIGINAL:-$cache/original} TEST_SITE=$site
export PCCL_LOG_LEVEL=NONE
cd bindings/python
"$venv/bin/mypy" --cache-dir "$cache/py/mypy" || fail "mypy --strict"
log=$work/pytest
"$python" -m pytest -q -rs -p no:cacheprovider "$@" | tee "$log"
skipped=$(sed -n 's/^SKIPPED \[\([0-9]*\)\] [^ ]* \(.*\)/\1 tests: \2/p' "$log" | grep -v ': only on ' || true)
[ -z "$skipped" ] || skip "bindings/python/tests" "$skipped" "install what is missing"
