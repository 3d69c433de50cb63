#!/usr/bin/env bash
# The kit for a machine with a GPU: built, and run through the interpreter where neither Go nor the sources are to be seen.
. "$(dirname "$0")/common.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PYTHONS=$("$cache/py/venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) tools/gpukit/build.sh "$work/kit"
[ -x "$work/kit/run.sh" ] || exit 0 # elsewhere
python=$cache/py/venv/bin/python
[ -x "$python" ] || fail "run tools/ci/python.sh first"
mkdir "$work/elsewhere" "$work/out"
(cd "$work/elsewhere" && env -i HOME="$work" PATH=/usr/bin:/bin PYTHON="$python" "$work/kit/run.sh" -interpreter -out "$work/out" machine hash calls reduce torch lost sizes suites determinism aborts tests-kernels tests-cuda tests-device) >"$work/log" 2>&1 || {
	tail -n 80 "$work/log" >&2
	fail "the kit does not run"
}
tar -tzf "$work/out/gpu-logs.tgz" | grep torch.log >/dev/null || fail "the archive has no logs"
sed -n '/== in short/,$p' "$work/log"
