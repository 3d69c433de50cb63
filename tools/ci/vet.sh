#!/usr/bin/env bash
# go vet for every supported system and architecture, test files and build tags included.
. "$(dirname "$0")/common.sh"

for system in linux darwin windows; do
	for arch in amd64 arm64; do
		CGO_ENABLED=0 GOOS=$system GOARCH=$arch go vet ./... || fail "go vet for $system/$arch" # S0-01
	done
done
# Not supported, but they build: parking and sockets are the portable ones there.
for system in freebsd openbsd; do
	CGO_ENABLED=0 GOOS=$system GOARCH=amd64 go build ./core ./platform/... || fail "go build for $system" # S2-33
done
# What a tag adds does not change what another one does: three at a time.
for tags in noasm invariants,cuda,wan; do
	go vet -tags "$tags" ./... || fail "go vet with the tag $tags"
done
# The driver of NVIDIA devices is for Linux and Windows; elsewhere it builds and says that there is none.
for system in linux windows darwin; do
	for arch in amd64 arm64; do
		CGO_ENABLED=0 GOOS=$system GOARCH=$arch go vet -tags cuda ./backends/... ./internal/cuda/... ./core/device ./cmd/gopccl || fail "go vet for $system/$arch with the tag cuda"
	done
done
go vet -C tools ./... || fail "go vet of the tools"
