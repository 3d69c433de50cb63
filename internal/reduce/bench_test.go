package reduce

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// bestBackend is what a trainer would get here.
func bestBackend(b *testing.B) backend.Backend {
	k, _, err := backend.Select("auto")
	if err != nil {
		b.Fatal(err)
	}
	return k
}

// The rate counts the bytes that each rank sends: 2(n-1)/n of the buffer.
func BenchmarkRing(b *testing.B) {
	for _, n := range []int{2, 4} {
		for _, bytes := range []int{4 << 10, 400 << 10, 64 << 20} {
			for _, frame := range []int{256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20} {
				if bytes < 64<<20 && frame != 256<<10 {
					continue
				}
				for _, inPlace := range []bool{false, true} {
					b.Run(fmt.Sprintf("n%d/%dKiB/frame%dKiB/inplace=%v", n, bytes>>10, frame>>10, inPlace), func(b *testing.B) {
						r := newRing(b, shape{n: n, native: true, knows: true, link: loopback, cfg: Config{Backend: bestBackend(b), Link: link.Config{FrameBytes: frame}}})
						rng := rand.New(rand.NewPCG(1, 2))
						specs, _ := r.specs(rng, dtype.Float32, dtype.Sum, bytes/4, inPlace)
						r.start(specs).ok(b)
						b.SetBytes(int64(bytes) * 2 * int64(n-1) / int64(n))
						b.ReportAllocs()
						before := cpuSeconds()
						for b.Loop() {
							r.start(specs).ok(b)
						}
						b.ReportMetric((cpuSeconds()-before)/float64(b.N)*1e3, "cpu-ms/op")
					})
				}
			}
		}
	}
}

// The floor: the same number of bytes both ways between two processes' worth
// of goroutines, without arithmetic.
func BenchmarkFloor(b *testing.B) {
	const bytes = 64 << 20
	var conns [2][2]net.Conn // [rank]{send, recv}
	a, z := loopback(b)
	conns[0][0], conns[1][1] = a, z
	a, z = loopback(b)
	conns[1][0], conns[0][1] = a, z
	src := [2][]byte{make([]byte, bytes), make([]byte, bytes)}
	dst := [2][]byte{make([]byte, bytes), make([]byte, bytes)}
	b.SetBytes(bytes)
	before := cpuSeconds()
	for b.Loop() {
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Add(2)
			go func() {
				defer wg.Done()
				for o := 0; o < bytes; o += 256 << 10 {
					conns[i][0].Write(src[i][o : o+256<<10])
				}
			}()
			go func() {
				defer wg.Done()
				io.ReadFull(conns[i][1], dst[i])
			}()
		}
		wg.Wait()
	}
	b.ReportMetric((cpuSeconds()-before)/float64(b.N)*1e3, "cpu-ms/op")
	for i := range 2 {
		conns[i][0].Close()
		conns[i][1].Close()
	}
}

// What an operation takes that succeeds, from its start to the last done of all
// ranks, and one that cannot move, from the abort to the last done with all
// buffers restored: the error path has to be as fast as the other one.
func BenchmarkVerdict(b *testing.B) {
	for _, name := range []string{"success", "abort"} {
		b.Run(name, func(b *testing.B) {
			r := newRing(b, shape{n: 4, link: memory(transporttest.Options{Buffer: 1 << 20})})
			if name == "abort" {
				for _, links := range r.out {
					links[0].(*transporttest.Conn).Stall(true)
				}
			}
			for b.Loop() {
				b.StopTimer()
				specs := make([]Spec, 4)
				for i := range specs {
					buf := make([]byte, 64<<10)
					specs[i] = Spec{Count: len(buf) / 4, DType: dtype.Float32, Op: dtype.Sum, Src: buf, Dst: buf}
				}
				var s *started
				if name == "success" {
					b.StartTimer()
					s = r.start(specs)
				} else {
					s = r.start(specs)
					b.StartTimer()
					for _, op := range s.ops {
						op.Abort(errTest)
					}
				}
				s.wait(b)
				for _, op := range s.ops {
					op.Finish(name == "abort")
				}
			}
		})
	}
}
