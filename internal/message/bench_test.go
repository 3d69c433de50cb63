package message

import (
	"fmt"
	"testing"

	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// BenchmarkMessages has one message after another go from one member to the other.
func BenchmarkMessages(b *testing.B) {
	for _, n := range []int{8, 64 << 10, 4 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newWorld(b, 2, transporttest.Options{Buffer: 1 << 20})
			data, got := pattern(n, 1), make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				r := w.recv(1, 0, 1, got)
				s := w.send(0, 1, 1, data)
				<-r.Done()
				<-s.Done()
			}
		})
	}
}
