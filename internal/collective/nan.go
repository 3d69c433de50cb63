package collective

import (
	"encoding/binary"

	"github.com/gopccl/gopccl/core/dtype"
)

// oneNaN makes every NaN among elements of type t, little-endian, the same one: quiet, positive
// and without any other bit (docs/spec/extensions.md, "Two members").
func oneNaN(t dtype.Type, b []byte) {
	switch t {
	case dtype.Float16:
		oneNaN16(b, 0x7c00, 0x7e00)
	case dtype.BFloat16:
		oneNaN16(b, 0x7f80, 0x7fc0)
	case dtype.Float32:
		for ; len(b) >= 4; b = b[4:] {
			if binary.LittleEndian.Uint32(b)&^(1<<31) > 0x7f80_0000 {
				binary.LittleEndian.PutUint32(b, 0x7fc0_0000)
			}
		}
	case dtype.Float64:
		for ; len(b) >= 8; b = b[8:] {
			if binary.LittleEndian.Uint64(b)&^(1<<63) > 0x7ff0_0000_0000_0000 {
				binary.LittleEndian.PutUint64(b, 0x7ff8_0000_0000_0000)
			}
		}
	}
}

// oneNaN16 is oneNaN of a type of 16 bits with this infinity.
func oneNaN16(b []byte, infinity, nan uint16) {
	for ; len(b) >= 2; b = b[2:] {
		if binary.LittleEndian.Uint16(b)&^(1<<15) > infinity {
			binary.LittleEndian.PutUint16(b, nan)
		}
	}
}
