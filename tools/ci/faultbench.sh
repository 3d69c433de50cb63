#!/usr/bin/env bash
# What a fault costs a program that uses torch.distributed, with gopccl and with Gloo in turns: make faultbench. Prints a table,
# and with WRITE=README.md puts it there, if the machine is idle. Arguments are those of bindings/python/tests/fault_bench.py.
# It takes five minutes, most of them Gloo's timeouts.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)" = Linux ] || elsewhere "what a fault costs PyTorch" "Linux"
python=$cache/py/venv/bin/python
"$python" -c 'import cffi, torch' || fail "PyTorch is missing in $cache/py/venv: run make python first"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bindings/c/build.sh "$work/libgopccl.so"
GOPCCL_LIBRARY=$work/libgopccl.so PYTHONPATH=bindings/python/src PCCL_LOG_LEVEL=NONE \
	"$python" bindings/python/tests/fault_bench.py --table ${WRITE:+--write "$WRITE"} "$@"
