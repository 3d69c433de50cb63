//go:build unix

package tlsconn_test

import (
	"net"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/internal/transport"
)

const (
	ringBytes = 64 << 20
	frame     = 64 << 10
	halfRing  = ringBytes / 2 / frame // frames of half of the array
)

// end is one peer of a ring of two: it sends one half of its array, adds what
// comes to the other half, and sends that on.
type end struct {
	out, in net.Conn
	data    []float32
	got     []byte // a frame

	mu    sync.Mutex
	cond  sync.Cond
	ready int // frames of the second half that are finished
}

func newEnd(out, in net.Conn) *end {
	e := &end{out: out, in: in, data: make([]float32, ringBytes/4), got: make([]byte, frame)}
	e.cond.L = &e.mu
	return e
}

func (e *end) frame(first, i int) []byte {
	at := ((first*halfRing + i) % (2 * halfRing)) * frame / 4
	return unsafe.Slice((*byte)(unsafe.Pointer(&e.data[at])), frame)
}

// send sends half first, and the other one as it is finished.
func (e *end) send(first int) error {
	w := transport.NonBlocking(e.out).(transport.VecWriter)
	var heads [8][transport.HeaderSize]byte
	vec := make([][]byte, 0, 16)
	for i := 0; i < 2*halfRing; {
		till := halfRing
		if i >= halfRing {
			e.mu.Lock()
			for halfRing+e.ready == i {
				e.cond.Wait()
			}
			till = halfRing + e.ready
			e.mu.Unlock()
		}
		vec = vec[:0]
		for j := 0; j < len(heads) && i < till; j++ {
			transport.Header{Payload: frame, Stream: uint64(i)}.Put(&heads[j])
			vec = append(vec, heads[j][:], e.frame(first, i))
			i++
		}
		if _, err := w.WriteAll(vec); err != nil {
			return err
		}
	}
	return nil
}

func (e *end) receive(first int) error {
	rd := transport.NewReader(transport.Source(e.in), 4<<10)
	for i := range 2 * halfRing {
		if _, err := rd.Next(); err != nil {
			return err
		}
		sum := i < halfRing
		to := e.frame(1-first, i)
		if sum {
			to = e.got
		}
		for n := 0; n < frame; {
			k, err := rd.Payload(to[n:])
			if err != nil {
				return err
			}
			n += k
		}
		if !sum {
			continue
		}
		at := ((1-first)*halfRing + i) * frame / 4
		add := unsafe.Slice((*float32)(unsafe.Pointer(&e.got[0])), frame/4)
		for j, v := range e.data[at : at+frame/4] {
			e.data[at+j] = v + add[j]
		}
		e.mu.Lock()
		e.ready++
		e.mu.Unlock()
		e.cond.Signal()
	}
	return nil
}

// round is one all-reduce.
func round(ends [2]*end) error {
	over := make(chan error, 4)
	for first, e := range ends {
		e.ready = 0
		go func() { over <- e.send(first) }()
		go func() { over <- e.receive(first) }()
	}
	var err error
	for range 4 {
		if e := <-over; err == nil {
			err = e
		}
	}
	return err
}

func processor() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

var kinds = []struct {
	name string
	pair func(testing.TB) (a, b net.Conn)
}{{"plain", func(t testing.TB) (a, b net.Conn) { return sockets(t) }}, {"tls", overSockets}}

func ring(t testing.TB, pair func(testing.TB) (a, b net.Conn)) [2]*end {
	a, b := pair(t)
	c, d := pair(t)
	return [2]*end{newEnd(a, d), newEnd(c, b)}
}

// The ring of the benchmark computes sums.
func TestRing(t *testing.T) {
	for _, k := range kinds {
		ends := ring(t, k.pair)
		for i := range ends {
			for j := range ends[i].data {
				ends[i].data[j] = float32((i+1)*(j%1000)) + 0.5
			}
		}
		require.NoError(t, round(ends), k.name)
		for j := range ends[0].data {
			if want := float32(3*(j%1000)) + 1; ends[0].data[j] != want || ends[1].data[j] != want {
				t.Fatalf("%s: element %d is %v and %v, want %v", k.name, j, ends[0].data[j], ends[1].data[j], want)
			}
		}
	}
}

// BenchmarkRing is an all-reduce of 64 MiB among two peers, in plain and in TLS.
// cpu-s/GB is the processor time for each gigabyte that one end of a connection
// sends or receives; a peer has two ends.
func BenchmarkRing(b *testing.B) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			ends := ring(b, k.pair)
			if err := round(ends); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			began := processor()
			for range b.N {
				if err := round(ends); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			// Two peers with two ends each.
			b.ReportMetric((processor()-began)/(4*ringBytes*float64(b.N)/1e9), "cpu-s/GB")
		})
	}
}
