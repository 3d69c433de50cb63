#!/usr/bin/env bash
# torchft's own tests, as its newest package brings them, over our process group: what a developer runs (make torchft).
# make test does not run it: a new nightly must not stop everything else.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)" = Linux ] || elsewhere "torchft" "Linux"
python=$cache/py/venv/bin/python
site=$cache/py/torchft
"$python" -c 'import cffi, torch' || fail "PyTorch is missing in $cache/py/venv: run make python first"
if [ ! -d "$site/torchft" ]; then
	"$python" -m pip install -q --no-deps --target "$site" torchft-nightly # it asks for a PyTorch, which is there
	"$python" -m pip install -q --target "$site" opentelemetry-api opentelemetry-sdk opentelemetry-exporter-otlp-proto-http parameterized
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bindings/c/build.sh "$work/libgopccl.so"
GOPCCL_LIBRARY=$work/libgopccl.so PYTHONPATH=bindings/python/src:$site PCCL_LOG_LEVEL=NONE \
	timeout 600 "$python" bindings/python/tests/torchft_program.py 2>"$work/log" || { tail -n 60 "$work/log" >&2; fail "torchft's tests"; }
tail -n 3 "$work/log"
