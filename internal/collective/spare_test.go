package collective

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/erasure"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// spared returns a world whose lanes have so many spares in a group.
func spared(t testing.TB, n, pool, spares int, s shape) *world {
	s.n, s.pool, s.mesh, s.frame = n, pool, true, 16<<10
	s.cfg.minStripe, s.cfg.spares = 256, spares
	s.vary = func(_ int, c *Config, _ *int) { c.distant = true }
	if s.link == nil {
		s.link = memoryLink(transporttest.Options{Buffer: 1 << 20})
	}
	return newWorld(t, s)
}

// counts is what all members of a world have counted.
func (w *world) counts() (sent, taken, stale, spared uint64) {
	for _, e := range w.eng {
		c := e.link.Stats.Snapshot()
		sent, taken, stale, spared = sent+c.TxFrames, taken+c.RxFrames, stale+c.StaleFrames, spared+c.Spared
	}
	return sent, taken, stale, spared
}

// read waits until all that was sent was read, and nothing of it is kept.
func (w *world) read() {
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		sent, taken, stale, _ := w.counts()
		if sent == taken+stale {
			return
		}
		require.True(w.t, time.Now().Before(end), "%d of %d frames were taken, %d dropped", taken, sent, stale)
	}
}

// Whatever is held up of as many connections as there are spares, an operation waits for nothing of it. What comes later is
// none of the next ones, though they have the same tag in the same epoch: all results are right.
func TestNobodyWaitsForAHeldUpConnection(t *testing.T) {
	ops := 60
	if testing.Short() {
		ops = 12
	}
	for _, n := range []int{2, 3, 4} {
		for _, eager := range []bool{true, false} {
			rng := rand.New(rand.NewPCG(uint64(n), 7))
			const pool, spares = 8, 2
			var at atomic.Int64
			var conns atomic.Pointer[[]*transporttest.Conn]
			stall := func(on bool) {
				for _, c := range *conns.Load() {
					c.Stall(on)
				}
			}
			w := spared(t, n, pool, spares, shape{
				link: memoryLink(transporttest.Options{Buffer: 1 << 20, Piece: 500}), hit: func(call int64) {
					if call == at.Load() {
						stall(true)
					}
				},
			})
			var later sync.WaitGroup
			for i := range ops {
				later.Wait() // one at a time
				from := rng.IntN(n)
				to := (from + 1 + rng.IntN(n-1)) % n
				var some []*transporttest.Conn
				for _, k := range rng.Perm(pool)[:1+rng.IntN(spares)] {
					some = append(some, w.out[[2]int{from, to}][k].(*transporttest.Conn))
				}
				if conns.Store(&some); rng.IntN(2) == 0 {
					stall(true)
				} else { // perhaps amid a frame
					at.Store(w.calls.Load() + 1 + rng.Int64N(20))
				}
				k := draw(rng, w, plan.AllReduce, 0)
				k.varied, k.counts = false, slices.Repeat([]int{1000 + rng.IntN(2000)}, n) // no lane is too short for spares
				k.fill(w, rng)
				mask := 0
				if eager {
					mask = rng.IntN(1 << n)
				}
				s, commence := w.startMixed(k.specs, 1+uint64(i/6), mask, rng.Perm(n))
				commence()
				s.ok(t)
				k.right(t, "operation %d of %d members, eager %b", i, n, mask)
				w.counted(k, s)
				s.finish(false)
				if at.Store(0); rng.IntN(3) > 0 { // before the next one, or while it runs
					stall(false)
				} else {
					later.Go(func() { stall(false) })
				}
			}
			_, _, _, made := w.counts()
			require.Positive(t, made)
			later.Wait()
			w.read()
			for i, e := range w.eng {
				require.Zero(t, e.kept(), "member %d", i)
			}
			w.close()
			for i, e := range w.eng {
				require.Zero(t, e.link.Pool.Stats().InUse, "member %d", i)
			}
		}
	}
}

// All kinds that have lanes with spares have the results of those without.
func TestSparesOfEveryKind(t *testing.T) {
	w := spared(t, 3, 8, 2, shape{})
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		w.run(rng, draw(rng, w, allKinds[rng.IntN(len(allKinds))], []int{0, 1, 40, 3000}[rng.IntN(4)]))
	}
}

// An operation that fails while a reader waits for the rest of a frame ends without it.
func TestAbortWhileAFrameIsHeldUp(t *testing.T) {
	var mu sync.Mutex
	var at int64
	var w *world
	all := func(on bool) {
		for _, c := range w.out[[2]int{0, 1}] {
			c.(*transporttest.Conn).Stall(on)
		}
	}
	w = spared(t, 2, 4, 1, shape{
		link: memoryLink(transporttest.Options{Buffer: 1 << 20, Piece: 64}), hit: func(call int64) {
			mu.Lock()
			defer mu.Unlock()
			if call == at {
				all(true)
			}
		},
	})
	rng := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		w.read()
		mu.Lock()
		at = w.calls.Load() + 1
		mu.Unlock()
		k := draw(rng, w, plan.AllReduce, 4000)
		k.varied, k.counts = false, []int{1000, 1000}
		k.fill(w, rng)
		s := w.start(k.specs)
		for _, op := range s.ops {
			op.Abort(errTest)
		}
		require.ErrorIs(t, s.wait(t)[1], errTest)
		s.finish(true)
		k.restored(t, false, "aborted")
		mu.Lock()
		at = 0
		all(false)
		mu.Unlock()
	}
	w.run(rng, draw(rng, w, plan.AllReduce, 4000))
}

// Of so many tags in one epoch a receiver keeps numbers, and no more lanes have spares.
func TestTagsWithSparesAreBounded(t *testing.T) {
	w := spared(t, 2, 4, 1, shape{})
	rng := rand.New(rand.NewPCG(8, 9))
	one := func(epoch, tag uint64) bool {
		k := draw(rng, w, plan.AllReduce, 0)
		k.dt, k.varied, k.counts = dtype.Float32, false, []int{300, 300}
		k.fill(w, rng)
		for i := range k.specs {
			k.specs[i].Tag = tag
		}
		s, commence := w.startMixed(k.specs, epoch, 3, []int{0, 1})
		has := s.ops[0].outs[0].spares != nil
		commence()
		s.ok(t)
		k.right(t, "tag %d", tag)
		s.finish(false)
		return has
	}
	for tag := range uint64(mostGenerations) {
		require.True(t, one(1, tag), "tag %d", tag)
	}
	require.False(t, one(1, mostGenerations))
	require.True(t, one(1, 3))
	require.True(t, one(2, mostGenerations))
	require.Len(t, w.eng[1].ahead.past[w.ids[0]], 1)
}

// Peers that do not know spares get none, and lanes that are long, or short, have none.
func TestWhichLanesHaveSpares(t *testing.T) {
	pool, asked := 4, 0
	has := func(bytes int, older bool) (spares bool) {
		spares, asked = hasSpares(t, shape{n: 2, pool: pool, older: older, cfg: Config{spares: 1}}, bytes)
		return spares
	}
	require.True(t, has(64<<10, false))
	require.False(t, has(64<<10, true))
	require.True(t, has(mostSpared, false))
	require.False(t, has(mostSpared+64, false))
	require.False(t, has(2*link.LeastFar, false)) // each of two segments is one piece

	// A pool that is too small for spares is asked to grow, unless the lane is too short for them.
	require.Zero(t, asked)
	pool = leastConns - 1
	require.False(t, has(64<<10, false))
	require.Equal(t, usualConns, asked)
	require.False(t, has(64<<10, true))
	require.Zero(t, asked)
	require.False(t, has(2*link.LeastFar, false))
	require.Zero(t, asked)
}

// hasSpares reports whether lanes of an all-reduce of so many bytes between distant members have spares,
// and how many connections to a peer were asked for; 0: none.
func hasSpares(t *testing.T, of shape, bytes int) (spares bool, asked int) {
	of.mesh, of.vary = true, func(_ int, c *Config, _ *int) { c.distant = true }
	w := newWorld(t, of)
	defer w.close()
	op, err := w.eng[0].New(Spec{Kind: plan.AllReduce, Tag: 1, DType: dtype.Float32, Op: dtype.Sum, Src: make([]byte, bytes), Dst: make([]byte, bytes)})
	require.NoError(t, err)
	op.Start(w.begin(0, 1, func(error) {}))
	op.Abort(nil)
	op.Finish(true)
	return op.outs[0].spares != nil, w.eng[0].hub.Wanted(w.ids[1])
}

// Where nothing is known ways are taken to lose what is usual: then a short lane of many members has
// spares, one of few has none, and where pieces are small more has to be lost.
func TestSparesOfUnknownWays(t *testing.T) {
	for _, c := range []struct {
		n, bytes int
		want     bool
	}{
		{4, 400_000, false}, {8, 400_000, true}, {16, 400_000, false}, {16, 1_000_000, true},
	} {
		has, _ := hasSpares(t, shape{n: c.n, pool: usualConns}, c.bytes)
		require.Equal(t, c.want, has, "%v", c)
		// A pool that is too small is asked to grow where spares would be worth it.
		has, asked := hasSpares(t, shape{n: c.n, pool: leastConns - 1}, c.bytes)
		require.False(t, has)
		require.Equal(t, c.want, asked > 0, "%v", c)
	}
}

// spareHead is the head of a frame of a lane with spares.
func spareHead(total uint64, p part) []byte {
	b := make([]byte, headBytes+spareBytes, headBytes+spareBytes+len(p.data))
	putHead(b, p.size|spareBit, p.index, total)
	p.put(b[headBytes:])
	return append(b, p.data...)
}

// Frames of spares that are not as they should be end the operation with an error that says what
// is wrong; inputs are as before, and no memory stays out.
func TestHostileSpares(t *testing.T) {
	const size, total = 64, 600 // of two members both blocks: 10 pieces, the last of 24 bytes
	data := make([]byte, indexBytes+mostSparePiece+size)
	piece := func(index, group, place int) part {
		return part{size: size, index: index, generation: 1, group: group, spares: 2, place: place, data: data[:size]}
	}
	spare := func(group, number, pieces int, of ...int) part {
		b := make([]byte, indexBytes+size)
		for place, index := range of {
			erasure.Add(b, binary.BigEndian.AppendUint32(nil, uint32(index)), number, place)
		}
		return part{size: size, generation: 1, group: group, spares: 2, pieces: pieces, place: number, data: b}
	}
	with := func(p part, change func(p *part)) part {
		change(&p)
		return p
	}
	for name, c := range map[string]struct {
		parts []part
		says  string
	}{
		"index":          {[]part{piece(10, 0, 0)}, "piece 10 of 10"},
		"group":          {[]part{piece(0, 10, 0)}, "group 10 of 10"},
		"place":          {[]part{piece(0, 0, 64)}, "place 64"},
		"same place":     {[]part{piece(0, 0, 0), piece(1, 0, 0)}, "place 0 is taken"},
		"length":         {[]part{with(piece(0, 0, 0), func(p *part) { p.data = data[:60] })}, "has 60 bytes, not 64"},
		"size":           {[]part{with(piece(0, 0, 0), func(p *part) { p.size = 63 })}, "pieces of 63 bytes"},
		"other size":     {[]part{piece(0, 0, 0), with(piece(1, 0, 1), func(p *part) { p.size = 128 })}, "after others"},
		"large":          {[]part{with(piece(0, 0, 0), func(p *part) { p.data = data })}, "with spares"},
		"no spares":      {[]part{with(piece(0, 0, 0), func(p *part) { p.spares = 0 })}, "with 0 spares"},
		"many spares":    {[]part{with(piece(0, 0, 0), func(p *part) { p.spares = mostSpares + 1 })}, "with 9 spares"},
		"other spares":   {[]part{piece(0, 0, 0), with(piece(1, 0, 1), func(p *part) { p.spares = 3 })}, "after others"},
		"twice":          {[]part{piece(0, 0, 0), piece(0, 0, 1)}, "piece 0 came twice"},
		"spare twice":    {[]part{spare(0, 0, 2, 0), spare(0, 0, 2, 0)}, "spare 0 of 2 of group 0"},
		"number":         {[]part{spare(0, 2, 2, 0)}, "spare 2 of 2 of group 0"},
		"few pieces":     {[]part{piece(0, 0, 0), piece(1, 0, 1), spare(0, 0, 1, 0)}, "of 1 pieces"},
		"short spare":    {[]part{with(spare(0, 0, 1, 0), func(p *part) { p.data = p.data[:3] })}, "with 3 bytes"},
		"long spare":     {[]part{with(spare(0, 0, 1, 0), func(p *part) { p.data = data[:indexBytes+size+1] })}, "with 69 bytes"},
		"the same twice": {[]part{spare(0, 0, 2, 7, 7), spare(0, 1, 2, 7, 7)}, "two pieces of a group are piece 7"},
		"places beyond":  {[]part{piece(0, 0, 5), spare(0, 0, 2, 1)}, "a group of 2 pieces has others"},
		"bytes":          {[]part{piece(0, 0, 0)}, "sends 664 bytes"},
		"generation":     {[]part{piece(0, 0, 0), with(piece(1, 0, 1), func(p *part) { p.generation = 2 })}, "generation 2 after 1"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAlone(t, 2, true, Config{})
			src := slices.Repeat([]byte{3}, total)
			op, err := a.e.New(Spec{Kind: plan.AllReduce, Tag: 9, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src})
			require.NoError(t, err)
			done := make(chan error, 2)
			op.Start(Start{Epoch: 1, Eager: true, Members: a.ids, Ring: a.ids, Self: a.ids[0], Mesh: true, Done: func(err error) { done <- err }})
			bytes := uint64(total)
			if name == "bytes" {
				bytes += 64
			}
			for _, p := range c.parts {
				a.frame(1, 9, mark|eagerBit|1, spareHead(bytes, p))
			}
			err = verdict(t, done)
			require.ErrorContains(t, err, c.says)
			if name != "bytes" {
				require.ErrorIs(t, err, errs.Protocol)
			}
			op.Finish(true)
			require.Equal(t, slices.Repeat([]byte{3}, total), src)
			a.w.close()
			require.Zero(t, a.e.link.Pool.Stats().InUse)
		})
	}
}

// A sender that gives up amid a spare sends zeros in its place: nothing is made of it, and nobody is
// to blame. What comes is taken as ever.
func TestSpareOfAnAbortedSender(t *testing.T) {
	const size, total = 64, 600
	a := newAlone(t, 2, true, Config{})
	op, done := a.start(1, Spec{Kind: plan.AllReduce, Tag: 9, DType: dtype.Uint8, Op: dtype.Sum, Src: make([]byte, total), Dst: make([]byte, total)})
	cut := part{size: size, generation: 1, group: 1, spares: 1, pieces: 1, data: make([]byte, indexBytes+size)}
	for index := range 10 {
		n := size
		if index == 9 {
			n = 24
		}
		a.frame(1, 9, mark|1, spareHead(total, part{size: size, index: index, generation: 1, group: index / 5, spares: 1, place: index % 5, data: make([]byte, n)}))
		if index == 0 {
			a.frame(1, 9, mark|1, spareHead(total, cut)) // of the piece that was there already, as the zeros say
		}
	}
	require.NoError(t, verdict(t, done))
	op.Finish(false)
}

// What is held up is dropped, too, where the next operation with the tag gets nothing from there.
func TestHeldUpFramesOfAnotherKind(t *testing.T) {
	w := spared(t, 3, 8, 1, shape{})
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range 20 {
		conn := w.out[[2]int{2, 1}][rng.IntN(8)].(*transporttest.Conn)
		conn.Stall(true)
		k := draw(rng, w, plan.AllReduce, 0)
		k.varied, k.counts = false, slices.Repeat([]int{1000}, 3)
		k.fill(w, rng)
		s, commence := w.startMixed(k.specs, 1, 7, []int{0, 1, 2})
		commence()
		s.ok(t)
		k.right(t, "operation %d", i)
		s.finish(false)
		b := draw(rng, w, []plan.Kind{plan.Broadcast, plan.AllGather}[i%2], 0)
		b.root, b.varied, b.counts, b.code = 0, false, slices.Repeat([]int{600}, 3), nil
		if b.kind == plan.AllGather { // along the ring, so that member 1 has a lane from member 0 alone
			b.quantize(rng)
		}
		b.fill(w, rng)
		specs := slices.Clone(b.specs)
		s, commence = w.startMixed(specs, 1, 6, []int{2, 1, 0}) // member 1 waits for member 0
		if conn.Stall(false); b.kind == plan.Broadcast {        // nothing is kept meanwhile
			w.read()
		}
		commence()
		s.ok(t)
		b.right(t, "%v %d", b.kind, i)
		s.finish(false)
	}
}

// Frames with spares of any content, in any order: inputs come back, and no memory stays out.
func FuzzSpares(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 2, 1})
	f.Add([]byte{9, 1, 2, 4, 4, 0, 0, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		const size, total = 64, 600
		a := newAlone(t, 2, true, Config{FutureWait: 1})
		src := slices.Repeat([]byte{3}, total)
		op, err := a.e.New(Spec{Kind: plan.AllReduce, Tag: 9, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src})
		require.NoError(t, err)
		done := make(chan error, 2)
		op.Start(Start{Epoch: 1, Eager: true, Members: a.ids, Ring: a.ids, Self: a.ids[0], Mesh: true, Done: func(err error) { done <- err }})
		for ; len(in) >= 4; in = in[4:] {
			p := part{size: size, index: int(in[0] % 12), group: int(in[1] % 12), spares: 2, pieces: int(in[2] % 4), place: int(in[2] >> 2 % 4), generation: uint32(in[3] % 3)}
			n := size
			if p.pieces > 0 {
				n += indexBytes
			} else if p.index == 9 {
				n = 24
			}
			p.data = slices.Repeat(in[3:4], n)
			if p.pieces > 0 {
				clear(p.data[:3])
			}
			b := spareHead(total, p)
			h := make([]byte, transport.HeaderSize)
			transport.Header{Payload: len(b), Tag: 9, Stream: mark | eagerBit | 1}.Put((*[transport.HeaderSize]byte)(h))
			if _, err := a.from[1].Write(append(h, b...)); err != nil {
				break
			}
		}
		a.from[1].Close()
		op.Abort(errTest)
		verdict(t, done)
		op.Finish(true)
		require.Equal(t, slices.Repeat([]byte{3}, total), src)
		a.w.close()
		require.Zero(t, a.e.link.Pool.Stats().InUse)
	})
}
