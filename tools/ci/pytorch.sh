#!/usr/bin/env bash
# PyTorch's own tests of collectives over our backend. pytorch.sh [EXPRESSION]   (make pytorch)
# One suite is in the installed package. GOPCCL_PYTORCH names a directory with more: test_c10d_gloo.py, test_c10d_common.py
# and test_c10d_fault_tolerance.py of PyTorch's repository (test/distributed), which no package has. How each test ends is
# compared with bindings/python/tests/pytorch_expected.txt. It takes half an hour, so make test does not run it.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)" = Linux ] || elsewhere "PyTorch's own tests" "Linux"
python=$cache/py/venv/bin/python
site=$cache/py/pytorch
"$python" -c 'import cffi, torch' || fail "PyTorch is missing in $cache/py/venv: run make python first"
[ -d "$site/expecttest" ] || "$python" -m pip install -q --no-deps --target "$site" expecttest
more=()
if [ -n "${GOPCCL_PYTORCH:-}" ]; then
	more=(--upstream "$GOPCCL_PYTORCH")
else
	unseen "test_c10d_gloo.py and test_c10d_fault_tolerance.py" "no package has them" "set GOPCCL_PYTORCH to a directory that does"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bindings/c/build.sh "$work/libgopccl.so"
GOPCCL_LIBRARY=$work/libgopccl.so PYTHONPATH=bindings/python/src:$site PCCL_LOG_LEVEL=NONE \
	timeout 7200 "$python" bindings/python/tests/pytorch_program.py "${more[@]}" "$@" 2>"$work/log" || { grep -aE '^(ERROR|FAIL):|AssertionError' "$work/log" | tail -n 60 >&2; fail "PyTorch's tests"; }
grep -aoE "skipped '.*'" "$work/log" | sort | uniq -c | sort -rn
tail -n 3 "$work/log"
