#!/usr/bin/env bash
# Installs what the tests need beyond Go, on Debian and its relatives. Does nothing if all is there.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)" = Linux ] || {
	echo "install: not Linux; the race detector needs a C compiler, the rest of the tools is used on Linux only"
	exit 0
}

# One line per need: what to look for, and the Debian package that has it.
missing=()
need() {
	local package=$1
	shift
	local thing
	for thing in "$@"; do
		if command -v "$thing" >/dev/null 2>&1 || [ -e "$thing" ]; then return; fi
	done
	missing+=("$package")
}
need git git
need gcc gcc
need g++ g++
need libc6-dev /usr/include/stdlib.h
need ca-certificates /etc/ssl/certs/ca-certificates.crt
need python3 python3
python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
python3 -c 'import ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
need iproute2 ip
need glpk-utils glpsol cbc
need etcd-server etcd
if [ "$(uname -m)" = x86_64 ]; then
	need qemu-user-static qemu-aarch64-static qemu-aarch64
	need wine64 wine64 /usr/lib/wine/wine64 wine
	need gcc-mingw-w64-x86-64-win32 x86_64-w64-mingw32-gcc
fi
[ ${#missing[@]} -eq 0 ] && exit 0

command -v apt-get >/dev/null || fail "needs ${missing[*]} (Debian's names); install them and try again"
root=()
if [ "$(id -u)" != 0 ]; then
	sudo -n true 2>/dev/null || fail "needs root or sudo to install ${missing[*]}"
	root=(sudo -n)
fi
echo "install: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for try in 1 2 3; do
	if "${root[@]}" apt-get update -qq >"$log" 2>&1 &&
		"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
		exit 0
	fi
	echo "install: attempt $try failed" >&2
done
tail -n 20 "$log" >&2
fail "could not install ${missing[*]}"
