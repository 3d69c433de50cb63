package digest

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C returns the CRC-32C of b (hashes, section 2), with the instructions
// of the CPU where it has them.
func CRC32C(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// UpdateCRC32C returns the CRC-32C of what sum is that of, followed by b; 0 is
// that of nothing.
func UpdateCRC32C(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

// crcPoly is the reflected Castagnoli polynomial without its highest term.
const crcPoly = 0x82f63b78

// crcMul multiplies two polynomials modulo the CRC's; bit 31 is x^0.
func crcMul(a, b uint32) uint32 {
	var p uint32
	for m := uint32(1) << 31; m != 0; m >>= 1 {
		if a&m != 0 {
			p ^= b
		}
		b = b>>1 ^ crcPoly&-(b&1)
	}
	return p
}

// crcShift returns x^(8n) modulo the CRC's polynomial: what n more bytes
// multiply a CRC by.
func crcShift(n int) uint32 {
	p, square := uint32(1)<<31, uint32(1)<<23 // x^0 and x^8
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			p = crcMul(p, square)
		}
		square = crcMul(square, square)
	}
	return p
}
