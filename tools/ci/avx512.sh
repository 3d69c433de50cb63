#!/usr/bin/env bash
# The AVX-512 kernels in Bochs, which emulates a processor that has them. No part of make test: it takes packages of
# Debian 12 (unpacked, not installed) and some minutes to start Linux. Says which types have the bits of plain Go.
. "$(dirname "$0")/common.sh"

root=$cache/avx512
if [ ! -e "$root/complete" ]; then
	mkdir -p "$root/deb"
	kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-6\.1\.[^ ]*\)$/\1/p')
	(cd "$root/deb" && apt-get download bochs bochs-term bochsbios vgabios libsamplerate0 isolinux syslinux-common genisoimage "$kernel") ||
		fail "packages of Debian 12 are missing"
	for deb in "$root"/deb/*.deb; do dpkg -x "$deb" "$root"; done
	touch "$root/complete"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/iso"
CGO_ENABLED=0 go test -c -ldflags="-s -w" -o "$work/test" ./backends/cpu_avx
CGO_ENABLED=0 go build -C tools -ldflags="-s -w" -o "$work/avx512" ./avx512
"$work/avx512" "$work/test" "$work/iso/initrd"
cp "$root"/boot/vmlinuz-* "$work/iso/vmlinuz"
cp "$root/usr/lib/ISOLINUX/isolinux.bin" "$root/usr/lib/syslinux/modules/bios/ldlinux.c32" "$work/iso/"
# Bochs 2.7 gives a wrong size for the compact form of saved registers (XSAVEC, XSAVES), so Linux has to use the other one.
cat >"$work/iso/isolinux.cfg" <<-CONFIG
	DEFAULT test
	LABEL test
	KERNEL vmlinuz
	INITRD initrd
	APPEND console=ttyS0 nokaslr mitigations=off tsc=reliable lpj=100000 loglevel=3 nosmp noxsaves clearcpuid=321,323
CONFIG
"$root/usr/bin/genisoimage" -quiet -o "$work/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$work/iso"
cat >"$work/bochsrc" <<-CONFIG
	plugin_ctrl: unmapped=1, biosdev=1, speaker=0, extfpuirq=1, parallel=0, serial=1
	display_library: rfb, options="timeout=0"
	cpu: model=corei7_skylake_x, ips=100000000, reset_on_triple_fault=0, ignore_bad_msrs=1
	megs: 512
	romimage: file=$root/usr/share/bochs/BIOS-bochs-latest, options=fastboot
	vgaromimage: file=$root/usr/share/vgabios/vgabios.bin
	ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
	ata0-master: type=cdrom, path=$work/boot.iso, status=inserted
	boot: cdrom
	com1: enabled=1, mode=file, dev=$work/console
	clock: sync=none, time0=utc
	log: $work/log
	panic: action=fatal
CONFIG
echo continue >"$work/commands" # this Bochs begins in its debugger
lib=$root/usr/lib/x86_64-linux-gnu
LD_LIBRARY_PATH=$lib LTDL_LIBRARY_PATH=$lib/bochs/plugins BXSHARE=$root/usr/share/bochs \
	timeout "${AVX512_TIMEOUT:-1200}" "$root/usr/bin/bochs-bin" -q -rc "$work/commands" -f "$work/bochsrc" </dev/null >"$work/out" 2>&1 || true
grep -a -E '^ *--- |^ok|RESULT' "$work/console" || true
grep -a -q 'PASS: TestBitsOfPlainGo/AVX512/uint8' "$work/console" && grep -a -q '^RESULT: <nil>' "$work/console" || fail "the kernels failed, or the emulator did; AVX512_TIMEOUT is in seconds"
