//go:build amd64 && !noasm

package cpuavx

import (
	"fmt"
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/fenced"
)

// No kernel touches a byte before or behind its operands.
func TestGuardPages(t *testing.T) {
	dst, a, b := fenced.Memory(t, 1), fenced.Memory(t, 1), fenced.Memory(t, 1)
	for _, v := range here(t) {
		for typ := range dtype.Type(dtype.NumTypes) {
			t.Run(fmt.Sprint(v.Level.Name, "/", typ), func(*testing.T) {
				for n := 0; n <= 520; n += typ.Size() {
					end := len(dst) - n
					for op := dtype.Sum; op < dtype.NumOps; op++ {
						v.Reduce(typ, op, dst[:n], a[:n], b[:n])
						v.Reduce(typ, op, dst[end:], a[end:], b[end:])
					}
					v.Finalize(typ, dst[:n], 3)
					v.Finalize(typ, dst[end:], 3)
				}
			})
		}
	}
}
