#!/usr/bin/env bash
# Builds a folder that shows on a machine with an NVIDIA GPU what no other machine can (docs/gpu.md): build.sh [DIR].
# Nothing is needed there but the driver, and Python with PyTorch for some parts: no Go, no compiler, no network.
. "$(dirname "$0")/../ci/common.sh"

[ "$(uname -sm)" = "Linux x86_64" ] || elsewhere "the kit for a GPU" "Linux on x86-64"
kit=${1:-gpu-kit}
pythons=${PYTHONS:-3.10 3.11 3.12 3.13}
rm -rf "$kit"
mkdir -p "$kit/parts" "$kit/python"
kit=$(cd "$kit" && pwd)

CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$kit/gpucheck" ./tests/gpu
for p in internal/cuda internal/cuda/kernels tests/device; do
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o "$kit/parts/${p//\//-}" "./$p"
done
for lib in libpccl.so libgopccl.so; do bindings/c/build.sh "$kit/$lib"; done
cp -r bindings/python/src/. "$kit/python/"
cp bindings/python/tests/device_program.py bindings/python/tests/torch_program.py "$kit/parts/"
# What the package needs beside PyTorch, for every Python that the machine may have.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for version in $pythons; do
	"${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --no-deps --no-compile --target "$work/$version" \
		--only-binary=:all: --implementation cp --python-version "$version" \
		--platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 cffi pycparser ||
		fail "cffi for Python $version"
	cp -r "$work/$version"/cffi "$work/$version"/pycparser "$work/$version"/_cffi_backend*.so "$kit/python/"
done
find "$kit" -name __pycache__ -prune -exec rm -rf {} +
cp tools/gpukit/run.sh "$kit/"
git log -1 --format='%H %cI' >"$kit/version" 2>/dev/null || echo unknown >"$kit/version"
du -sh "$kit"
