package digest

import (
	"fmt"

	"github.com/gopccl/gopccl/core/errs"
)

// recorded are hashes that compiled PCCL 1.0.0 gave, of buffers whose byte i is
// i*131 + 7*n: lengths with every kind of end, one block, several, the most, and
// blocks that are longer than the others.
var recorded = []struct {
	n           int
	simple, crc uint32
}{
	{0, 0x00000000, 0x00000000},
	{1, 0xe54b6b05, 0x86b737ba},
	{3, 0x14185805, 0xfb9c4c00},
	{4, 0xf7f4ef4b, 0x54358adc},
	{15, 0x656c7539, 0xc3f3e018},
	{16, 0xa5a01f9f, 0xb8dd0991},
	{17, 0x11abf352, 0x23570e79},
	{70, 0xfd12240a, 0xbacc3eea},
	{255, 0x9c20747a, 0x3f8a548a},
	{513, 0x88c2fd05, 0x1b7f600c},
	{4080, 0x02a2c630, 0x82d40f65},
	{4095, 0x0c4b7651, 0x1c0b5e0c},
	{4096, 0x8225e625, 0x0697e612},
	{4113, 0xd45ba071, 0x58d9128d},
	{8193, 0x6ef6903d, 0x723d8662},
	{12301, 0x0f8a0606, 0x3ae6f424},
	{65551, 0x62251ce7, 0x1ed80874},
	{1048591, 0xcce4b371, 0x720365a8},
	{3936271, 0x827d86cf, 0x2efdef8c},
}

// Check computes recorded values with h and returns what differs, with ErrWrong in
// the chain. A panic of h is an error, too. It takes some milliseconds; a hasher
// that passes is right or nearly so, and digesttest.Run is the whole proof.
func Check(h Hasher) (err error) {
	defer errs.Catch("check hasher", func(crash *errs.Error) { err = crash })
	for _, v := range recorded {
		offsets := []int{0}
		if v.n < 1<<16 {
			offsets = []int{0, 1, 6}
		}
		for _, offset := range offsets {
			b := linear(v.n, offset)
			if got := h.SimpleHash(b); got != v.simple {
				return wrong("SimpleHash", v.n, got, v.simple)
			}
			if got := h.CRC32C(b); got != v.crc {
				return wrong("CRC-32C", v.n, got, v.crc)
			}
			s := simple{h}
			if n := s.parts(v.n); n > 1 {
				parts := make([]uint32, n)
				for i := range parts {
					parts[i] = s.part(b, i)
				}
				if got := s.join(b, parts); got != v.simple {
					return wrong("SimpleHash by blocks", v.n, got, v.simple)
				}
			}
		}
	}
	return nil
}

func wrong(hash string, n int, got, want uint32) error {
	return fmt.Errorf("%w: %s of %d bytes is %08x, want %08x", ErrWrong, hash, n, got, want)
}

// linear returns the buffer of n bytes that the recorded values are of, at an
// address that is offset above that of an allocation.
func linear(n, offset int) []byte {
	b := make([]byte, offset+n)[offset:]
	for i := range min(n, 256) {
		b[i] = byte(i*131 + 7*n)
	}
	for done := 256; done < n; done *= 2 { // it repeats itself
		copy(b[done:], b[:done])
	}
	return b
}
