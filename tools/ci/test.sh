#!/usr/bin/env bash
# Everything that must hold, fast things first. The last line says how it went.
. "$(dirname "$0")/common.sh"

began=$SECONDS
report=()
GOPCCL_SKIPS=$(mktemp)
export GOPCCL_SKIPS
trap 'rm -f "$GOPCCL_SKIPS"' EXIT
stage() {
	local name=$1 start=$SECONDS
	shift
	echo "== $name"
	if ! "$@"; then
		printf '%s\n' "${report[@]}"
		echo "make test: FAILED in $name after $((SECONDS - began)) s"
		exit 1
	fi
	report+=("$(printf '%-28s %4d s' "$name" $((SECONDS - start)))")
}

# Without the original library the tests against it are skipped.
original() {
	tools/ci/original.sh ||
		skip "the tests beside PCCL 1.0.0, those of the Python package included" "its library could not be set up" "tools/ci/original.sh says why"
}

stage "install" tools/ci/install.sh
stage "gates" tools/ci/gates.sh
stage "original library" original
stage "tests with race detector" tools/ci/race.sh
stage "tests at full speed" tools/ci/speed.sh
stage "runs in TLS" tools/ci/secure.sh
stage "network of a container" tools/ci/wan.sh
stage "python package" tools/ci/python.sh
stage "kit for a GPU" tools/ci/gpukit.sh
stage "plugins" tools/ci/plugins.sh
stage "kernels for CUDA" tools/ci/ptx.sh
stage "arm64 under qemu" tools/ci/arm64.sh
stage "windows under wine" tools/ci/windows.sh

printf '%s\n' "${report[@]}"
if [ -s "$GOPCCL_SKIPS" ]; then
	echo "Not run, and so not shown:"
	sort -u "$GOPCCL_SKIPS" | sed 's/^/  /'
	echo "make test: passed WITHOUT the $(sort -u "$GOPCCL_SKIPS" | wc -l) above, ${#report[@]} stages in $((SECONDS - began)) s"
else
	echo "make test: passed, ${#report[@]} stages in $((SECONDS - began)) s"
fi
