#!/usr/bin/env bash
# The committed PTX is what NVRTC writes, and ptxas assembles it for every target. With -w it is written anew.
# Installs NVRTC and ptxas once, in the cache directory (some 150 MB).
. "$(dirname "$0")/common.sh"

[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || {
	echo "ptx: the compiler is for Linux on x86-64"
	exit 0
}
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

source=backends/cuda/kernels/_ptx
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for cu in "$source"/*.cu; do
	name=$(basename "$cu" .cu)
	"${PYTHON:-python3}" tools/ci/ptx.py compile "$nvrtc" "$cu" >"$work/$name.ptx" || fail "$cu does not compile"
	if [ "${1:-}" = -w ]; then
		cp "$work/$name.ptx" "$source/$name.ptx"
	else
		diff -u "$source/$name.ptx" "$work/$name.ptx" || fail "$source/$name.ptx is not what NVRTC writes; run tools/ci/ptx.sh -w"
	fi
done
"${PYTHON:-python3}" tools/ci/ptx.py assemble "$ptxas" "$source"/*.ptx || fail "ptxas"
