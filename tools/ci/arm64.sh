#!/usr/bin/env bash
# Unit tests of what computes and decides, cross-compiled for arm64 and run under qemu-user.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || elsewhere "arm64 under qemu" "Linux on x86-64"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || fail "no qemu-aarch64"

packages=(./core/dtype ./internal/wire ./core/digest ./internal/plan ./internal/link ./internal/collective ./internal/message ./internal/reduce ./internal/guard ./internal/master/fsm/... ./internal/peer/fsm
	./backends/... ./quantizers/... ./internal/determinism)
# What is long under qemu and has nothing of its own there: counts of work, and repetitions for every frame or of a thousand
# peers.
export everywhere='^(TestAbortAtEveryFrame|TestConnectionLoss|TestNothingIsAllocatedPerPiece|TestSilentNewcomersCostLittle|TestReturnsCostWhatTheirGroupDoes|TestRecoveryOfAThousandPeers)$'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0
for package in $(existing "${packages[@]}"); do
	count=$((count + 1))
	# What opens the CUDA driver needs a C library for arm64.
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go test -c -tags nocuda -o "$work/$count" "$package"
	echo "$qemu $work/$count $(go list -f '{{.Dir}}' "$package")"
done >"$work/tests"
[ "$count" -gt 0 ] || fail "no packages with tests found"
# The compiler uses all processors, a test mostly one: two of them at a time.
one() { (cd "$3" && "$1" "$2" -test.short -test.skip "$everywhere" -test.timeout 400s >"$2.log" 2>&1) || { cat "$2.log"; echo "arm64: $3 failed"; exit 1; }; }
export -f one
xargs -P 2 -L 1 bash -c 'one "$@"' one <"$work/tests" || fail "tests on arm64"

# Go fuses a product with a sum on arm64 and not on amd64: no line may leave it
# that choice where all peers have to compute the same bits.
for package in $(go list ./core/dtype ./core/quant ./backends/cpu_generic ./backends/internal/vectors ./quantizers/...); do
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -o "$work/package" "$package"
	fused=$(go tool objdump "$work/package" | awk '$4 ~ /^FN?M(ADD|SUB)[SD]$/ {print $1}' | sort -u)
	[ -z "$fused" ] || fail "$package: products fused with sums at" $fused "(write float64(a*b)+c, or float32(a*b)+c)"
done
echo "arm64: $count packages passed under $(basename "$qemu")"
