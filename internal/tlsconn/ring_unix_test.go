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

// extent is how large the arrays of a ring are, in bytes.
type extent struct{ bytes, frame int }

var (
	long  = extent{64 << 20, 64 << 10}
	short = extent{400000, 200000} // a half is one frame, as in an all-reduce
)

// half returns the frames of half of the array.
func (x extent) half() int { return x.bytes / 2 / x.frame }

// end is one peer of a ring of two: it sends one half of its array, adds what
// comes to the other half, and sends that on.
type end struct {
	extent
	out, in net.Conn
	data    []float32
	got     []byte // a frame

	mu    sync.Mutex
	cond  sync.Cond
	ready int // frames of the second half that are finished
}

func newEnd(out, in net.Conn, x extent) *end {
	e := &end{extent: x, out: out, in: in, data: make([]float32, x.bytes/4), got: make([]byte, x.frame)}
	e.cond.L = &e.mu
	return e
}

func (e *end) place(first, i int) []byte {
	at := ((first*e.half() + i) % (2 * e.half())) * e.frame / 4
	return unsafe.Slice((*byte)(unsafe.Pointer(&e.data[at])), e.frame)
}

// send sends half first, and the other one as it is finished.
func (e *end) send(first int) error {
	w := transport.NonBlocking(e.out).(transport.VecWriter)
	var heads [8][transport.HeaderSize]byte
	vec := make([][]byte, 0, 16)
	half := e.half()
	for i := 0; i < 2*half; {
		till := half
		if i >= half {
			e.mu.Lock()
			for half+e.ready == i {
				e.cond.Wait()
			}
			till = half + e.ready
			e.mu.Unlock()
		}
		vec = vec[:0]
		for j := 0; j < len(heads) && i < till; j++ {
			transport.Header{Payload: e.frame, Stream: uint64(i)}.Put(&heads[j])
			vec = append(vec, heads[j][:], e.place(first, i))
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
	half := e.half()
	for i := range 2 * half {
		if _, err := rd.Next(); err != nil {
			return err
		}
		sum := i < half
		to := e.place(1-first, i)
		if sum {
			to = e.got
		}
		for n := 0; n < e.frame; {
			k, err := rd.Payload(to[n:])
			if err != nil {
				return err
			}
			n += k
		}
		if !sum {
			continue
		}
		at := ((1-first)*half + i) * e.frame / 4
		add := unsafe.Slice((*float32)(unsafe.Pointer(&e.got[0])), e.frame/4)
		for j, v := range e.data[at : at+e.frame/4] {
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

func ring(t testing.TB, x extent, pair func(testing.TB) (a, b net.Conn)) [2]*end {
	a, b := pair(t)
	c, d := pair(t)
	return [2]*end{newEnd(a, d, x), newEnd(c, b, x)}
}

// The rings of the benchmarks compute sums.
func TestRing(t *testing.T) {
	for _, x := range []extent{long, short} {
		sums(t, x)
	}
}

func sums(t *testing.T, x extent) {
	for _, k := range kinds {
		ends := ring(t, x, k.pair)
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
			ends := ring(b, long, k.pair)
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
			b.ReportMetric((processor()-began)/(float64(4*long.bytes)*float64(b.N)/1e9), "cpu-s/GB")
		})
	}
}
