package reduce

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// meter counts the payload bytes of a stream of frames.
type meter struct {
	head    []byte
	left    int // of the current payload
	payload int64
}

func (m *meter) feed(b []byte) {
	for len(b) > 0 {
		if m.left > 0 {
			n := min(m.left, len(b))
			m.left -= n
			m.payload += int64(n)
			b = b[n:]
			continue
		}
		n := min(transport.HeaderSize-len(m.head), len(b))
		m.head = append(slices.Clone(m.head), b[:n]...)
		b = b[n:]
		if len(m.head) == transport.HeaderSize {
			size, _, _, err := wire.ParseFrameHeader((*[transport.HeaderSize]byte)(m.head))
			if err != nil {
				panic(err)
			}
			m.left, m.head = size, nil
		}
	}
}

// ledger is what one rank has received, and handed to its connection.
type ledger struct {
	mu       sync.Mutex
	in, out  meter
	own      int64 // bytes that need nobody else's: of its first step
	overrun  string
	forwards int64
}

func (l *ledger) got(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in.feed(b)
}

// offers checks b, which the rank offers to its connection, and books the n
// bytes that are taken.
func (l *ledger) offers(b []byte, take func() (int, error)) (int, error) {
	l.mu.Lock()
	all := l.out
	all.feed(b)
	if all.payload > l.own+l.in.payload && l.overrun == "" {
		l.overrun = fmt.Sprintf("%d bytes offered, %d of its own and %d received", all.payload, l.own, l.in.payload)
	}
	l.mu.Unlock()
	n, err := take()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out.feed(b[:n])
	l.forwards = max(l.forwards, l.out.payload-l.own)
	return n, err
}

// sendEnd and recvEnd are the ends of connections that keep the ledger.
type sendEnd struct {
	*transporttest.Conn
	l *ledger
}

func (s sendEnd) Write(b []byte) (int, error) {
	return s.l.offers(b, func() (int, error) { return s.Conn.Write(b) })
}

func (s sendEnd) TryWrite(b []byte) (int, error) {
	return s.l.offers(b, func() (int, error) { return s.Conn.TryWrite(b) })
}

type recvEnd struct {
	*transporttest.Conn
	l *ledger
}

func (r recvEnd) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.l.got(b[:n])
	return n, err
}

// A rank sends of a chunk what it has received of it and nothing beyond: what a
// reader publishes is there before the sender may see that it is.
func TestNothingIsSentBeforeItCame(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 23))
	rounds := 12
	if testing.Short() {
		rounds = 5
	}
	var forwarded int64
	for round := range rounds {
		n, count := 2+rng.IntN(4), 1+rng.IntN(60_000)
		ledgers := make([]*ledger, n)
		for i := range ledgers {
			_, length := plan.Chunk(count, n, plan.SendChunk(i, n, 0))
			ledgers[i] = &ledger{own: int64(length) * 4}
		}
		next := 0
		r := newRing(t, shape{
			n: n, cfg: Config{Link: link.Config{FrameBytes: 512 << rng.IntN(8)}},
			link: func(testing.TB) (net.Conn, net.Conn) {
				i := next
				next++
				a, b := transporttest.Pair(transporttest.Options{Buffer: 1 << (9 + rng.IntN(8))})
				return sendEnd{a, ledgers[i]}, recvEnd{b, ledgers[(i+1)%n]}
			},
		})
		r.run(rng, dtype.Float32, dtype.Sum, count, round%2 == 0)
		for i, l := range ledgers {
			require.Empty(t, l.overrun, "rank %d of %d, %d elements", i, n, count) // S4-23
			forwarded += l.forwards
		}
	}
	require.Positive(t, forwarded)
}

// stamped notes when it was first written to.
type stamped struct {
	net.Conn
	first chan time.Time
}

func (s stamped) Write(b []byte) (int, error) {
	select {
	case s.first <- time.Now():
	default:
	}
	return s.Conn.Write(b)
}

// quickStamped takes writes that need not wait, too.
type quickStamped struct{ stamped }

func (s quickStamped) TryWrite(b []byte) (int, error) { return s.Write(b) }

// From the start of an operation to the first write: by whoever starts it, if
// the connection takes it at once, else by the connection's sender, a goroutine
// or an operating system thread that platform.Parker has put to sleep.
func BenchmarkEnqueueToWrite(b *testing.B) {
	for _, c := range []struct {
		name    string
		quick   bool
		threads link.Threads
	}{{"caller", true, link.Goroutines}, {"goroutine", false, link.Goroutines}, {"parked thread", false, link.Pinned}} {
		b.Run(c.name, func(b *testing.B) {
			first := make(chan time.Time, 1)
			made := 0
			r := newRing(b, shape{n: 2, cfg: Config{Link: link.Config{Threads: c.threads}}, link: func(testing.TB) (net.Conn, net.Conn) {
				x, y := transporttest.Pair(transporttest.Options{})
				s := stamped{x, first}
				if made++; made > 1 {
					s.first = nil // of the first rank only
				}
				if c.quick {
					return quickStamped{s}, y
				}
				return s, y
			}})
			specs := make([]Spec, 2)
			for i := range specs {
				specs[i] = Spec{Count: 64, DType: dtype.Float32, Op: dtype.Sum, Src: make([]byte, 256), Dst: make([]byte, 256)}
			}
			var took []time.Duration
			for b.Loop() {
				for len(first) > 0 {
					<-first
				}
				begin := time.Now()
				r.start(specs).ok(b)
				took = append(took, (<-first).Sub(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
		})
	}
}
