#!/usr/bin/env bash
# Unit tests of what computes and decides, cross-compiled for arm64 and run under qemu-user.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || elsewhere "arm64 under qemu" "Linux on x86-64"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || fail "no qemu-aarch64"

packages=(./core/dtype ./internal/wire ./core/digest ./internal/plan ./internal/reduce ./internal/master/fsm/... ./internal/peer/fsm
	./backends/... ./quantizers/... ./internal/determinism)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0
for package in $(existing "${packages[@]}"); do
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go test -c -o "$work/test" "$package"
	dir=$(go list -f '{{.Dir}}' "$package")
	(cd "$dir" && "$qemu" "$work/test" -test.short -test.timeout 240s >"$work/log" 2>&1) || {
		cat "$work/log"
		fail "$package on arm64"
	}
	count=$((count + 1))
done
[ "$count" -gt 0 ] || fail "no packages with tests found"

# Go fuses a product with a sum on arm64 and not on amd64: no line may leave it
# that choice where all peers have to compute the same bits.
for package in $(go list ./core/dtype ./core/quant ./backends/cpu_generic ./backends/internal/vectors ./quantizers/...); do
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -o "$work/package" "$package"
	fused=$(go tool objdump "$work/package" | awk '$4 ~ /^FN?M(ADD|SUB)[SD]$/ {print $1}' | sort -u)
	[ -z "$fused" ] || fail "$package: products fused with sums at" $fused "(write float64(a*b)+c, or float32(a*b)+c)"
done
echo "arm64: $count packages passed under $(basename "$qemu")"
