# Sourced by the scripts beside it: the repository root is the current directory afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C

# Where things live that are worth keeping between runs: the Wine prefix, the original library.
cache=${GOPCCL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gopccl}

# heavy matches packages whose tests start processes or load the machine.
heavy='/gopccl/(tests/(cabi|compat|e2e|bench|sim)|cmd|examples|plugins/host)(/|$)'

# kernels matches packages that compute and start nothing.
kernels='/gopccl/(backends|quantizers|core/(backend|digest|quant))(/|$)'

fail() {
	echo "$(basename "$0"): $*" >&2
	exit 1
}

# existing PATTERN...: the Go packages that the patterns name and that have tests.
existing() {
	go list -e -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "$@" 2>/dev/null || true
}
