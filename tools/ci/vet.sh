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
# What a tag adds does not change what another one does: several at a time.
for tags in noasm nocuda invariants,wan; do
	go vet -tags "$tags" ./... || fail "go vet with the tag $tags"
done
# The driver of NVIDIA devices is for Linux and Windows on amd64 and arm64, and is built there; the tag cuda, which was
# needed once, changes nothing.
for system in linux darwin; do
	CGO_ENABLED=0 GOOS=$system GOARCH=arm64 go vet -tags cuda ./backends/... ./internal/cuda/... ./core/device ./cmd/gopccl || fail "go vet for $system with the tag cuda"
done
CGO_ENABLED=0 GOOS=linux GOARCH=riscv64 go build ./backends/... ./internal/cuda/... || fail "go build where there is no driver of NVIDIA devices"
go vet -C tools ./... || fail "go vet of the tools"
