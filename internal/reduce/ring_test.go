package reduce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/gopccl/gopccl/backends/cpu_generic"
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// With GOPCCL_TEST_THREADS=pinned all tests run on pinned threads.
func TestMain(m *testing.M) {
	if os.Getenv("GOPCCL_TEST_THREADS") == "pinned" {
		testThreads = link.Pinned
	}
	goleak.VerifyTestMain(m)
}

var testThreads link.Threads

// newEngine returns an engine on the threads of this run of the tests.
func newEngine(cfg Config) *Engine {
	if cfg.Link.Threads == 0 {
		cfg.Link.Threads = testThreads
	}
	return NewEngine(cfg)
}

// ring is a world of engines in one process, each connected to its next one.
type ring struct {
	t     testing.TB
	ids   []wire.UUID
	eng   []*Engine
	out   [][]net.Conn // [rank][number]: the sending end towards rank+1
	in    [][]net.Conn // the receiving end at rank+1 of the same connections
	seq   uint64
	shape shape
}

type shape struct {
	n      int
	pool   int
	cfg    Config
	native bool // what Start is told
	knows  bool // what AddSender is told
	flows  bool // what AddSender is told
	ahead  bool // what AddSender is told
	vary   func(rank int, c *Config, pool *int)
	link   func(t testing.TB) (send, recv net.Conn)
}

// lastEpoch is the last one that engines of tests are told to expect.
const lastEpoch = 100

func uuid(i int) wire.UUID {
	var u wire.UUID
	binary.BigEndian.PutUint64(u[:], uint64(i)+1)
	return u
}

func memory(o transporttest.Options) func(testing.TB) (net.Conn, net.Conn) {
	return func(testing.TB) (net.Conn, net.Conn) {
		a, b := transporttest.Pair(o)
		return a, b
	}
}

func loopback(t testing.TB) (net.Conn, net.Conn) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	send, err := net.Dial("tcp4", ln.Addr().String())
	require.NoError(t, err)
	recv, err := ln.Accept()
	require.NoError(t, err)
	cubic(send)
	cubic(recv)
	return send, recv
}

func newRing(t testing.TB, s shape) *ring {
	if s.pool == 0 {
		s.pool = 1
	}
	if s.link == nil {
		s.link = memory(transporttest.Options{})
	}
	if s.cfg.Backend == nil {
		s.cfg.Backend = generic(t)
	}
	r := &ring{t: t, shape: s, out: make([][]net.Conn, s.n), in: make([][]net.Conn, s.n)}
	for i := range s.n {
		r.ids = append(r.ids, uuid(i))
		cfg := s.cfg
		cfg.Link.Stats, cfg.Link.Pool = nil, nil
		if s.vary != nil {
			s.vary(i, &cfg, new(int))
		}
		r.eng = append(r.eng, newEngine(cfg))
	}
	for _, e := range r.eng {
		e.hub.Trust(r.ids...)
		e.ExpectEpoch(lastEpoch)
	}
	for i := range s.n {
		r.connect(i)
	}
	t.Cleanup(r.close)
	return r
}

// connect makes the pool from rank i to the next one anew.
func (r *ring) connect(i int) {
	next := (i + 1) % r.shape.n
	r.out[i], r.in[i] = nil, nil
	pool := r.shape.pool
	if r.shape.vary != nil {
		r.shape.vary(i, &Config{}, &pool)
	}
	for k := range pool {
		a, b := r.shape.link(r.t)
		r.eng[next].hub.AddReceiver(r.ids[i], uint32(k), b)
		r.eng[i].hub.AddSender(r.ids[next], uint32(k), a, link.Features{Native: r.shape.knows, Flows: r.shape.flows, Ahead: r.shape.ahead})
		r.out[i], r.in[i] = append(r.out[i], a), append(r.in[i], b)
	}
}

func (r *ring) close() {
	var wg sync.WaitGroup
	for _, e := range r.eng {
		wg.Add(1)
		go func() { defer wg.Done(); e.Close() }()
	}
	wg.Wait()
}

func generic(t testing.TB) backend.Backend {
	b, _, err := backend.Select("cpu_generic")
	require.NoError(t, err)
	return b
}

// started is one operation of all ranks.
type started struct {
	ops  []*Op
	errs []chan error
}

// start begins one operation on every rank; specs by rank.
func (r *ring) start(specs []Spec) *started {
	r.seq++
	s := &started{}
	for i, spec := range specs {
		op, err := r.eng[i].NewOp(spec)
		require.NoError(r.t, err)
		c := make(chan error, 2)
		s.ops, s.errs = append(s.ops, op), append(s.errs, c)
		op.Start(Start{Seq: r.seq, Ring: r.ids, Self: r.ids[i], Native: r.shape.native, Done: func(err error) { c <- err }})
	}
	return s
}

const patience = 60 * time.Second

// wait returns the verdicts of all ranks.
func (s *started) wait(t testing.TB) []error {
	t.Helper()
	var out []error
	for i, c := range s.errs {
		select {
		case err := <-c:
			out = append(out, err)
		case <-time.After(patience):
			for k, op := range s.ops {
				t.Logf("rank %d: %+v", k, op.State())
			}
			t.Fatalf("rank %d: done was not called", i)
		}
	}
	return out
}

func (s *started) ok(t testing.TB) {
	t.Helper()
	for i, err := range s.wait(t) {
		require.NoError(t, err, "rank %d", i)
	}
	for _, op := range s.ops {
		op.Finish(false)
	}
}

// content fills buffers with values that make order and rounding visible.
func content(rng *rand.Rand, dt dtype.Type, count int) []byte {
	b := make([]byte, count*dt.Size())
	switch dt {
	case dtype.Float32:
		v := dtype.View[float32](b)
		for i := range v {
			v[i] = float32(rng.NormFloat64() * 1e3)
		}
	case dtype.Float64:
		v := dtype.View[float64](b)
		for i := range v {
			v[i] = rng.NormFloat64() * 1e9
		}
	case dtype.Float16:
		v := dtype.View[uint16](b)
		for i := range v {
			v[i] = dtype.Float16FromFloat32(float32(rng.NormFloat64()))
		}
	case dtype.BFloat16:
		v := dtype.View[uint16](b)
		for i := range v {
			v[i] = dtype.BFloat16FromFloat32(float32(rng.NormFloat64()))
		}
	default:
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	}
	return b
}

// oracle reduces the sources by the letter of the data spec, section 2.2: chunk
// c is combined in the order c, c+1, ..., each hop `local op received`.
func oracle(b backend.Backend, dt dtype.Type, how dtype.Op, src [][]byte) []byte {
	n, size := len(src), dt.Size()
	count := len(src[0]) / size
	out := make([]byte, len(src[0]))
	for c := range n {
		base, rem := count/n, count%n
		first, length := c*base+min(c, rem), base
		if c < rem {
			length++
		}
		acc := append([]byte(nil), src[c][first*size:(first+length)*size]...)
		for k := 1; k < n; k++ {
			local := append([]byte(nil), src[(c+k)%n][first*size:(first+length)*size]...)
			b.Reduce(dt, how, local, local, acc)
			acc = local
		}
		copy(out[first*size:], acc)
	}
	if how == dtype.Avg {
		b.Finalize(dt, out, n)
	}
	return out
}

// run does one all-reduce on all ranks and compares with the oracle.
func (r *ring) run(rng *rand.Rand, dt dtype.Type, how dtype.Op, count int, inPlace bool) {
	r.t.Helper()
	specs, want := r.specs(rng, dt, how, count, inPlace)
	var keep [][]byte
	for _, s := range specs {
		keep = append(keep, append([]byte(nil), s.Src...))
	}
	r.start(specs).ok(r.t)
	for i, s := range specs {
		require.Equal(r.t, want, s.Dst, "rank %d of %d: %v %v of %d", i, r.shape.n, how, dt, count)
		if !inPlace {
			require.Equal(r.t, keep[i], s.Src, "the source was written")
		}
	}
}

func (r *ring) specs(rng *rand.Rand, dt dtype.Type, how dtype.Op, count int, inPlace bool) ([]Spec, []byte) {
	var src [][]byte
	var specs []Spec
	for range r.shape.n {
		b := content(rng, dt, count)
		src = append(src, b)
		s := Spec{Tag: 5, Count: count, DType: dt, Op: how, Src: b, Dst: b}
		if !inPlace {
			s.Dst = make([]byte, len(b))
		}
		specs = append(specs, s)
	}
	return specs, oracle(r.shape.cfg.Backend, dt, how, src)
}

var allOps = []dtype.Op{dtype.Sum, dtype.Avg, dtype.Prod, dtype.Max, dtype.Min}

var errTest = errors.New("the test gave up")

func name(format string, args ...any) string { return fmt.Sprintf(format, args...) }
