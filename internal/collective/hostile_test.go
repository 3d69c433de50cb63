package collective

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// alone is one engine, member 0 of n, whose peers are the test.
type alone struct {
	t    testing.TB
	w    *world
	e    *Engine
	ids  []wire.UUID
	mesh bool
	from map[int]net.Conn // what the test writes frames to, by member
	to   map[int]net.Conn // what the engine sends, by member
}

func newAlone(t testing.TB, n int, mesh bool, cfg Config) *alone {
	w := newWorld(t, shape{n: 1, frame: 256, cfg: cfg})
	a := &alone{t: t, w: w, e: w.eng[0], mesh: mesh, from: map[int]net.Conn{}, to: map[int]net.Conn{}}
	for i := range n {
		a.ids = append(a.ids, uuid(i))
	}
	a.e.hub.Trust(a.ids...)
	for i := 1; i < n; i++ {
		a.connect(i)
	}
	return a
}

// connect makes the connections from and to a member anew.
func (a *alone) connect(i int) {
	x, in := transporttest.Pair(transporttest.Options{Buffer: 1 << 20})
	out, y := transporttest.Pair(transporttest.Options{Buffer: 1 << 20})
	a.e.hub.AddReceiver(uuid(i), 0, in)
	a.e.hub.AddSender(uuid(i), 0, out, link.Features{Native: true, Flows: true})
	a.t.Cleanup(func() {
		x.Close()
		y.Close()
	})
	a.from[i], a.to[i] = x, y
}

func (a *alone) start(seq uint64, spec Spec) (*Operation, chan error) {
	op, err := a.e.New(spec)
	require.NoError(a.t, err)
	done := make(chan error, 2)
	op.Start(Start{Seq: seq, Epoch: 1, Members: a.ids, Ring: a.ids, Self: a.ids[0], Mesh: a.mesh, Done: func(err error) { done <- err }})
	return op, done
}

// frame sends the engine a frame with any payload.
func (a *alone) frame(member int, tag, stream uint64, payload []byte) {
	b := make([]byte, transport.HeaderSize, transport.HeaderSize+len(payload))
	transport.Header{Payload: len(payload), Tag: tag, Stream: stream}.Put((*[transport.HeaderSize]byte)(b))
	_, err := a.from[member].Write(append(b, payload...))
	require.NoError(a.t, err)
}

// piece sends the engine a piece.
func (a *alone) piece(member int, tag, stream uint64, size, index int, total int64, data []byte) {
	b := make([]byte, headBytes, headBytes+len(data))
	putHead(b, size, index, uint64(total))
	a.frame(member, tag, stream, append(b, data...))
}

// What a member keeps of others in an all-reduce over trees is bounded: one that sends
// more than a window ahead ends the operation before anything of it is kept.
func TestAheadOfTheWindow(t *testing.T) {
	const stripes, block = 4 * plan.Window, 64
	a := newAlone(t, 3, true, Config{})
	data := make([]byte, 3*stripes*block)
	op, done := a.start(1, Spec{Kind: plan.AllReduce, Tag: 9, DType: dtype.Uint8, Op: dtype.Sum, Src: data, Dst: slices.Clone(data), Scheme: plan.Direct(3, nil), Stripes: stripes})
	require.Equal(t, plan.Window*block, op.mem.wait.size)
	total := int64(2 * stripes * block) // of each stripe a contribution, and a result
	for s := range plan.Window {
		a.piece(1, 9, 1|mark, block, 2*s, total, data[:block])
	}
	a.piece(1, 9, 1|mark, block, 2*plan.Window, total, data[:block])
	err := verdict(t, done)
	require.ErrorIs(t, err, errs.Protocol)
	require.ErrorContains(t, err, "piece 16 came before the result that it has to wait for")
	op.Finish(true)
	a.w.close()
	require.Zero(t, a.e.link.Pool.Stats().InUse)
}

// Frames that are not as they should be end the operation with an error that says what is
// wrong, and of which peer; inputs are as before.
func TestHostileFrames(t *testing.T) {
	const tag, total = 9, 300 // three blocks of 150 bytes: 64, 64, 22
	seq := uint64(1) | mark
	data := slices.Repeat([]byte{1}, 64)
	for name, c := range map[string]struct {
		send  func(a *alone)
		code  errs.Code
		says  string
		stays bool // the connection
	}{
		"another total":     {func(a *alone) { a.piece(2, tag, seq, 64, 0, total+1, data) }, errs.Mismatch, "sends 301 bytes, 300 are expected", true},
		"less than a head":  {func(a *alone) { a.frame(2, tag, seq, data[:15]) }, errs.Protocol, "its head alone", false},
		"small pieces":      {func(a *alone) { a.piece(2, tag, seq, 32, 0, total, data[:32]) }, errs.Protocol, "pieces of 32 bytes", false},
		"ragged pieces":     {func(a *alone) { a.piece(2, tag, seq, 100, 0, total, data) }, errs.Protocol, "pieces of 100 bytes", false},
		"huge pieces":       {func(a *alone) { a.piece(2, tag, seq, 1<<30, 0, total, data) }, errs.Protocol, "pieces of 1073741824 bytes", false},
		"an index beyond":   {func(a *alone) { a.piece(2, tag, seq, 64, 6, total, data) }, errs.Protocol, "piece 6 of 6", false},
		"the largest index": {func(a *alone) { a.piece(2, tag, seq, 64, 1<<32-1, total, data) }, errs.Protocol, "piece 4294967295 of 6", false},
		"twice": {func(a *alone) {
			a.piece(2, tag, seq, 64, 3, total, data)
			a.piece(2, tag, seq, 64, 3, total, data)
		}, errs.Protocol, "piece 3 came twice", false},
		"another cut": {func(a *alone) {
			a.piece(2, tag, seq, 64, 3, total, data)
			a.piece(2, tag, seq, 128, 0, total, append(data, data...))
		}, errs.Protocol, "pieces of 128 bytes after pieces of 64", false},
		"too short a piece":                   {func(a *alone) { a.piece(2, tag, seq, 64, 0, total, data[:63]) }, errs.Protocol, "piece 0 has 63 bytes, not 64", false},
		"too long a piece":                    {func(a *alone) { a.piece(2, tag, seq, 64, 2, total, data) }, errs.Protocol, "piece 2 has 64 bytes, not 22", false},
		"an empty piece":                      {func(a *alone) { a.piece(2, tag, seq, 64, 0, total, nil) }, errs.Protocol, "piece 0 has 0 bytes, not 64", false},
		"a lane that does not exist":          {func(a *alone) { a.piece(1, tag, seq, 64, 0, total, data) }, errs.Protocol, "a member that sends none", true},
		"a sequence number that never starts": {func(a *alone) { a.piece(2, tag, seq+1, 64, 0, total, data) }, errs.Protocol, "never started", false},
	} {
		for _, kind := range []plan.Kind{plan.AllGather, plan.ReduceScatter} {
			a := newAlone(t, 3, false, Config{FutureWait: time.Millisecond})
			all, own := slices.Repeat([]byte{7}, 450), slices.Repeat([]byte{9}, 150)
			spec := Spec{Kind: kind, Tag: tag, DType: dtype.Uint8, Op: dtype.Sum, Src: own, Dst: all, Preserve: true}
			if kind == plan.ReduceScatter {
				spec.Src, spec.Dst = all, own
			}
			op, done := a.start(1, spec)
			c.send(a)
			err := verdict(t, done)
			require.ErrorIs(t, err, c.code, "%s: %v", name, kind)
			require.ErrorContains(t, err, c.says)
			op.Finish(true)
			require.Equal(t, slices.Repeat([]byte{7}, 450), all, name)
			require.Equal(t, slices.Repeat([]byte{9}, 150), own, name)
			if c.stays {
				// The rest of the stream is nobody's, and the next operation finds its own.
				a.piece(2, tag, seq, 64, 1, total, data)
				op, done := a.start(2, Spec{Kind: plan.Broadcast, Tag: tag, Root: 2, DType: dtype.Uint8, Dst: own})
				a.piece(2, tag, 2|mark, 192, 0, 150, all[:150])
				require.NoError(t, verdict(t, done), name)
				require.Equal(t, all[:150], own)
				op.Finish(false)
			}
			a.w.close()
			require.Zero(t, a.e.link.Pool.Stats().InUse, name)
		}
	}
}

// Frames of strangers, of operations gone by and of rounds are nobody's.
func TestFramesOfNobody(t *testing.T) {
	a := newAlone(t, 4, false, Config{})
	a.ids = a.ids[:3] // 3 is connected, and not a member
	stale := func(n uint64) {
		t.Helper()
		require.Eventually(t, func() bool { return a.e.link.Stats.StaleFrames.Load() == n }, patience, time.Millisecond)
	}
	spec := Spec{Kind: plan.Broadcast, Tag: 1, Root: 2, DType: dtype.Uint8, Dst: make([]byte, 3)}
	op, done := a.start(5, spec)
	a.piece(3, 1, 5|mark, 64, 0, 3, []byte{1, 2, 3})
	stale(1)
	a.piece(2, 1, 4|mark, 64, 0, 3, []byte{1, 2, 3})
	stale(2)
	a.e.Skip(6)
	a.piece(2, 1, 6|mark, 64, 0, 3, []byte{1, 2, 3})
	stale(3)
	a.e.Between(true)
	a.piece(2, 1, 7|mark, 64, 0, 3, []byte{1, 2, 3})
	stale(4)
	a.e.Between(false)
	a.frame(2, 1, 5|mark|link.OpenerBit, []byte{0})
	stale(5)
	a.piece(2, 1, 5|mark, 64, 0, 3, []byte{4, 5, 6})
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{4, 5, 6}, spec.Dst)
	op.Finish(false)
	// One that waits for its start is let go when a round begins.
	a.piece(2, 1, 8|mark, 64, 0, 3, []byte{1, 2, 3})
	require.Eventually(t, func() bool { return a.e.State().Early == 1 }, patience, time.Millisecond)
	a.e.Between(true)
	stale(6)
}

// Counts on which the two ends of a pair do not agree are found, whichever end has none.
func TestCountsOfAPairDiffer(t *testing.T) {
	for _, c := range []struct{ sends, expects int }{{3, 2}, {0, 2}, {3, 0}} {
		w := newWorld(t, shape{n: 2, mesh: true})
		spec := func(send, recv []int) Spec {
			return Spec{
				Kind: plan.AllToAll, DType: dtype.Uint8, SendCounts: send, RecvCounts: recv,
				Src: make([]byte, total(send)), Dst: slices.Repeat([]byte{7}, total(recv)),
			}
		}
		specs := []Spec{spec([]int{0, c.sends}, []int{0, 1}), spec([]int{1, 0}, []int{c.expects, 0})}
		s := w.start(specs)
		err := verdict(t, s.errs[1])
		require.ErrorIs(t, err, errs.Mismatch)
		require.ErrorContains(t, err, "are expected of it")
		s.ops[0].Abort(errTest)
		s.finish(true)
		require.Equal(t, slices.Repeat([]byte{7}, c.expects), specs[1].Dst, "something was written")
		w.close()
	}
	// Both have none, and know it.
	w := newWorld(t, shape{n: 2, mesh: true})
	none := Spec{Kind: plan.AllToAll, DType: dtype.Uint8, SendCounts: []int{0, 0}, RecvCounts: []int{0, 0}}
	w.start([]Spec{none, none}).ok(t)
}

// Over a ring, blocks on which members do not agree are found, too, if there are as many
// bytes of them in all; also if one of them is empty, and has no piece.
func TestCountsOverARingDiffer(t *testing.T) {
	for _, c := range []struct{ theirs, roots []int }{
		{[]int{1, 3, 2}, []int{1, 2, 3}}, {[]int{1, 0, 2}, []int{1, 2, 0}}, {[]int{0, 200, 100}, []int{0, 100, 200}},
	} {
		for _, kind := range []plan.Kind{plan.Gather, plan.Scatter} {
			w := newWorld(t, shape{n: 3})
			var specs []Spec
			for m, counts := range [][]int{c.roots, c.theirs, c.theirs} {
				s := Spec{Kind: kind, DType: dtype.Uint8, Counts: counts, Src: make([]byte, counts[m])}
				if kind == plan.Scatter {
					s.Src, s.Dst = nil, s.Src
				}
				if all := make([]byte, total(counts)); m == 0 && kind == plan.Gather {
					s.Dst = slices.Repeat([]byte{7}, len(all))
				} else if m == 0 {
					s.Src = all
				}
				specs = append(specs, s)
			}
			s := w.start(specs)
			at := map[plan.Kind]int{plan.Gather: 0, plan.Scatter: 1}[kind] // behind the root in the ring, or before it
			require.ErrorIs(t, verdict(t, s.errs[at]), errs.Mismatch, "%v of %v and %v", kind, c.theirs, c.roots)
			for _, op := range s.ops {
				op.Abort(errTest)
			}
			s.finish(true)
			if kind == plan.Gather {
				require.NotContains(t, specs[0].Dst[1:], byte(0), "something was written")
			}
			w.close()
		}
	}
}

// What an operation waits for is told, lane by lane.
func TestState(t *testing.T) {
	a := newAlone(t, 3, true, Config{})
	spec := Spec{Kind: plan.AllReduce, Tag: 4, DType: dtype.Uint8, Op: dtype.Sum, Src: make([]byte, 300), Dst: make([]byte, 300)}
	op, err := a.e.New(spec)
	require.NoError(t, err)
	require.Equal(t, "created", op.State().Phase)
	op, done := a.start(3, spec)
	a.piece(1, 4, 3|mark, 64, 0, 192, make([]byte, 64)) // before its turn: 2 comes first
	require.Eventually(t, func() bool { return op.State().Lanes[3].Waiting == 1 }, patience, time.Millisecond)
	st := a.e.State()
	require.Len(t, st.Ops, 1)
	require.Equal(t, "running", st.Ops[0].Phase)
	require.Contains(t, st.Ops[0].Waits, "peer "+uuid(1).Short()+": 64 of 192 bytes have come")
	op.Abort(errTest)
	require.ErrorIs(t, verdict(t, done), errTest)
	require.Equal(t, "ended", op.State().Phase)
	op.Finish(true)
	require.Equal(t, "finished", op.State().Phase)
}

// A listener hears of work that begins while there is none, and of its end: one count for
// all rooms of a hub.
func TestActiveAndIdle(t *testing.T) {
	var heard []string
	note := func(s string) { heard = append(heard, s) }
	hub := link.NewHub(link.Config{Trace: &trace.Listener{
		BecameActive: func() { note("active") }, BecameIdle: func() { note("idle") },
		OpStarted: func(uint64, uint64) { note("start") }, OpEnded: func(uint64, uint64, error) { note("end") },
	}}, nobody{})
	e := NewEngine(hub, Config{Backend: generic(t)})
	defer hub.Close()
	defer e.Close()
	run := func(seq uint64) {
		op, err := e.New(Spec{Kind: plan.AllGather, Src: []byte{1}, Dst: make([]byte, 1)})
		require.NoError(t, err)
		done := make(chan struct{})
		op.Start(Start{Seq: seq, Members: []wire.UUID{uuid(0)}, Ring: []wire.UUID{uuid(0)}, Self: uuid(0), Done: func(error) { close(done) }})
		<-done
		require.Eventually(t, func() bool { return e.State().Active == 0 }, patience, time.Millisecond)
		op.Finish(false)
	}
	run(1)
	hub.Count("all-reduce", 1)
	run(2)
	hub.Count("all-reduce", -1)
	require.Equal(t, []string{"active", "start", "end", "idle", "active", "start", "end", "idle"}, heard)
}
