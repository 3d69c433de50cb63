#!/usr/bin/env bash
# Builds the C library.  build.sh [OUT]   (default libpccl.so in the current directory)
# What OUT is called decides what it exports: libgopccl.* has gopccl.h beside pccl.h, anything else pccl.h alone.
# Communicators of libgopccl.* wait for another master, those of the other one end with theirs.
# GOOS=windows builds a DLL with mingw, which exports Go's functions beside those of the two headers.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-libpccl.so}
case $out in /*) ;; *) out=$PWD/$out ;; esac
map=$here/libpccl.map
ours=
case $(basename "$out") in libgopccl.* | gopccl.*) map=$here/libgopccl.map ours=yes ;; esac
system=$(go env GOOS)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $system in
windows)
	export CC=${CC:-x86_64-w64-mingw32-gcc}
	extld=-static-libgcc # what a DLL exports is said in the headers
	;;
darwin)
	sed -n 's/^\t\([a-zA-Z]*\);$/_\1/p' "$map" >"$work/symbols"
	extld=-Wl,-exported_symbols_list,$work/symbols
	;;
*) extld="-Wl,--version-script=$map -Wl,-soname,$(basename "$out")" ;;
esac
cd "$here"
CGO_ENABLED=1 go build -buildmode=c-shared -trimpath -ldflags "-s -w -X main.ours=$ours -extldflags '$extld'" -o "$work/$(basename "$out")" .
mv "$work/$(basename "$out")" "$out"
