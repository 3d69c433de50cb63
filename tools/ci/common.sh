# Sourced by the scripts beside it: the repository root is the current directory afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C

# Where things live that are worth keeping between runs: the Wine prefix, the original library.
cache=${GOPCCL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gopccl}

# heavy matches packages whose tests start processes or load the machine.
heavy='/gopccl/(tests/(cabi|chaos|churn|compat|internal/pccl|e2e|bench|sim)|cmd|examples|internal/plugin/host)(/|$)'

# programs matches plugins, whose tests start them as processes.
programs='/gopccl/plugins/(absmax|generic)(/|$)'

# kernels matches packages that compute and start nothing.
kernels='/gopccl/(backends|quantizers|internal/cuda|core/(backend|digest|quant))(/|$)'

# pure matches packages without goroutines and locks, in which there is nothing to race on, and tests/sim, whose worlds
# share nothing. tests/arch holds the machines to it.
pure='/gopccl/(internal/(master|message|peer)/fsm|internal/(pace|plan|quorum)|tests/sim)(/|$)'

fail() {
	echo "$(basename "$0"): $*" >&2
	exit 1
}

# skip WHAT WHY HOW: says that something is not run, also at the end of make test. With CI=true it is a failure.
skip() {
	echo "skipped: $1: $2; $3"
	[ -z "${GOPCCL_SKIPS:-}" ] || echo "$1: $2; $3" >>"$GOPCCL_SKIPS"
	[ "${CI:-}" != true ] || {
		echo "$1 cannot be skipped with CI=true" >&2
		return 1
	}
}

# unseen WHAT WHY HINT: says what was not looked at because the network does not give what it takes. That is not a failure
# with CI=true either: it says nothing about the code, and nothing that is installed would help.
unseen() {
	echo "NOT SEEN: $1: $2; $3"
	[ -z "${GOPCCL_SKIPS:-}" ] || echo "$1: $2; $3" >>"$GOPCCL_SKIPS"
}

# elsewhere WHAT SYSTEMS: ends a script that has nothing to do on this system, which is not a failure anywhere.
elsewhere() {
	echo "skipped: $1: only on $2"
	[ -z "${GOPCCL_SKIPS:-}" ] || echo "$1: only on $2" >>"$GOPCCL_SKIPS"
	exit 0
}

# gotest ARGUMENTS: go test, with the skipped tests named. The gates have vetted the packages.
gotest() {
	[ -x "${gotest_program:-}" ] || {
		gotest_program=$cache/gotest
		mkdir -p "$cache"
		go build -C tools -o "$gotest_program" ./gotest || fail "tools/gotest does not build"
	}
	set -- -vet=off "$@"
	if [ -n "${GOPCCL_SKIPS:-}" ]; then set -- -skips "$GOPCCL_SKIPS" "$@"; fi
	"$gotest_program" "$@"
}

# existing PATTERN...: the Go packages that the patterns name and that have tests.
existing() {
	go list -e -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "$@" 2>/dev/null || true
}
