#!/usr/bin/env bash
# All tests of the module with the race detector and internal checks. Packages that start processes or measure run
# one after another, so that they do not disturb each other.
. "$(dirname "$0")/common.sh"

mapfile -t all < <(existing ./...)
quick=() heavy=()
for package in "${all[@]}"; do
	case $package in
	*/tests/arch) ;; # a gate of its own
	*/tests/* | */cmd/* | */examples/*) heavy+=("$package") ;;
	*) quick+=("$package") ;;
	esac
done
[ ${#quick[@]} -gt 0 ] || fail "no packages with tests found"

go test -race -tags invariants -timeout 180s "${quick[@]}"
for package in "${heavy[@]}"; do
	go test -race -tags invariants -timeout 300s -count=1 "$package"
done
