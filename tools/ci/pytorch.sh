#!/usr/bin/env bash
# PyTorch's own tests of collectives, of the installed package, over our backend. pytorch.sh [EXPRESSION]   (make pytorch)
# It takes half an hour, so make test does not run it.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)" = Linux ] || elsewhere "PyTorch's own tests" "Linux"
python=$cache/py/venv/bin/python
site=$cache/py/pytorch
"$python" -c 'import cffi, torch' || fail "PyTorch is missing in $cache/py/venv: run make python first"
[ -d "$site/expecttest" ] || "$python" -m pip install -q --no-deps --target "$site" expecttest
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bindings/c/build.sh "$work/libgopccl.so"
GOPCCL_LIBRARY=$work/libgopccl.so PYTHONPATH=bindings/python/src:$site PCCL_LOG_LEVEL=NONE \
	timeout 7200 "$python" bindings/python/tests/pytorch_program.py "$@" 2>"$work/log" || { grep -aE '^(ERROR|FAIL):|AssertionError' "$work/log" | tail -n 60 >&2; fail "PyTorch's tests"; }
grep -aoE "skipped '.*'" "$work/log" | sort | uniq -c | sort -rn
tail -n 3 "$work/log"
