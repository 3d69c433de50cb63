#!/usr/bin/env bash
# Everything that must hold, fast things first. The last line says how it went.
. "$(dirname "$0")/common.sh"

began=$SECONDS
report=()
GOPCCL_SKIPS=$(mktemp)
export GOPCCL_SKIPS
trap 'rm -f "$GOPCCL_SKIPS"' EXIT
# busy: the time that all cores of the machine have worked, in hundredths of a second; 0 where that is not told.
busy() {
	awk '$1 == "cpu" { print $2 + $3 + $4 + $7 + $8; seen = 1; exit } END { if (!seen) print 0 }' /proc/stat 2>/dev/null || echo 0
}

# stage NAME COMMAND...: the report says how long it took, and how much of the machine it used.
stage() {
	local name=$1 start=$SECONDS used
	used=$(busy)
	shift
	echo "== $name"
	if ! "$@"; then
		printf '%s\n' "${report[@]}"
		echo "make test: FAILED in $name after $((SECONDS - began)) s"
		exit 1
	fi
	local took=$((SECONDS - start))
	report+=("$(printf '%-28s %4d s, %3d %% of the cores' "$name" "$took" $((($(busy) - used) / (took > 0 ? took : 1) / $(nproc))))")
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
