package wire

import (
	"encoding/binary"
	"math"
	"net/netip"
)

// Primitive encodings of control spec, section 2: everything big-endian.

func putU64(b []byte, v uint64) { binary.BigEndian.PutUint64(b, v) }

func appendU16(dst []byte, v uint16) []byte { return binary.BigEndian.AppendUint16(dst, v) }
func appendU32(dst []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(dst, v) }
func appendU64(dst []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(dst, v) }

func appendF64(dst []byte, v float64) []byte { return appendU64(dst, math.Float64bits(v)) }

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendString(dst []byte, s string) []byte {
	return append(appendU64(dst, uint64(len(s))), s...)
}

func appendStrings(dst []byte, list []string) []byte {
	dst = appendU64(dst, uint64(len(list)))
	for _, s := range list {
		dst = appendString(dst, s)
	}
	return dst
}

func appendUUIDs(dst []byte, list []UUID) []byte {
	dst = appendU64(dst, uint64(len(list)))
	for i := range list {
		dst = append(dst, list[i][:]...)
	}
	return dst
}

func appendAddr(dst []byte, a netip.AddrPort) []byte {
	ip := a.Addr().Unmap()
	if ip.Is6() {
		raw := ip.As16()
		return appendU16(append(append(dst, 0), raw[:]...), a.Port())
	}
	var raw [4]byte
	if ip.Is4() {
		raw = ip.As4()
	}
	return appendU16(append(append(dst, 1), raw[:]...), a.Port())
}

// Smallest encodings of list elements: a count above remaining/size cannot be
// true, so nothing is allocated for it.
const (
	minString     = 8
	minUUID       = 16
	minAddr       = 7
	minStateEntry = minString + 8 + 1 + 8 + 1 + 1
	minEndpoint   = minAddr + minUUID
	minNamed      = minUUID + minString + minAddr
	minBandwidth  = 2*minUUID + minAddr
	minSyncKey    = minString + 8 + 1
	minStateSize  = minString + 8

	minGroupTopology = 4 + 3*8
)

// reader takes primitives off the front of b. After the first field that does
// not fit, short is set and every further field is zero.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if r.short || n > len(r.b) {
		r.short = true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() uint8 {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if v := r.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if v := r.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if v := r.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (r *reader) f64() float64 { return math.Float64frombits(r.u64()) }
func (r *reader) bool() bool   { return r.u8() != 0 }

func (r *reader) uuid() (u UUID) {
	copy(u[:], r.take(len(u)))
	return u
}

// count reads a list count and refuses one that the remaining bytes cannot
// hold with elements of at least elem bytes.
func (r *reader) count(elem int) int {
	n := r.u64()
	if n > uint64(len(r.b)/elem) {
		r.short = true
		return 0
	}
	return int(n)
}

func (r *reader) string() string { return string(r.take(r.count(1))) }

func (r *reader) strings() []string {
	return list(r, minString, (*reader).string)
}

func (r *reader) uuids() []UUID { return list(r, minUUID, (*reader).uuid) }

func (r *reader) addr() netip.AddrPort {
	var ip netip.Addr
	if r.bool() {
		var raw [4]byte
		copy(raw[:], r.take(len(raw)))
		ip = netip.AddrFrom4(raw)
	} else {
		var raw [16]byte
		copy(raw[:], r.take(len(raw)))
		ip = netip.AddrFrom16(raw).Unmap()
	}
	return netip.AddrPortFrom(ip, r.u16())
}

// list reads a u64 count and as many elements of at least elem bytes each. It
// returns nil for an empty list and stops at the first element that does not fit.
func list[T any](r *reader, elem int, next func(*reader) T) []T {
	n := r.count(elem)
	if n == 0 {
		return nil
	}
	out := make([]T, 0, n)
	for range n {
		v := next(r)
		if r.short {
			return nil
		}
		out = append(out, v)
	}
	return out
}
