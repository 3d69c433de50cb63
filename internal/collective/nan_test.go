package collective

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
)

// Every NaN becomes the same one, and everything else stays what it is: infinities, zeros, and
// integers that have the bits of a NaN.
func TestOneNaN(t *testing.T) {
	for _, c := range []struct {
		t            dtype.Type
		before, want string
	}{
		{dtype.Float16, "01fc007c017cfffffffb007e0080", "007e007c007e007efffb007e0080"},
		{dtype.BFloat16, "81ff807f817fffff7fffc07f0080", "c07f807fc07fc07f7fffc07f0080"},
		{dtype.Float32, "010080ff0000807f0100807fffffffff0000c0ff0000803f00000080", "0000c07f0000807f0000c07f0000c07f0000c07f0000803f00000080"},
		{dtype.Float64, "010000000000f0ff000000000000f07f000000000000f8ff000000000000f03f", "000000000000f87f000000000000f07f000000000000f87f000000000000f03f"},
		{dtype.Int32, "010080ff", "010080ff"},
		{dtype.Uint64, "010000000000f0ff", "010000000000f0ff"},
	} {
		b, err := hex.DecodeString(c.before)
		require.NoError(t, err)
		oneNaN(c.t, b)
		require.Equal(t, c.want, hex.EncodeToString(b), "%v", c.t)
	}
}
