package reduce

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// striping is the shape of a ring whose operations are striped, however small.
func striping(n, pool int) shape {
	return shape{n: n, pool: pool, native: true, knows: true, flows: true, cfg: Config{Link: link.Config{FrameBytes: 64}, minStripe: 64}}
}

// Pieces that go over several connections give the bits of the oracle: worlds,
// pools, types, operations, in and out of place, counts that cut pieces and
// chunks everywhere.
func TestStripedRingMatchesOracle(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		for _, pool := range []int{2, 4} {
			r := newRing(t, striping(n, pool))
			rng := rand.New(rand.NewPCG(uint64(n), uint64(pool)))
			striped := 2 * pool * 64 * n
			for dt := range dtype.Type(dtype.NumTypes) {
				for _, how := range allOps {
					r.run(rng, dt, how, striped/dt.Size()+rng.IntN(300), rng.IntN(2) == 0) // S2-41
				}
			}
			for count := striped / 4; count < striped/4+20; count++ {
				r.run(rng, dtype.Float32, dtype.Sum, count, count%2 == 0)
			}
			r.close()
			for _, e := range r.eng {
				require.Greater(t, e.Stats().TxFrames, uint64(1000))
			}
		}
	}
}

// Ends that cut differently, send in order, or have one connection, understand
// each other.
func TestStripedAndPlainLinks(t *testing.T) {
	for seed := range uint64(25) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 2 + rng.IntN(3)
		frames, pools := make([]int, n), make([]int, n)
		for i := range n {
			frames[i], pools[i] = 64*(1+rng.IntN(9)), 1+rng.IntN(4)
		}
		s := striping(n, 0)
		s.vary = func(i int, c *Config, pool *int) {
			c.Link.FrameBytes, *pool = frames[i], pools[i]
			if i == 0 {
				c.Flows = 2
			}
		}
		s.link = memory(transporttest.Options{Buffer: 1 + rng.IntN(3000), Piece: rng.IntN(200)})
		r := newRing(t, s)
		for range 2 {
			r.run(rng, dtype.Float64, dtype.Avg, 1+rng.IntN(2000), rng.IntN(2) == 0)
		}
		r.close()
	}
}

// Every quantizer over several connections: all ranks have the bits that a
// single connection gives, and count what it counts.
func TestStripedQuantized(t *testing.T) {
	for _, n := range []int{2, 3} {
		r := newRing(t, striping(n, 3))
		for _, c := range quantCases() {
			q, err := quant.Lookup(c.name)
			require.NoError(t, err)
			for _, count := range []int{2000, 2777} {
				specs, _ := r.specs(rand.New(rand.NewPCG(uint64(n), 3)), c.dt, c.how, count, count == 2000)
				var src [][]byte
				for i := range specs {
					src = append(src, append([]byte(nil), specs[i].Src...))
					specs[i].Quantizer, specs[i].WireType = q, c.wt
				}
				want := quantOracle(r, q, c, src)
				s := r.start(specs)
				for i, err := range s.wait(t) {
					require.NoError(t, err)
					require.Equal(t, want, specs[i].Dst, "rank %d of %d: %+v", i, n, c) // S0-21
					require.NotNil(t, s.ops[i].in.striped, "not striped")
					sent, received := plan.Traffic(count, n, i)
					tx, rx := s.ops[i].Counters()
					meta := uint64(plan.Steps(n)) * map[bool]uint64{true: 27, false: map[bool]uint64{true: 43, false: 35}[c.dt == dtype.Float64]}[c.name == "zeropoint"]
					require.Equal(t, uint64(sent*c.wt.Size())+meta, tx)
					require.Equal(t, uint64(received*c.wt.Size())+meta, rx)
					s.ops[i].Finish(false)
				}
			}
		}
		r.close()
	}
}

// An abort at every piece: in-place buffers come back whatever pieces had come,
// and the same tag works at once afterwards.
func TestStripedAbortAtEveryPiece(t *testing.T) {
	for at := int64(1); ; at++ {
		trip := &tripwire{Backend: generic(t)}
		var s *started
		ready := make(chan struct{})
		trip.hit = func() {
			<-ready
			for _, op := range s.ops {
				op.Abort(errTest)
			}
		}
		sh := striping(3, 3)
		sh.cfg.Backend = trip
		r := newRing(t, sh)
		rng := rand.New(rand.NewPCG(uint64(at), 1))
		specs, _ := r.specs(rng, dtype.Float32, dtype.Sum, 500, true)
		before := keep(specs)
		trip.at.Store(trip.calls.Load() + at)
		s = r.start(specs)
		close(ready)
		failed := 0
		for _, err := range s.wait(t) {
			if err != nil {
				require.ErrorIs(t, err, errTest)
				failed++
			}
		}
		for i, op := range s.ops {
			op.Finish(true)                                                          // a late abort restores as well
			require.Equal(t, before[i], specs[i].Src, "rank %d, abort at %d", i, at) // S2-31
		}
		trip.at.Store(0)
		if failed > 0 {
			r.run(rng, dtype.Float32, dtype.Sum, 500, true) // S2-34
		}
		r.close()
		if failed == 0 {
			require.Greater(t, at, int64(30), "not every piece was aborted")
			return
		}
	}
}

// The end of one of several connections, at every place of the operation, ends
// the operation on both sides, and nothing hangs.
func TestStripedConnectionLoss(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	for cut := int64(1); cut < 800; cut += 29 {
		r := newRing(t, striping(2, 3))
		r.out[0][cut%3].(*transporttest.Conn).CutAfter(cut)
		specs, _ := r.specs(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 3000, true)
		before := keep(specs)
		s := r.start(specs)
		first := 0 // that ends: either may notice first, and the master tells the other
		var err error
		select {
		case err = <-s.errs[0]:
		case err = <-s.errs[1]:
			first = 1
		case <-time.After(patience):
			t.Fatal("nobody noticed")
		}
		if err == nil {
			// The others were fast enough for this one to carry less.
			require.NoError(t, verdict(t, s.errs[1-first]))
			r.close()
			continue
		}
		require.ErrorIs(t, err, errs.RankConnectionLost)
		require.ErrorContains(t, err, ids[1-first].String())
		s.ops[1-first].Abort(errTest)
		verdict(t, s.errs[1-first])
		for i, op := range s.ops {
			op.Finish(true)
			require.Equal(t, before[i], specs[i].Src)
		}
		if first == 0 {
			require.Equal(t, 2, r.eng[0].hub.LiveSenders(ids[1]))
			again := r.start(specs)
			require.ErrorContains(t, verdict(t, again.errs[0]), "no connection", "one of three is missing")
			again.ops[1].Abort(errTest)
			verdict(t, again.errs[1])
		}
		r.connect(0) // a new pool repairs it
		r.run(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 3000, true)
		r.close()
	}
}

// A receiver whose connection ended before the first piece of an operation came
// on another one does not wait for what it lost.
func TestStripedLossBeforeTheFirstPiece(t *testing.T) {
	a := newAlone(t, Config{}, uuid(1), uuid(1), false)
	lost, in := transporttest.Pair(transporttest.Options{})
	a.e.hub.AddReceiver(uuid(1), 1, in)
	lost.Cut()
	require.Eventually(t, func() bool {
		return a.e.hub.Receivers(uuid(1))[1].Closed()
	}, patience, time.Millisecond)
	buf := make([]byte, 512)
	op, err := a.e.NewOp(Spec{Tag: 1, Count: 512, DType: dtype.Uint8, Op: dtype.Sum, Src: buf, Dst: buf})
	require.NoError(t, err)
	done := make(chan error, 1)
	op.Start(Start{Seq: 2, Ring: []wire.UUID{uuid(0), uuid(1)}, Self: uuid(0), Native: true, Done: func(err error) { done <- err }})
	a.send(1, 2|stripeBit, stripeFrame(64, 3, make([]byte, 64)))
	require.ErrorIs(t, verdict(t, done), errs.RankConnectionLost)
	op.Finish(true)
}

// A neighbour that sends a piece before the piece that it follows from is refused,
// and the in-place buffer comes back: at no time may two readers have the same
// memory, and what is saved is the original.
func TestPieceBeforeItsEarlierStep(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1), uuid(2)}
	a := newAlone(t, Config{}, ids[2], ids[1], true)
	src := content(rand.New(rand.NewPCG(1, 1)), dtype.Uint8, 3*64)
	before := append([]byte(nil), src...)
	op, err := a.e.NewOp(Spec{Tag: 1, Count: len(src), DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src})
	require.NoError(t, err)
	done := make(chan error, 2)
	op.Start(Start{Seq: 1, Ring: ids, Self: ids[0], Native: true, Done: func(err error) { done <- err }})
	// One piece for each step. Step 3 brings the chunk of step 0 again.
	a.send(1, 1|stripeBit, stripeFrame(64, 3, make([]byte, 64)))
	err = verdict(t, done)
	require.ErrorIs(t, err, errs.Protocol)
	require.ErrorContains(t, err, "piece 3 came before piece 0")
	op.Finish(true)
	require.Equal(t, before, src)
}

// The commence of an operation that will be striped comes while a frame of the
// previous peer, which does not stripe, is being read. The race detector sees it
// if it looks; what came is sent on either way.
func TestCommenceWhileReading(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1), uuid(2)}
	e := newEngine(Config{Backend: generic(t), minStripe: 64})
	t.Cleanup(e.Close)
	e.ExpectEpoch(lastEpoch)
	big := transporttest.Options{Buffer: 4 << 20}
	prev, in := transporttest.Pair(big)
	e.hub.AddReceiver(ids[2], 0, in)
	for k := range uint32(2) {
		tx, _ := transporttest.Pair(big)
		e.hub.AddSender(ids[1], k, tx, link.Features{Native: true, Flows: true})
	}
	a := &alone{t: t, e: e, prev: prev}
	const chunk = 4096
	for tag := range uint64(50) {
		src := make([]byte, 3*chunk)
		op, done := a.startEager(1, Spec{Tag: tag, Count: len(src), DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src}, ids, ids[0])
		frame := eagerFrame(tag, 1, make([]byte, chunk))
		_, err := prev.Write(frame[:1000])
		require.NoError(t, err)
		require.Eventually(t, func() bool { return op.State().Reading }, patience, time.Millisecond)
		goOn := make(chan bool)
		go func() { // nothing but this channel orders the two
			<-goOn
			prev.Write(frame[1000:])
		}()
		close(goOn)
		op.Commence(1 + tag)
		require.Eventually(t, func() bool { return op.State().Sent == 2*chunk }, patience, time.Millisecond, "what came is sent on")
		op.Abort(errTest)
		require.Error(t, verdict(t, done))
		op.Finish(true)
	}
}

// Pieces come in any order, before and after the commence of an operation that is not
// striped until then: what each of them completes is sent on, once.
func TestCommenceBetweenPieces(t *testing.T) {
	minmax, err := quant.Lookup("minmax")
	require.NoError(t, err)
	ids := []wire.UUID{uuid(0), uuid(1), uuid(2)}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, q := range []quant.Quantizer{nil, minmax} {
		for k := range 200 {
			e := newEngine(Config{Backend: generic(t), minStripe: 64})
			for k := range uint32(2) {
				tx, _ := transporttest.Pair(transporttest.Options{})
				e.hub.AddSender(ids[1], k, tx, link.Features{Native: true, Flows: true})
			}
			const count = 3 * 300
			spec := Spec{Tag: 1, Count: count, DType: dtype.Float32, Op: dtype.Sum, Src: make([]byte, 4*count), Dst: make([]byte, 4*count)}
			if q != nil {
				spec.Quantizer, spec.WireType = q, dtype.Uint8
			}
			op, err := e.NewOp(spec)
			require.NoError(t, err)
			op.Start(Start{Epoch: 1, Eager: true, Ring: ids, Self: ids[0], Done: func(error) {}})
			refuse := func(text string, args ...any) error { return fmt.Errorf(text, args...) }
			g := 64 << rng.IntN(3)
			per := op.newGrid(g).per
			order := rng.Perm(2 * per) // of the first two steps, whose pieces go on
			come := func(index int) {
				p, ok := op.at(op.newGrid(g), index, false)
				require.True(t, ok)
				_, _, err := op.claim(refuse, g, index, p.n, &quant.Meta{})
				require.NoError(t, err)
				op.completed(index, p)
			}
			some := rng.IntN(len(order) + 1)
			for _, index := range order[:some] {
				come(index)
			}
			op.mu.Lock() // nothing is taken: no sender looks inside
			op.stripe(e.hub.InUse(ids[1]))
			op.mu.Unlock()
			for _, index := range order[some:] {
				come(index)
			}
			op.mu.Lock()
			o := op.out.striped.Load()
			require.Equal(t, 3*o.g.per, o.count, "pieces of three steps after %d of %v, seed %d", some, order, k)
			for i := range o.count {
				require.True(t, o.ready.has(i))
			}
			op.mu.Unlock()
			op.Abort(errTest)
			e.Close()
		}
	}
}

// An operation of more pieces than a frame can number is not striped.
func TestPiecesAreNumbered(t *testing.T) {
	r := newRing(t, striping(2, 2))
	for _, count := range []int{1 << 30, 1 << 40} {
		op := &Op{e: r.eng[0], position: position{n: 2, native: true, next: r.ids[1]}, unit: 1, group: 1, elem: 1, spec: Spec{Count: count}}
		ring := plan.Ring(2, 0)
		op.sends, op.comes = ring.Out[0].Segments, ring.In[0].Segments
		r.eng[0].cfg.Link.FrameBytes = link.MinFrameBytes
		flows := r.eng[0].flowsFor(op, r.eng[0].hub.Senders(r.ids[1]))
		require.Equal(t, count == 1<<30, flows != nil)
	}
}

func stripeFrame(g, index int, data []byte) []byte {
	b := make([]byte, stripeHead)
	putStripe(b, g, index)
	return append(b, data...)
}

// One connection of eight at a tenth of the speed carries its own share only.
func TestSlowConnectionCarriesItsShare(t *testing.T) {
	const rate = 1 << 20
	s := striping(2, 8)
	s.cfg.minStripe, s.cfg.Link.FrameBytes = 4<<10, 64<<10
	made := 0
	s.link = func(testing.TB) (net.Conn, net.Conn) {
		o := transporttest.Options{Buffer: 16 << 10, Rate: rate}
		if made%8 == 3 {
			o.Rate = rate / 10
		}
		made++
		a, b := transporttest.Pair(o)
		return a, b
	}
	r := newRing(t, s)
	specs, want := r.specs(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 1<<20, false)
	r.start(specs).ok(t)
	require.Equal(t, want, specs[0].Dst)
	total, slow := int64(0), int64(0)
	for _, links := range r.out {
		for i, c := range links {
			n := c.(*transporttest.Conn).Written()
			total += n
			if i == 3 {
				slow += n
			}
		}
	}
	share := float64(slow) / float64(total)
	require.Less(t, share, 1./16, "its own share would be 1/71, that of equals 1/8") // S2-41
	require.Positive(t, slow)
}

// What a script sends as pieces, in any order over three connections, arrives;
// what is no piece of the operation is refused, and ends nothing else.
func TestStripedScript(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	fresh := func() (*alone, []*transporttest.Conn, *Op, chan error, []byte) {
		a := newAlone(t, Config{}, ids[1], ids[1], true)
		prevs := []*transporttest.Conn{a.prev}
		for i := range 2 {
			c, in := transporttest.Pair(transporttest.Options{Buffer: 1 << 20})
			a.e.hub.AddReceiver(ids[1], uint32(i+1), in)
			prevs = append(prevs, c)
		}
		src := make([]byte, 1000)
		for i := range src {
			src[i] = byte(i)
		}
		op, err := a.e.NewOp(Spec{Tag: 9, Count: 1000, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src})
		require.NoError(t, err)
		done := make(chan error, 1)
		op.Start(Start{Seq: 4, Ring: ids, Self: ids[0], Native: true, Done: func(err error) { done <- err }})
		return a, prevs, op, done, src
	}
	put := func(c *transporttest.Conn, payload []byte) {
		b := make([]byte, transport.HeaderSize)
		transport.Header{Payload: len(payload), Tag: 9, Stream: 4 | stripeBit}.Put((*[transport.HeaderSize]byte)(b))
		_, err := c.Write(append(b, payload...))
		require.NoError(t, err)
	}
	// Rank 0 of 2 receives chunk 1 (500 bytes, added), then chunk 0 (set): two
	// pieces of 320 and 180 bytes each.
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		a, prevs, op, done, src := fresh()
		data := [4][]byte{make([]byte, 320), make([]byte, 180), make([]byte, 320), make([]byte, 180)}
		for i, d := range data {
			for k := range d {
				d[k] = byte(10 * (i + 1))
			}
		}
		for _, i := range rng.Perm(4) {
			put(prevs[rng.IntN(3)], stripeFrame(320, i, data[i]))
		}
		require.NoError(t, verdict(t, done))
		for k := range 500 {
			require.Equal(t, byte(30+10*(k/320)), src[k])
			require.Equal(t, byte(500+k)+byte(10+10*(k/320)), src[500+k])
		}
		op.Finish(true)
		for k := range src {
			require.Equal(t, byte(k), src[k])
		}
		a.e.Close()
	}
	for what, frames := range map[string][][]byte{
		"twice":        {stripeFrame(320, 0, make([]byte, 320)), stripeFrame(320, 0, make([]byte, 320))},
		"beyond":       {stripeFrame(320, 4, make([]byte, 320))},
		"far beyond":   {stripeFrame(320, 1<<32-1, make([]byte, 320))},
		"short":        {stripeFrame(320, 0, make([]byte, 319))},
		"long":         {stripeFrame(320, 1, make([]byte, 181))},
		"odd pieces":   {stripeFrame(321, 0, make([]byte, 321))},
		"no pieces":    {stripeFrame(0, 0, make([]byte, 1))},
		"huge pieces":  {stripeFrame(1<<31, 0, make([]byte, 500))},
		"other pieces": {stripeFrame(320, 0, make([]byte, 320)), stripeFrame(384, 1, make([]byte, 116))},
		"empty":        {stripeFrame(320, 0, nil)},
		"cut head":     {make([]byte, 7)},
	} {
		a, prevs, op, done, _ := fresh()
		for _, f := range frames {
			put(prevs[0], f)
		}
		require.ErrorIs(t, verdict(t, done), errs.Protocol, what)
		op.Finish(true)
		a.e.Close()
	}
}

// Whatever comes as striped frames on two connections at once: the operation
// ends, nothing panics, memory stays bounded, the in-place buffer comes back.
func FuzzHostileStripes(f *testing.F) {
	frame := func(payload []byte) []byte {
		b := make([]byte, transport.HeaderSize)
		transport.Header{Payload: len(payload), Tag: 1, Stream: 1 | stripeBit}.Put((*[transport.HeaderSize]byte)(b))
		return append(b, payload...)
	}
	meta := wire.AppendMeta(nil, &wire.DequantizationMeta{Kind: wire.MetaMinMax, DType: dtype.Float32, Max: 3})
	f.Add(frame(stripeFrame(64, 0, make([]byte, 64))), frame(stripeFrame(64, 1, make([]byte, 64))), false)
	f.Add(frame(stripeFrame(64, 3, make([]byte, 64))), frame(stripeFrame(64, 3, make([]byte, 64))), false)
	f.Add(frame(stripeFrame(64, 0, append(append([]byte{byte(len(meta))}, meta...), make([]byte, 64)...))), []byte{}, true)
	f.Add(frame(stripeFrame(1<<20, 0, make([]byte, 400))), frame(make([]byte, 3)), true)
	q, err := quant.Lookup("minmax")
	require.NoError(f, err)
	ids := []wire.UUID{uuid(0), uuid(1)}
	f.Fuzz(func(t *testing.T, x, y []byte, quantized bool) {
		x, y = x[:min(len(x), 1<<20)], y[:min(len(y), 1<<20)]
		a := newAlone(t, Config{FutureWait: time.Millisecond}, ids[1], ids[1], true)
		other, in := transporttest.Pair(transporttest.Options{Buffer: 4 << 20})
		a.e.hub.AddReceiver(ids[1], 1, in)
		src := floats(dtype.Float32, 1, 200)
		spec := Spec{Tag: 1, Count: 200, DType: dtype.Float32, Op: dtype.Sum, Src: src, Dst: src}
		if quantized {
			spec.Quantizer, spec.WireType = q, dtype.Uint8
		}
		op, err := a.e.NewOp(spec)
		require.NoError(t, err)
		done := make(chan error, 1)
		op.Start(Start{Seq: 1, Ring: ids, Self: ids[0], Native: true, Done: func(err error) { done <- err }})
		var wg sync.WaitGroup
		for i, b := range [][]byte{x, y} {
			wg.Add(1)
			go func() {
				defer wg.Done()
				c := []*transporttest.Conn{a.prev, other}[i]
				c.Write(b)
				c.Close()
			}()
		}
		wg.Wait()
		op.Abort(errTest) // connections that said nothing end nothing
		verdict(t, done)
		op.Finish(true)
		require.Equal(t, floats(dtype.Float32, 1, 200), src)
		require.LessOrEqual(t, a.e.Buffers().PeakUsed, int64(4<<20))
		a.e.Close()
	})
}

// The striped frame, byte by byte (docs/spec/extensions.md).
func TestStripeBytes(t *testing.T) {
	r := newRing(t, striping(2, 2))
	a, b := transporttest.Pair(transporttest.Options{Buffer: 1 << 20})
	c, d := transporttest.Pair(transporttest.Options{Buffer: 1 << 20})
	r.eng[0].hub.AddSender(r.ids[1], 0, a, link.Features{Native: true, Flows: true})
	r.eng[0].hub.AddSender(r.ids[1], 1, c, link.Features{Native: true, Flows: true})
	src := make([]byte, 1000)
	op, err := r.eng[0].NewOp(Spec{Tag: 3, Count: 1000, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: make([]byte, 1000)})
	require.NoError(t, err)
	done := make(chan error, 1)
	op.Start(Start{Seq: 7, Ring: r.ids, Self: r.ids[0], Native: true, Done: func(err error) { done <- err }})
	seen := map[uint32]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, end := range []net.Conn{b, d} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rd := transport.NewReader(end, 64)
			for {
				h, err := rd.Next()
				if err != nil {
					return
				}
				p := make([]byte, h.Payload)
				for n := 0; n < len(p); {
					k, err := rd.Payload(p[n:])
					if err != nil {
						return
					}
					n += k
				}
				mu.Lock()
				if h.Tag == 3 && h.Stream == 1<<62|7 && binary.BigEndian.Uint32(p) == 64 {
					seen[binary.BigEndian.Uint32(p[4:])] = len(p) - 8
				}
				full := len(seen) == 8
				mu.Unlock()
				if full {
					op.Abort(errTest)
				}
			}
		}()
	}
	require.ErrorIs(t, verdict(t, done), errTest)
	r.close()
	wg.Wait()
	require.Equal(t, map[uint32]int{0: 64, 1: 64, 2: 64, 3: 64, 4: 64, 5: 64, 6: 64, 7: 52}, seen)
}

// A striped operation out of place has nothing to restore, and says so to nobody.
func TestStripedRestoreOutOfPlace(t *testing.T) {
	r := newRing(t, striping(2, 4))
	specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Avg, 64*2*9, false)
	before := keep(specs)
	s := r.start(specs)
	s.wait(t)
	for i, op := range s.ops {
		op.Finish(true)
		require.Equal(t, before[i], specs[i].Src)
	}
}
