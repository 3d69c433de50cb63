#!/usr/bin/env bash
# Measures a program that uses torch.distributed, with gopccl and with Gloo in turns: torchbench.sh PROGRAM [ARGUMENTS], where
# PROGRAM is fault_bench.py (make faultbench) or fsdp_bench.py (make fsdpbench) in bindings/python/tests.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)" = Linux ] || elsewhere "a program that uses PyTorch" "Linux"
python=$cache/py/venv/bin/python
"$python" -c 'import cffi, torch' || fail "PyTorch is missing in $cache/py/venv: run make python first"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bindings/c/build.sh "$work/libgopccl.so"
GOPCCL_LIBRARY=$work/libgopccl.so PYTHONPATH=bindings/python/src PCCL_LOG_LEVEL=NONE \
	timeout 3600 "$python" "bindings/python/tests/$1" "${@:2}"
