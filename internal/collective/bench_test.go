package collective

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/plan"

	_ "github.com/gopccl/gopccl/backends/defaults"
)

// benchTask makes a task of bytes in all, equal blocks and float32.
func benchTask(w *world, kind plan.Kind, bytes int) *task {
	n := w.shape.n
	k := &task{kind: kind, dt: dtype.Float32, op: dtype.Sum}
	for range n {
		k.counts = append(k.counts, bytes/4/n)
	}
	k.pairs = slices.Repeat([][]int{k.counts}, n)
	for i := range n {
		k.pairs[i] = k.counts
	}
	return k.fill(w, rand.New(rand.NewPCG(1, 1)))
}

func fastest(b *testing.B) backend.Backend {
	k, _, err := backend.Select("auto")
	require.NoError(b, err)
	return k
}

// BenchmarkCollectives is each kind over loopback, all members in one process. Compare
// with BenchmarkFloor.
func BenchmarkCollectives(b *testing.B) {
	eachBench(b, func(b *testing.B, kind plan.Kind, n, bytes int, mesh bool) {
		w := newWorld(b, shape{n: n, mesh: mesh, link: loopback, cfg: Config{Backend: fastest(b)}})
		k := benchTask(w, kind, bytes)
		b.SetBytes(int64(bytes))
		for b.Loop() {
			s := w.start(k.specs)
			s.ok(b)
			s.finish(false)
		}
		b.StopTimer()
		w.close()
	})
}

func eachBench(b *testing.B, f func(b *testing.B, kind plan.Kind, n, bytes int, mesh bool)) {
	for _, kind := range allKinds {
		for _, n := range []int{2, 4} {
			for _, bytes := range []int{400_000, 64 << 20} {
				for _, mesh := range []bool{false, true} {
					if mesh != kind.Direct() && kind != plan.AllReduce {
						continue
					}
					b.Run(fmt.Sprintf("%v/world=%d/bytes=%d/mesh=%v", kind, n, bytes, mesh), func(b *testing.B) { f(b, kind, n, bytes, mesh) })
				}
			}
		}
	}
}

// BenchmarkFloor moves the same lanes with plain sockets: a goroutine for each end of a
// lane, calls of 256 KiB, and nothing else but the additions.
func BenchmarkFloor(b *testing.B) {
	eachBench(b, func(b *testing.B, kind plan.Kind, n, bytes int, mesh bool) {
		w := newWorld(b, shape{n: 1, cfg: Config{Backend: fastest(b)}})
		w.shape.n, w.shape.mesh = n, mesh
		w.ids, w.shape.order = nil, nil
		for i := range n {
			w.ids, w.shape.order = append(w.ids, uuid(i)), append(w.shape.order, i)
		}
		k := benchTask(w, kind, bytes)
		conns := map[[2]int][2]net.Conn{}
		var members []*floor
		for i := range n {
			op, err := w.eng[0].New(k.specs[i])
			require.NoError(b, err)
			require.NoError(b, op.enter(Start{Members: w.ids, Ring: w.ids, Self: w.ids[i], Mesh: mesh}))
			op.mem.temp.get(op.e)
			m := &floor{op: op, me: i, conns: conns}
			m.moved = sync.NewCond(&m.mu)
			members = append(members, m)
			for _, l := range op.outs {
				out, in := loopback(b)
				conns[[2]int{i, slices.Index(w.ids, l.peer)}] = [2]net.Conn{out, in}
			}
		}
		b.SetBytes(int64(bytes))
		for b.Loop() {
			var wg sync.WaitGroup
			for _, m := range members {
				m.begin(&wg)
			}
			wg.Wait()
		}
		b.StopTimer()
		for _, c := range conns {
			c[0].Close()
			c[1].Close()
		}
		for _, m := range members {
			m.op.state = ended
			m.op.Finish(false)
		}
	})
}

// floor is one member of the plain program.
type floor struct {
	op    *Operation
	me    int
	conns map[[2]int][2]net.Conn
	mu    sync.Mutex
	moved *sync.Cond
	pos   map[*segment]int
}

func (m *floor) begin(wg *sync.WaitGroup) {
	m.pos = map[*segment]int{}
	at := func(l *inLane) int { return slices.Index(m.op.members, l.peer) }
	for _, l := range m.op.ins {
		wg.Go(func() { m.receive(l, m.conns[[2]int{at(l), m.me}][1]) })
	}
	for _, l := range m.op.outs {
		wg.Go(func() { m.send(l, m.conns[[2]int{m.me, slices.Index(m.op.members, l.peer)}][0]) })
	}
	if m.op.copies() {
		wg.Go(func() { m.op.copyParts(m.op.chunks[m.op.own]) })
	}
}

func (m *floor) await(s *step, pos int) {
	if s == nil {
		return
	}
	m.mu.Lock()
	for m.pos[s.segment()] < pos {
		m.moved.Wait()
	}
	m.mu.Unlock()
}

func (m *floor) receive(l *inLane, c net.Conn) {
	buf := make([]byte, partBytes)
	for k := range l.segs {
		s := &l.segs[k]
		for off := 0; off < s.size; off += partBytes {
			n := min(partBytes, s.size-off)
			if s.do == plan.Set {
				io.ReadFull(c, m.op.bytesAt(s.at, off, n))
			} else {
				io.ReadFull(c, buf[:n])
				m.await(s.after, off+n)
				m.op.combine(s, off, buf[:n])
			}
			m.mu.Lock()
			m.pos[s] = off + n
			m.moved.Broadcast()
			m.mu.Unlock()
		}
	}
}

func (m *floor) send(l *outLane, c net.Conn) {
	for k := range l.segs {
		s := &l.segs[k]
		for off := 0; off < s.size; off += partBytes {
			n := min(partBytes, s.size-off)
			m.await(s.after, off+n)
			c.Write(m.op.bytesAt(s.at, off, n))
		}
	}
}
