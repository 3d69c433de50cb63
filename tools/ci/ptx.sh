#!/usr/bin/env bash
# The committed PTX is what NVRTC writes, and ptxas assembles it for every target. With -w it is written.
# Installs NVRTC and ptxas once, in the cache directory (some 150 MB).
. "$(dirname "$0")/common.sh"

[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || elsewhere "kernels for CUDA, compiled anew" "Linux on x86-64"
# The cache is named after the pinned versions.
tools=$cache/cuda/$(sha256sum tools/ci/ptx.txt | cut -c1-16)
nvrtc=$tools/nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2
ptxas=$tools/nvidia/cuda_nvcc/bin/ptxas
[ -e "$tools/complete" ] || {
	rm -rf "$tools"
	"${PYTHON:-python3}" -m pip install -q --root-user-action=ignore --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
		--platform manylinux1_x86_64 --platform manylinux_2_12_x86_64 --platform manylinux2010_x86_64 \
		--target "$tools" -r tools/ci/ptx.txt || fail "could not install NVRTC and ptxas"
	chmod +x "$ptxas"
	touch "$tools/complete"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The backend's kernels, and those of the examples.
for cu in internal/cuda/kernels/_ptx/*.cu examples/trainers/_ptx/*.cu; do
	ptx=${cu%.cu}.ptx
	"${PYTHON:-python3}" tools/ci/ptx.py compile "$nvrtc" "$cu" >"$work/new.ptx" || fail "$cu does not compile"
	if [ "${1:-}" = -w ]; then
		cp "$work/new.ptx" "$ptx"
	else
		diff -u "$ptx" "$work/new.ptx" || fail "$ptx is not what NVRTC writes; run tools/ci/ptx.sh -w"
	fi
done
"${PYTHON:-python3}" tools/ci/ptx.py assemble "$ptxas" internal/cuda/kernels/_ptx/*.ptx examples/trainers/_ptx/*.ptx || fail "ptxas" # S2-37
