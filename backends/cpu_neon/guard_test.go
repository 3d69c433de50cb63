//go:build arm64 && !noasm

package cpuneon

import (
	"fmt"
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/fenced"
)

// No kernel touches a byte before or behind its operands.
func TestGuardPages(t *testing.T) {
	dst, a, b := fenced.Memory(t, 1), fenced.Memory(t, 1), fenced.Memory(t, 1)
	v := here()
	for typ := range dtype.Type(dtype.NumTypes) {
		t.Run(fmt.Sprint(typ), func(*testing.T) {
			for n := 0; n <= 160; n += typ.Size() {
				end := len(dst) - n
				for op := dtype.Sum; op < dtype.NumOps; op++ {
					v.Reduce(typ, op, dst[:n], a[:n], b[:n])
					v.Reduce(typ, op, dst[end:], a[end:], b[end:])
				}
				for _, world := range []int{2, 3} {
					v.Finalize(typ, dst[:n], world)
					v.Finalize(typ, dst[end:], world)
				}
			}
		})
	}
}
