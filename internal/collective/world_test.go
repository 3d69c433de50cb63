package collective

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/gopccl/gopccl/backends/cpu_generic"
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
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

var (
	testThreads link.Threads
	errTest     = errors.New("the test gave up")
)

const patience = 60 * time.Second

// nobody is the room beside this one: no frame is for it.
type nobody struct{}

func (nobody) Route(*link.Receiver, transport.Header, *link.Early) (link.Sink, link.Verdict, error) {
	return nil, link.Drop, nil
}
func (nobody) Wake()                              {}
func (nobody) Connected(*link.Receiver)           {}
func (nobody) SenderLost(*link.Sender, error)     {}
func (nobody) ReceiverLost(*link.Receiver, error) {}
func (nobody) Regrouped(wire.UUID)                {}

// shape is what a world looks like.
type shape struct {
	n     int
	pool  int
	mesh  bool
	order []int   // the ring; nil: as numbered
	ways  [][]int // whom each member is connected with in a mesh; nil: all
	older bool    // members are told of each other that they know no bound before the commence
	frame int
	cfg   Config
	link  func(t testing.TB) (send, recv net.Conn)
	vary  func(member int, c *Config, frame *int)
	hit   func(call int64) // before each frame is routed
}

// world is a group of engines in one process.
type world struct {
	t       testing.TB
	shape   shape
	ids     []wire.UUID // members
	ring    []wire.UUID
	eng     []*Engine
	out, in map[[2]int][]net.Conn // by member from and to: both ends of the same connections
	seq     uint64
	calls   atomic.Int64
}

// lastEpoch is the last one that engines of tests are told to expect.
const lastEpoch = 100

func uuid(i int) wire.UUID {
	var u wire.UUID
	binary.BigEndian.PutUint64(u[:], uint64(i)+1)
	return u
}

func memoryLink(o transporttest.Options) func(testing.TB) (net.Conn, net.Conn) {
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
	return send, recv
}

func generic(t testing.TB) backend.Backend {
	b, _, err := backend.Select("cpu_generic")
	require.NoError(t, err)
	return b
}

func newWorld(t testing.TB, s shape) *world {
	s.pool = max(s.pool, 1)
	if s.link == nil {
		s.link = memoryLink(transporttest.Options{})
	}
	if s.cfg.Backend == nil {
		s.cfg.Backend = generic(t)
	}
	if s.order == nil {
		for i := range s.n {
			s.order = append(s.order, i)
		}
	}
	w := &world{t: t, shape: s, out: map[[2]int][]net.Conn{}, in: map[[2]int][]net.Conn{}}
	for i := range s.n {
		w.ids = append(w.ids, uuid(i))
		cfg, frame := s.cfg, s.frame
		cfg.distant = i%2 == 1
		if s.vary != nil {
			s.vary(i, &cfg, &frame)
		}
		e := NewEngine(link.NewHub(link.Config{FrameBytes: frame, Threads: testThreads}, nobody{}), cfg)
		if s.hit != nil {
			e.hub.Share(mark, &tripwire{next: router{e}, calls: &w.calls, hit: s.hit})
		}
		w.eng = append(w.eng, e)
	}
	for _, m := range s.order {
		w.ring = append(w.ring, w.ids[m])
	}
	for _, e := range w.eng {
		e.hub.Trust(w.ids...)
		e.ExpectEpoch(lastEpoch)
	}
	for k, m := range s.order {
		if !s.mesh && s.n > 1 {
			w.connect(m, s.order[(k+1)%s.n])
		}
		for other := range s.n {
			if s.mesh && other != m && (s.ways == nil || slices.Contains(s.ways[m], other)) {
				w.connect(m, other)
			}
		}
	}
	t.Cleanup(w.close)
	return w
}

// connect makes the pool from one member to another anew.
func (w *world) connect(from, to int) {
	pair := [2]int{from, to}
	w.out[pair], w.in[pair] = nil, nil
	for k := range w.shape.pool {
		a, b := w.shape.link(w.t)
		w.eng[to].hub.AddReceiver(w.ids[from], uint32(k), b)
		w.eng[from].hub.AddSender(w.ids[to], uint32(k), a, link.Features{Native: true, Flows: true, Ahead: !w.shape.older, Spares: !w.shape.older})
		w.out[pair], w.in[pair] = append(w.out[pair], a), append(w.in[pair], b)
	}
}

func (w *world) close() {
	var wg sync.WaitGroup
	for _, e := range w.eng {
		wg.Go(func() {
			e.Close()
			e.hub.Close()
		})
	}
	wg.Wait()
}

// started is one operation of all members.
type started struct {
	ops  []*Operation
	errs []chan error
}

func (w *world) begin(i int, seq uint64, done func(error)) Start {
	return Start{Seq: seq, Epoch: 1, Members: w.ids, Ring: w.ring, Self: w.ids[i], Mesh: w.shape.mesh, Done: done}
}

// start begins one operation on every member.
func (w *world) start(specs []Spec) *started {
	w.seq++
	s := &started{}
	for i, spec := range specs {
		op, err := w.eng[i].New(spec)
		require.NoError(w.t, err)
		c := make(chan error, 2)
		s.ops, s.errs = append(s.ops, op), append(s.errs, c)
		op.Start(w.begin(i, w.seq, func(err error) { c <- err }))
	}
	return s
}

func verdict(t testing.TB, c chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		t.Fatal("done was not called")
		return nil
	}
}

func (s *started) wait(t testing.TB) (list []error) {
	t.Helper()
	for i, c := range s.errs {
		select {
		case err := <-c:
			list = append(list, err)
		case <-time.After(patience):
			t.Fatalf("member %d: done was not called: %+v", i, s.ops[i].State())
		}
	}
	return list
}

func (s *started) ok(t testing.TB) {
	t.Helper()
	for i, err := range s.wait(t) {
		require.NoError(t, err, "member %d", i)
	}
}

func (s *started) finish(restore bool) {
	for _, op := range s.ops {
		op.Finish(restore)
	}
}

// task is one operation of all members, with its data.
type task struct {
	kind    plan.Kind
	root    int
	counts  []int // elements of the blocks, by member
	pairs   [][]int
	varied  bool // counts are passed
	dt      dtype.Type
	op      dtype.Op
	inPlace bool
	code    *quantCase // nil: blocks travel as they are
	specs   []Spec
	want    [][]byte // by member; nil: nothing is promised
	memory  [][]byte // all of it, guard zones included
	before  [][]byte // as memory
	srcs    [][]byte // as the sources of specs
}

const guard = 64

// buffer returns size bytes between guard zones.
func (k *task) buffer(size int) []byte {
	b := make([]byte, size+2*guard)
	for i := range b {
		b[i] = 0xa5
	}
	k.memory = append(k.memory, b)
	return b[guard : guard+size : guard+size]
}

// content fills b with values that make order and rounding visible.
func content(rng *rand.Rand, dt dtype.Type, b []byte) {
	switch dt {
	case dtype.Float32:
		for i := range dtype.View[float32](b) {
			dtype.View[float32](b)[i] = float32(rng.NormFloat64() * 1e3)
		}
	case dtype.Float64:
		for i := range dtype.View[float64](b) {
			dtype.View[float64](b)[i] = rng.NormFloat64() * 1e9
		}
	case dtype.Float16:
		for i := range dtype.View[uint16](b) {
			dtype.View[uint16](b)[i] = dtype.Float16FromFloat32(float32(rng.NormFloat64()))
		}
	case dtype.BFloat16:
		for i := range dtype.View[uint16](b) {
			dtype.View[uint16](b)[i] = dtype.BFloat16FromFloat32(float32(rng.NormFloat64()))
		}
	default:
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	}
}

func total(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// fill makes the specs and what is to come of them.
func (k *task) fill(w *world, rng *rand.Rand) *task {
	n, size := w.shape.n, k.dt.Size()
	offs := make([]int, n+1) // of blocks, in bytes
	for i, c := range k.counts {
		offs[i+1] = offs[i] + c*size
	}
	all := offs[n]
	block := func(b []byte, i int) []byte { return b[offs[i]:offs[i+1]] }
	k.want = make([][]byte, n)
	for i := range n {
		s := Spec{Kind: k.kind, Tag: 5, Root: k.root, DType: k.dt, Op: k.op}
		if k.varied {
			s.Counts = k.counts
		}
		if k.code != nil {
			s.Quantizer, s.WireType = k.code.quantizer(w.t), k.code.wt
		}
		root := i == k.root
		switch k.kind {
		case plan.AllGather, plan.Gather:
			if root || k.kind == plan.AllGather {
				s.Dst = k.buffer(all)
			}
			if k.inPlace && s.Dst != nil {
				s.Src = block(s.Dst, i)
			} else {
				s.Src = k.buffer(k.counts[i] * size)
			}
		case plan.ReduceScatter, plan.Scatter:
			if root || k.kind == plan.ReduceScatter {
				s.Src = k.buffer(all)
			}
			if k.inPlace && s.Src != nil {
				s.Dst = block(s.Src, i)
			} else {
				s.Dst = k.buffer(k.counts[i] * size)
			}
		case plan.Broadcast, plan.Reduce, plan.AllReduce:
			s.Counts = nil
			if k.kind != plan.Broadcast || root {
				s.Src = k.buffer(all)
			}
			switch {
			case k.kind == plan.Reduce && !root, k.kind == plan.Broadcast && root && !k.inPlace && rng.IntN(2) == 0:
			case k.inPlace && s.Src != nil:
				s.Dst = s.Src
			default:
				s.Dst = k.buffer(all)
			}
		case plan.AllToAll:
			s.Counts = nil
			if k.varied {
				for j := range n {
					s.SendCounts, s.RecvCounts = append(s.SendCounts, k.pairs[i][j]), append(s.RecvCounts, k.pairs[j][i])
				}
				s.Src, s.Dst = k.buffer(total(s.SendCounts)*size), k.buffer(total(s.RecvCounts)*size)
			} else {
				s.Src, s.Dst = k.buffer(n*k.pairs[0][0]*size), k.buffer(n*k.pairs[0][0]*size)
			}
		}
		content(rng, k.dt, s.Src)
		k.specs = append(k.specs, s)
	}
	if k.code != nil {
		k.expectEncoded(w, block)
	} else {
		k.expect(w, block)
	}
	for _, b := range k.memory {
		k.before = append(k.before, slices.Clone(b))
	}
	for _, s := range k.specs {
		k.srcs = append(k.srcs, slices.Clone(s.Src))
	}
	return k
}

// sum adds blocks in an order: what comes is added to the local one.
func (k *task) sum(w *world, blocks [][]byte) []byte {
	b := w.shape.cfg.Backend
	acc := slices.Clone(blocks[0])
	for _, local := range blocks[1:] {
		local = slices.Clone(local)
		b.Reduce(k.dt, k.op, local, local, acc)
		acc = local
	}
	if k.op == dtype.Avg {
		b.Finalize(k.dt, acc, len(blocks))
	}
	return acc
}

// expect computes what every member is to have, the dumb way.
func (k *task) expect(w *world, block func([]byte, int) []byte) {
	n := w.shape.n
	// along returns the members in the order of the ring, from the one behind m.
	along := func(m int) (list []int) {
		at := slices.Index(w.shape.order, m)
		for d := 1; d <= n; d++ {
			list = append(list, w.shape.order[(at+d)%n])
		}
		return list
	}
	pick := func(who []int, part func([]byte) []byte) (blocks [][]byte) {
		for _, m := range who {
			blocks = append(blocks, part(k.specs[m].Src))
		}
		return blocks
	}
	whole := func(b []byte) []byte { return b }
	switch k.kind {
	case plan.AllGather, plan.Gather:
		var all []byte
		for i := range n {
			all = append(all, k.specs[i].Src...)
		}
		for i := range n {
			if k.kind == plan.AllGather || i == k.root {
				k.want[i] = append([]byte{}, all...)
			}
		}
	case plan.Scatter:
		for i := range n {
			k.want[i] = slices.Clone(block(k.specs[k.root].Src, i))
		}
	case plan.ReduceScatter:
		for i := range n {
			k.want[i] = k.sum(w, pick(along(i), func(b []byte) []byte { return block(b, i) }))
		}
	case plan.Broadcast:
		for i := range n {
			if k.specs[i].Dst != nil {
				k.want[i] = slices.Clone(k.specs[k.root].Src)
			}
		}
	case plan.Reduce:
		k.want[k.root] = k.sum(w, pick(along(k.root), whole))
	case plan.AllToAll:
		for i := range n {
			for j := range n {
				from, at := k.specs[j], 0
				counts := from.SendCounts
				if counts == nil {
					counts = slices.Repeat([]int{k.pairs[0][0]}, n)
				}
				at = total(counts[:i]) * k.dt.Size()
				k.want[i] = append(k.want[i], from.Src[at:at+counts[i]*k.dt.Size()]...)
			}
		}
	case plan.AllReduce:
		k.expectAll(w, along)
	}
}

// expectAll is for an all-reduce: over a mesh, the owner adds what comes to its own. Of two
// the first one owns all: the other one has the same bits.
func (k *task) expectAll(w *world, along func(int) []int) {
	n, size := w.shape.n, k.dt.Size()
	count := len(k.specs[0].Src) / size
	weights := slices.Repeat([]uint32{1}, n)
	scheme := k.specs[0].Scheme
	if scheme == nil {
		scheme = plan.Direct(n, nil)
	} else {
		weights = scheme.Weights(k.specs[0].stripes())
	}
	var all []byte
	at := 0
	for c, end := range plan.Cut(count, size, weights) {
		part := func(m int) []byte { return k.specs[m].Src[at*size : end*size] }
		if w.shape.mesh {
			up := scheme.Trees[c%len(scheme.Trees)].Up
			if n == 2 && k.specs[0].Scheme == nil {
				up = []int{-1, 0}
			}
			acc := k.below(w, up, slices.Index(up, -1), part)
			if k.op == dtype.Avg {
				w.shape.cfg.Backend.Finalize(k.dt, acc, n)
			}
			if n == 2 && k.specs[0].Scheme == nil {
				oneNaN(k.dt, acc)
			}
			all = append(all, acc...)
		} else {
			var blocks [][]byte
			for _, m := range along(c) {
				blocks = append(blocks, part(m))
			}
			all = append(all, k.sum(w, blocks)...)
		}
		at = end
	}
	for i := range n {
		k.want[i] = all
	}
}

// below is what a member has in a tree when those below it have sent their sums, the
// nearest in front of it first.
func (k *task) below(w *world, up []int, member int, part func(int) []byte) []byte {
	acc := slices.Clone(part(member))
	for d := 1; d < len(up); d++ {
		if kid := (member - d + len(up)) % len(up); up[kid] == member {
			w.shape.cfg.Backend.Reduce(k.dt, k.op, acc, acc, k.below(w, up, kid, part))
		}
	}
	return acc
}

// guarded checks that nothing was written beside the buffers.
func (k *task) guarded(t testing.TB) {
	t.Helper()
	for i, b := range k.memory {
		for _, zone := range [][]byte{b[:guard], b[len(b)-guard:]} {
			for _, v := range zone {
				require.EqualValues(t, 0xa5, v, "beside buffer %d", i)
			}
		}
	}
}

// restored checks that all that was input is as before; all: every buffer.
func (k *task) restored(t testing.TB, all bool, what string, args ...any) {
	t.Helper()
	k.guarded(t)
	for i, s := range k.specs {
		if !slices.Equal(k.srcs[i], s.Src) {
			require.Equal(t, k.srcs[i], s.Src, "member %d: %s", i, fmt.Sprintf(what, args...))
		}
	}
	for i, b := range k.memory {
		if all && !slices.Equal(k.before[i], b) {
			require.Equal(t, k.before[i], b, fmt.Sprintf(what, args...))
		}
	}
}

// right checks the results.
func (k *task) right(t testing.TB, what string, args ...any) {
	t.Helper()
	k.guarded(t)
	for i, s := range k.specs {
		if k.want[i] != nil && !slices.Equal(k.want[i], s.Dst) {
			require.Equal(t, k.want[i], s.Dst, fmt.Sprintf("member %d: ", i)+fmt.Sprintf(what, args...))
		}
		if !k.inPlace {
			require.True(t, slices.Equal(k.srcs[i], s.Src), "member %d: the source was written", i)
		}
	}
}

// run does one operation and compares.
func (w *world) run(rng *rand.Rand, k *task) {
	w.t.Helper()
	k.fill(w, rng)
	s := w.start(k.specs)
	s.ok(w.t)
	k.right(w.t, "%v of %v %v, %+v, root %d, in place %v, counts %v", k.kind, k.dt, k.op, k.code, k.root, k.inPlace, k.counts)
	w.counted(k, s)
	s.finish(false)
}

// counted compares the counters with the plan.
func (w *world) counted(k *task, s *started) {
	w.t.Helper()
	for i, op := range s.ops {
		p := plan.For(plan.Job{
			Kind: k.kind, N: w.shape.n, Me: i, Root: k.root, Order: w.shape.order, Mesh: w.shape.mesh,
			Scheme: k.specs[i].Scheme, Stripes: k.specs[i].stripes(),
		})
		l, err := k.specs[i].lay(w.shape.n, i, w.shape.mesh)
		require.NoError(w.t, err)
		size := func(c int) int { return k.code.bytes(w.t, l.chunks[c].size) }
		if k.kind != plan.AllReduce {
			require.LessOrEqual(w.t, p.Sent(size), k.specs[i].MostSent(w.shape.n, w.shape.mesh), "%v, mesh %v, member %d", k.kind, w.shape.mesh, i)
		}
		tx, rx := op.Counters()
		require.Equal(w.t, []uint64{uint64(p.Sent(size)), uint64(p.Received(size))}, []uint64{tx, rx}, "%v, member %d", k.kind, i)
	}
}

// draw makes a task of a kind.
func draw(rng *rand.Rand, w *world, kind plan.Kind, most int) *task {
	n := w.shape.n
	k := &task{kind: kind, dt: dtype.Type(rng.IntN(dtype.NumTypes)), op: allOps[rng.IntN(len(allOps))], inPlace: rng.IntN(2) == 0}
	if kind.Rooted() {
		k.root = rng.IntN(n)
	}
	k.varied = rng.IntN(2) == 0 && (kind != plan.AllToAll || w.shape.mesh)
	same := rng.IntN(most + 1)
	k.pairs = make([][]int, n)
	for i := range n {
		c := same
		if k.varied {
			c = rng.IntN(most+1) * rng.IntN(2)
		}
		k.counts = append(k.counts, c)
		for j := range n {
			c := same
			if k.varied {
				c = rng.IntN(most+1) * rng.IntN(2)
				if i == j {
					c = same
				}
			}
			k.pairs[i] = append(k.pairs[i], c)
		}
	}
	if kind == plan.AllToAll {
		k.inPlace = false
	}
	if (kind == plan.AllGather || kind == plan.ReduceScatter) && rng.IntN(2) == 0 {
		k.quantize(rng)
	}
	return k
}

var (
	allOps   = []dtype.Op{dtype.Sum, dtype.Avg, dtype.Prod, dtype.Max, dtype.Min}
	allKinds = []plan.Kind{
		plan.AllReduce, plan.AllGather, plan.ReduceScatter, plan.Broadcast, plan.Reduce, plan.Gather, plan.Scatter, plan.AllToAll,
	}
)
