#!/usr/bin/env bash
# A training step under FSDP2 over gopccl, by one over Gloo: make fsdpbench. Arguments are those of
# bindings/python/tests/fsdp_bench.py. It takes a minute.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)" = Linux ] || elsewhere "a step of FSDP2" "Linux"
python=$cache/py/venv/bin/python
"$python" -c 'import cffi, torch' || fail "PyTorch is missing in $cache/py/venv: run make python first"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bindings/c/build.sh "$work/libgopccl.so"
GOPCCL_LIBRARY=$work/libgopccl.so PYTHONPATH=bindings/python/src PCCL_LOG_LEVEL=NONE \
	timeout 600 "$python" bindings/python/tests/fsdp_bench.py "$@"
