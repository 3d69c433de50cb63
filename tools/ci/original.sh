#!/usr/bin/env bash
# Prepares the original PCCL for tests/compat, in $GOPCCL_ORIGINAL or the user's cache directory. Repeatable.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(uname -s)/$(uname -m)" != Linux/x86_64 ]; then
	echo "original PCCL: published for Linux on x86-64 only; the tests against it will say that they did not run" >&2
	exit 0
fi
exec tests/internal/pccl/original/setup.sh "${GOPCCL_ORIGINAL:-${XDG_CACHE_HOME:-$HOME/.cache}/gopccl/original}"
