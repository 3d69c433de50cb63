#!/usr/bin/env bash
# Makes the original PCCL 1.0.0 runnable in a directory: setup.sh DIR
#
# The published wheel (Python package pypccl, Linux x86-64) holds libpccl.so. Two things keep it from loading on a
# stable distribution: it links the CUDA driver, and it wants a newer C library (GLIBC_2.38, GLIBCXX_3.4.32). So DIR
# gets a CUDA driver that always answers "no device" and, where the machine's own C library is too old, the one of a
# newer Debian. Nothing outside DIR changes and root is not needed. Afterwards:
#
#   DIR/run PROGRAM ARGS...   starts a program with a C library that can load libpccl.so, under the same pid
#   DIR/lib/libpccl.so        what such a program links or opens
#
# A second call returns at once. ORIGINAL_SUITE and ORIGINAL_MIRROR choose another Debian suite or mirror for the C
# library (default: trixie, and the mirror that the machine's apt uses).
set -euo pipefail
export LC_ALL=C

fail() { echo "original PCCL: $*" >&2; exit 1; }

[ $# -eq 1 ] || fail "usage: $0 DIR"
[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || fail "the wheel exists for Linux on x86-64 only"
for tool in gcc flock python3 sha256sum; do
	command -v "$tool" >/dev/null || fail "needs $tool"
done

version=1.0.0
wheel=pypccl-$version-cp312-cp312-manylinux_2_17_x86_64.whl
wheel_sha256=ca5bb143ef464429ff769886eaa825ba122541bbc2274d89224e1b056e12f327

mkdir -p "$1"
dir=$(cd "$1" && pwd)
exec 8>"$dir/.lock"
flock 8

loads() { "$dir/run" "$dir/loads" "$dir/lib/libpccl.so" >/dev/null 2>&1; }

if [ -e "$dir/ready" ] && loads; then
	exit 0
fi
rm -f "$dir/ready"
mkdir -p "$dir/lib" "$dir/nocuda" "$dir/work"

# The library, out of the wheel, whose digest is known.
cd "$dir/work"
known() { echo "$wheel_sha256  $wheel" | sha256sum --check --status 2>/dev/null; }
known || python3 -m pip download --quiet --disable-pip-version-check --no-input --no-deps --only-binary :all: \
	--implementation cp --python-version 3.12 --abi cp312 --platform manylinux_2_17_x86_64 "pypccl==$version" ||
	fail "the wheel could not be downloaded (python3 -m pip)"
known || fail "the wheel that was downloaded is not the published one"
python3 - "$wheel" "$dir/lib/libpccl.so" <<'PY'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, open(sys.argv[2], "wb") as out:
    out.write(wheel.read("pccl/libpccl.so"))
PY

# A CUDA driver without devices: CUDA_ERROR_NO_DEVICE (100) from each function that libpccl.so imports.
for name in CtxSetCurrent DeviceGet DevicePrimaryCtxRetain GetErrorName GetErrorString MemAlloc_v2 MemFree_v2 \
	MemcpyDtoH_v2 MemcpyHtoD_v2 PointerGetAttribute StreamSynchronize; do
	echo "int cu$name(void) { return 100; }"
done >nocuda.c
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$dir/nocuda/libcuda.so.1" nocuda.c

# A program that tells whether the library can be opened and initialised.
cat >loads.c <<'C'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
	if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
	int (*init)(void) = (int (*)(void))dlsym(library, "pcclInit");
	return init ? init() : 1;
}
C
gcc -o "$dir/loads" loads.c -ldl

# The machine's own C library first.
cat >"$dir/run" <<'SH'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
exec env LD_LIBRARY_PATH="$here/lib:$here/nocuda" "$@"
SH
chmod +x "$dir/run"
runtime="of this machine"

if [ -e "$dir/lib/ld-linux-x86-64.so.2" ] || ! loads; then
	suite=${ORIGINAL_SUITE:-trixie}
	runtime="of Debian $suite"
	command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
		fail "the C library of this machine is too old for it, and without apt no newer one can be had"
	if [ ! -e "$dir/lib/ld-linux-x86-64.so.2" ]; then
		mirror=${ORIGINAL_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
			grep -v security | grep 'debian/\?$' | sed -n 1p || true)}
		[ -n "$mirror" ] || fail "no Debian mirror in the apt sources of this machine: set ORIGINAL_MIRROR"
		# An apt of its own, with its own lists and an empty idea of what is installed, but the machine's proxies.
		apt=$dir/work/apt
		mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/none"
		: >"$apt/status"
		cat >"$apt/debian.sources" <<-SOURCES
			Types: deb
			URIs: $mirror
			Suites: $suite
			Components: main
			Architectures: amd64
			Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
		SOURCES
		apt-config dump | grep '^Acquire::' >"$apt/apt.conf" || true
		cat >>"$apt/apt.conf" <<-CONF
			Dir::Etc::Main "/dev/null";
			Dir::Etc::Parts "$apt/none";
			Dir::Etc::PreferencesParts "$apt/none";
			Dir::Etc::SourceParts "$apt/none";
			Dir::Etc::SourceList "$apt/debian.sources";
			Dir::State::Status "$apt/status";
			Dir::State::Lists "$apt/lists";
			Dir::Cache "$apt/cache";
			APT::Sandbox::User "";
		CONF
		APT_CONFIG=$apt/apt.conf apt-get -qq update
		rm -f ./*.deb
		APT_CONFIG=$apt/apt.conf apt-get -qq download libc6 libstdc++6 libgcc-s1 libgomp1
		rm -rf root
		for package in ./*.deb; do dpkg-deb -x "$package" root; done
		cp -L root/usr/lib/x86_64-linux-gnu/lib*.so.[0-9] "$dir/lib/"
		cp -L root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 "$dir/lib/"
		rm -rf root "$apt" ./*.deb
	fi
	cat >"$dir/run" <<-'SH'
		#!/bin/sh
		here=$(cd "$(dirname "$0")" && pwd)
		program=$(command -v "$1") || exit 127
		shift
		exec "$here/lib/ld-linux-x86-64.so.2" --library-path "$here/lib:$here/nocuda" "$program" "$@"
	SH
fi
loads || { "$dir/run" "$dir/loads" "$dir/lib/libpccl.so" || true; fail "the library does not load"; }
echo "PCCL $version with the C library $runtime" >"$dir/ready"
cat "$dir/ready"
