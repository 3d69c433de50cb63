#!/usr/bin/env bash
# go vet for this system, and tools/crossvet for every supported system and architecture, test files and build tags
# included: it does not compile the standard library for each of them.
. "$(dirname "$0")/common.sh"

go vet ./... || fail "go vet"
go vet -tags nocuda ./bindings/c || fail "go vet of the C library without CUDA"
go vet -C tools ./... || fail "go vet of the tools"

cross=$(mktemp -d)
trap 'rm -rf "$cross"' EXIT
go build -C tools -o "$cross/vet" ./crossvet || fail "tools/crossvet does not build"
"$cross/vet" {linux,darwin,windows}/{amd64,arm64} || fail "vet for other systems" # S0-01
# Not supported, but they build: parking and sockets are the portable ones there.
"$cross/vet" -packages ./core,./platform/... {freebsd,openbsd}/amd64 || fail "vet for FreeBSD and OpenBSD" # S2-33
# The tags noasm, invariants and wan are compiled by the tests that use them. There is a driver of NVIDIA devices for
# Linux and Windows on amd64 and arm64; the tag cuda, which was needed once, changes nothing.
"$cross/vet" -tags nocuda windows/amd64 || fail "vet for Windows without CUDA"
"$cross/vet" -tags cuda -packages ./backends/...,./internal/cuda/...,./core/device,./cmd/gopccl {linux,darwin}/arm64 || fail "vet with the tag cuda"
"$cross/vet" -packages ./backends/...,./internal/cuda/... linux/riscv64 || fail "vet where there is no driver of NVIDIA devices"
# One of them is compiled as well, and the program linked: no other stage does it for macOS.
export CGO_ENABLED=0 GOOS=darwin GOARCH=arm64
go list -export ./... >"$cross/compiled" || fail "compiling for macOS"
go build -o "$cross/gopccl" ./cmd/gopccl || fail "linking for macOS"
