package ptxtest

// kind is a fundamental type of PTX.
type kind uint8

const (
	noKind kind = iota
	b8
	b16
	b32
	b64
	u8
	u16
	u32
	u64
	s8
	s16
	s32
	s64
	f16
	f32
	f64
	pred
)

var kinds = map[string]kind{
	"b8": b8, "b16": b16, "b32": b32, "b64": b64,
	"u8": u8, "u16": u16, "u32": u32, "u64": u64,
	"s8": s8, "s16": s16, "s32": s32, "s64": s64,
	"f16": f16, "f32": f32, "f64": f64, "pred": pred,
}

// bytes is the size of a value in memory.
func (k kind) bytes() int {
	switch k {
	case b8, u8, s8, pred:
		return 1
	case b16, u16, s16, f16:
		return 2
	case b32, u32, s32, f32:
		return 4
	}
	return 8
}

func (k kind) signed() bool { return k >= s8 && k <= s64 }
func (k kind) float() bool  { return k >= f16 && k <= f64 }

// int is the kind of the untyped bits read as signed or unsigned integers.
func (k kind) int(signed bool) kind {
	var at kind
	switch k.bytes() {
	case 2:
		at = 1
	case 4:
		at = 2
	case 8:
		at = 3
	}
	if signed {
		return s8 + at
	}
	return u8 + at
}

func (k kind) String() string {
	for name, v := range kinds {
		if v == k {
			return name
		}
	}
	return "?"
}
