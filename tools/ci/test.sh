#!/usr/bin/env bash
# Everything that must hold, fast things first, and then in two lanes. The last line says how it went.
. "$(dirname "$0")/common.sh"

began=$SECONDS
GOPCCL_SKIPS=$(mktemp)
work=$(mktemp -d)
export GOPCCL_SKIPS
lane=
# stop ends the second lane, with all that it has started.
stop() {
	if [ -n "$lane" ]; then kill -- "-$lane" 2>/dev/null || true; fi
	lane=
}
trap 'stop; rm -rf "$GOPCCL_SKIPS" "$work"' EXIT
failed() {
	touch "$work/failed"
	[ -z "${in:-}" ] || exit 1
	cat "$work"/report.* 2>/dev/null || true
	echo "make test: FAILED in $1 after $((SECONDS - began)) s"
	exit 1
}
# A stage says how long it took in the report of its lane.
stage() {
	local name=$1 start=$SECONDS
	shift
	echo "== $name"
	"$@" || failed "$name"
	printf '%-28s %4d s\n' "$name" $((SECONDS - start)) >>"$work/report.${in:-1}"
	if [ -z "${in:-}" ] && [ -e "$work/failed" ]; then together; fi
}
# beside runs a function as the second lane: most of what is in there waits more than it computes. What it prints comes
# when it ends (together).
beside() {
	set -m
	(
		in=2
		trap - EXIT
		"$1"
	) >"$work/log" 2>&1 </dev/null &
	lane=$!
	set +m
}
together() {
	wait "$lane" || touch "$work/failed"
	lane=
	cat "$work/log"
	[ ! -e "$work/failed" ] || failed "$(sed -n 's/^== //p' "$work/log" | tail -n 1)"
}

# Without the original library the tests against it are skipped.
original() {
	tools/ci/original.sh ||
		skip "the tests beside PCCL 1.0.0, those of the Python package included" "its library could not be set up" "tools/ci/original.sh says why"
}

others() {
	stage "runs in TLS" tools/ci/secure.sh
	stage "network of a container" tools/ci/wan.sh
	stage "python package" tools/ci/python.sh
	stage "kit for a GPU" tools/ci/gpukit.sh
	stage "plugins" tools/ci/plugins.sh
	stage "kernels for CUDA" tools/ci/ptx.sh
	stage "arm64 under qemu" tools/ci/arm64.sh
	stage "windows under wine" tools/ci/windows.sh
}

stage "install" tools/ci/install.sh
stage "gates" tools/ci/gates.sh
stage "original library" original
build_gotest # once, and not under a lane that runs it
export gotest_program
beside others
stage "tests with race detector" tools/ci/race.sh
stage "tests at full speed" tools/ci/speed.sh
together

cat "$work"/report.*
if [ -s "$GOPCCL_SKIPS" ]; then
	echo "Not run, and so not shown:"
	sort -u "$GOPCCL_SKIPS" | sed 's/^/  /'
	echo "make test: passed WITHOUT the $(sort -u "$GOPCCL_SKIPS" | wc -l) above, $(cat "$work"/report.* | wc -l) stages in $((SECONDS - began)) s"
else
	echo "make test: passed, $(cat "$work"/report.* | wc -l) stages in $((SECONDS - began)) s"
fi
