#!/usr/bin/env bash
# go vet for every supported system and architecture, test files and build tags included.
. "$(dirname "$0")/common.sh"

for system in linux darwin windows; do
	for arch in amd64 arm64; do
		CGO_ENABLED=0 GOOS=$system GOARCH=$arch go vet ./... || fail "go vet for $system/$arch"
	done
done
# Not supported, but they build: parking and sockets are the portable ones there.
for system in freebsd openbsd; do
	CGO_ENABLED=0 GOOS=$system GOARCH=amd64 go build ./core ./platform/... || fail "go build for $system"
done
for tags in noasm invariants; do
	go vet -tags "$tags" ./... || fail "go vet with the tag $tags"
done
go vet -C tools ./... || fail "go vet of the tools"
