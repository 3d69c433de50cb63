package reduce

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// card is a device of this process: its memory are slices, and its copies take
// place on goroutines, a few bytes at a time.
type card struct {
	device.Platform
	piece int

	mu     sync.Mutex
	memory map[uint64][]byte
	stages int           // that were not released
	gate   chan struct{} // nil: copies need no leave
	opens  bool          // those to the device need none
	broken error         // of the copy after the next `after` ones
	after  int
	copies atomic.Int64 // bytes to the device

	reduces bool
	reduced atomic.Int64 // bytes

	describes, encodes bool
	described          atomic.Int64 // chunks
	decodes            bool
	decoded            atomic.Int64 // bytes, of elements
	floats             atomic.Int64 // bytes to the host that are not encoded
}

var errBroken = errs.New(errs.DeviceFailed, "copy", errors.New("a bolt came loose"))

func newCard(t testing.TB, piece int) *card {
	c := &card{piece: piece, memory: map[uint64][]byte{}}
	t.Cleanup(device.Replace("card", c))
	return c
}

// add makes b memory of the card.
func (c *card) add(b []byte) device.Buffer {
	c.mu.Lock()
	defer c.mu.Unlock()
	ptr := uint64(len(c.memory)+1) << 32
	c.memory[ptr] = b
	return device.Buffer{Platform: "card", Ptr: ptr, Bytes: len(b)}
}

// take makes the specs' buffers memory of the card.
func (c *card) take(specs []Spec) []Spec {
	out := append([]Spec(nil), specs...)
	for i := range out {
		s := &out[i]
		s.DeviceSrc = c.add(s.Src)
		s.DeviceDst = s.DeviceSrc
		if len(s.Src) > 0 && &s.Src[0] != &s.Dst[0] {
			s.DeviceDst = c.add(s.Dst)
		}
		s.Src, s.Dst = nil, nil
	}
	return out
}

func (c *card) Stage(t device.Task) (device.Staging, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stages++
	s := &cardStage{c: c, t: t, src: make([]byte, t.Source.Bytes)}
	s.dst = s.src
	if t.Source.Ptr == t.Target.Ptr {
		s.dst = make([]byte, t.Source.Bytes)
	}
	s.more.L = &s.mu
	return s, nil
}

type cardStage struct {
	c        *card
	t        device.Task
	src, dst []byte
	params   quant.Meta
	own      device.Range
	original []byte // of own, in place
	encoded  []byte

	mu      sync.Mutex
	more    sync.Cond
	puts    []cardPut
	written []device.Range
	stopped bool
}

// cardPut is final; wire says what the card makes it of.
type cardPut struct {
	device.Range
	wire  []byte
	meta  quant.Meta
	world int
}

func (s *cardStage) Memory() (src, dst []byte) { return s.src, s.dst }

func (s *cardStage) Begin(ranges []device.Range, e device.Events) {
	total := 0
	for _, r := range ranges {
		total += r.To - r.From
	}
	if total != len(s.src) && !s.c.reduces {
		panic("the ranges do not cover the source")
	}
	var both sync.WaitGroup
	var failed atomic.Pointer[error]
	step := func(gated bool, f func()) bool {
		if s.c.gate != nil && gated {
			<-s.c.gate
		}
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		if s.c.broken != nil {
			if s.c.after--; s.c.after < 0 {
				failed.Store(&s.c.broken)
				return false
			}
		}
		f()
		return true
	}
	both.Go(func() {
		arrived := 0
		for _, r := range ranges {
			for at := r.From; at < r.To; {
				n := min(s.c.piece, r.To-at)
				s.mu.Lock()
				stopped := s.stopped
				s.mu.Unlock()
				if stopped || !step(true, func() { s.take(at, n) }) {
					s.Stop()
					return
				}
				at += n
				arrived += n
				e.Arrived(arrived)
			}
		}
	})
	both.Go(func() {
		for sent := 0; sent < len(s.src); {
			s.mu.Lock()
			for len(s.puts) == 0 && !s.stopped {
				s.more.Wait()
			}
			stopped := s.stopped
			var r cardPut
			if !stopped {
				r = s.puts[0]
				s.puts = s.puts[1:]
				s.written = append(s.written, r.Range)
			}
			s.mu.Unlock()
			if stopped || !step(!s.c.opens, func() { s.give(&r) }) {
				s.Stop()
				return
			}
			s.c.copies.Add(int64(r.To - r.From))
			sent += r.To - r.From
		}
	})
	go func() {
		both.Wait()
		if err := failed.Load(); err != nil {
			e.Ended(*err)
			return
		}
		e.Ended(nil)
	}()
}

// give takes p to the card.
func (s *cardStage) give(p *cardPut) {
	to := s.c.memory[s.t.Target.Ptr][p.From:p.To]
	if p.wire == nil {
		copy(to, s.dst[p.From:p.To])
		return
	}
	s.t.Quantizer.Dequantize(s.t.DType, s.t.Wire, &p.meta, dtype.Set, to, p.wire)
	if p.world > 0 {
		b, _, err := backend.Select("cpu_generic")
		if err != nil {
			panic(err)
		}
		b.Finalize(s.t.DType, to, p.world)
	}
	s.c.decoded.Add(int64(len(to)))
}

// take brings n bytes to the host, in wire form if they are to be encoded; then
// nobody may look at the others.
func (s *cardStage) take(at, n int) {
	from := s.c.memory[s.t.Source.Ptr][at : at+n]
	if s.encoded == nil || at < s.own.From || at >= s.own.To {
		s.c.floats.Add(int64(copy(s.src[at:], from)))
		return
	}
	wire := func(n int) int { return n / s.t.DType.Size() * s.t.Wire.Size() }
	s.t.Quantizer.Quantize(s.t.DType, s.t.Wire, &s.params, s.encoded[wire(at-s.own.From):][:wire(n)], from)
	for i := at; i < at+n; i++ {
		s.src[i] = 0xee
	}
}

func (s *cardStage) Describe(from, to int) bool {
	if s.c.describes {
		own := s.c.memory[s.t.Source.Ptr][from:to]
		s.params = s.t.Quantizer.Params(s.t.DType, s.t.Wire, own)
		if quant.FormOf(s.t.Quantizer, s.t.DType, s.t.Wire).Elements == 1 && s.c.encodes {
			s.own, s.original = device.Range{From: from, To: to}, bytes.Clone(own)
			s.encoded = make([]byte, (to-from)/s.t.DType.Size()*s.t.Wire.Size())
		}
	}
	return s.c.describes
}

func (s *cardStage) Encoded() []byte { return s.encoded }

func (s *cardStage) Params() quant.Meta {
	s.c.described.Add(1)
	return s.params
}

func (s *cardStage) Reduces() bool { return s.c.reduces }

func (s *cardStage) Reduce(from, to int, in []byte, world int) error {
	b, _, err := backend.Select("cpu_generic")
	if err != nil {
		return err
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.c.broken != nil {
		if s.c.after--; s.c.after < 0 {
			return s.c.broken
		}
	}
	b.Reduce(s.t.DType, s.t.Op, s.dst[from:to], s.c.memory[s.t.Source.Ptr][from:to], in)
	if world > 0 {
		b.Finalize(s.t.DType, s.dst[from:to], world)
	}
	s.c.reduced.Add(int64(to - from))
	return nil
}

func (s *cardStage) Put(from, to int) {
	s.add(cardPut{Range: device.Range{From: from, To: to}})
}

func (s *cardStage) Decodes() bool { return s.c.decodes }

func (s *cardStage) PutEncoded(from, to int, q []byte, m *quant.Meta, world int) {
	if !s.c.decodes || len(q) != quant.FormOf(s.t.Quantizer, s.t.DType, s.t.Wire).Size((to-from)/s.t.DType.Size()) {
		panic("this is not the wire form")
	}
	s.add(cardPut{device.Range{From: from, To: to}, q, *m, world})
}

func (s *cardStage) add(p cardPut) {
	s.mu.Lock()
	defer s.mu.Unlock()
	twice := func(r device.Range) bool { return p.From < r.To && r.From < p.To }
	if slices.ContainsFunc(s.written, twice) || slices.ContainsFunc(s.puts, func(q cardPut) bool { return twice(q.Range) }) {
		panic("put twice")
	}
	s.puts = append(s.puts, p)
	s.more.Signal()
}

func (s *cardStage) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.more.Signal()
}

func (s *cardStage) Restore() error {
	if s.t.Source.Ptr == s.t.Target.Ptr {
		copy(s.src[s.own.From:], s.original)
		for _, r := range s.written {
			copy(s.c.memory[s.t.Target.Ptr][r.From:r.To], s.src[r.From:r.To])
		}
	}
	return nil
}

func (s *cardStage) Release() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.stages--
}

// deviceShapes are rings in which data takes every way through an operation.
func deviceShapes() []shape {
	shapes := []shape{
		{n: 2, native: true, knows: true, cfg: Config{Link: link.Config{FrameBytes: 128}}},
		{n: 3, cfg: Config{Link: link.Config{FrameBytes: 64}}}, // as PCCL: everybody divides
		{n: 4, native: true, knows: true, cfg: Config{Link: link.Config{FrameBytes: 4096}}},
		striping(2, 4),
		striping(3, 2),
		{n: 3, link: memory(transporttest.Options{Buffer: 7, Piece: 3}), cfg: Config{Link: link.Config{FrameBytes: 64}}},
	}
	for i := range shapes {
		shapes[i].cfg.turnBytes = 64 << i
	}
	return shapes
}

// The own chunk and that of step 0 arrive in turns, whatever their lengths are.
func TestTurns(t *testing.T) {
	for _, c := range [][3]int64{{100, 100, 16}, {96, 100, 16}, {100, 96, 16}, {0, 5, 16}, {5, 0, 16}, {16, 16, 16}, {40, 8, 16}, {100, 100, 0}} {
		own, other, turn := c[0], c[1], turns{own: c[0], piece: c[2]}
		var order []bool // byte by byte: of the own chunk
		row := func(n int64, mine bool) {
			for range n {
				order = append(order, mine)
			}
		}
		left := func() int64 { return min(own, other) }
		for ; turn.piece > 0 && left() >= turn.piece; turn.pairs++ {
			row(turn.piece, true)
			row(turn.piece, false)
			own, other = own-turn.piece, other-turn.piece
		}
		row(own, true)
		row(other, false)
		var mine, others int64
		for n, m := range order {
			require.Equal(t, mine, turn.ownAt(int64(n)), "%v, %d bytes", c, n)
			if m {
				mine++
				continue
			}
			others++
			require.EqualValues(t, n+1, turn.until(others), "%v, %d bytes of the other", c, others)
		}
		require.Equal(t, c[0], turn.ownAt(int64(len(order))))
	}
}

// What the network brings is reduced while the own chunk is still on its way.
func TestReducesBeforeTheOwnChunkIsThere(t *testing.T) {
	for k, pool := range []int{1, 3, 1, 3} {
		const piece = 4096
		c := newCard(t, piece)
		c.reduces = k >= 2 // then nothing but the own chunk has to come
		c.gate, c.opens = make(chan struct{}), true
		open := sync.OnceFunc(func() { close(c.gate) })
		s := shape{n: 2, native: true, knows: true}
		if pool > 1 {
			s = striping(2, pool)
		}
		s.cfg.turnBytes = piece
		s.cfg.Link.FrameBytes = piece
		r := newRing(t, s)
		defer open()
		specs, want := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 16*piece/4, false)
		mixed := c.take(specs)
		mixed[1] = specs[1] // of the host
		st := r.start(mixed)
		for range 8 >> (k / 2 * 2) {
			c.gate <- struct{}{}
		}
		op := st.ops[0]
		require.Eventually(t, func() bool { return op.in.pos.Load() >= 3*piece }, patience, time.Millisecond)
		require.Less(t, op.dev.turns.ownAt(op.dev.arrived.Load()), op.dev.turns.own)
		open()
		st.ok(t)
		for i := range specs {
			require.True(t, bytes.Equal(want, specs[i].Dst), "rank %d", i)
		}
		r.close()
	}
}

// Device tensors give the bits of host tensors, in and out of place, whichever
// way their bytes travel, and every byte goes to the device once.
func TestDeviceMatchesOracle(t *testing.T) {
	c := newCard(t, 96)
	for k, s := range deviceShapes() {
		r := newRing(t, s)
		rng := rand.New(rand.NewPCG(uint64(k), 1))
		for _, dt := range []dtype.Type{dtype.Float32, dtype.Int64, dtype.BFloat16, dtype.Uint8} {
			for _, how := range []dtype.Op{dtype.Sum, dtype.Avg, dtype.Max} {
				for _, count := range []int{1, s.n - 1, 331, 160 * s.n} {
					inPlace := rng.IntN(2) == 0
					c.reduces = rng.IntN(2) == 0
					specs, want := r.specs(rng, dt, how, count, inPlace)
					before := keep(specs)
					c.copies.Store(0)
					r.start(c.take(specs)).ok(t)
					for i, s := range specs {
						require.True(t, bytes.Equal(want, s.Dst), "shape %d, rank %d, %v %v of %d, in place %v", k, i, how, dt, count, inPlace)
						if !inPlace {
							require.Equal(t, before[i], s.Src)
						}
					}
					require.EqualValues(t, s.n*count*dt.Size(), c.copies.Load())
				}
			}
		}
		r.close()
	}
	require.Zero(t, c.stages)
	require.Positive(t, c.reduced.Load())
}

// The same for quantized operations, whose parameters are those of whole chunks.
func TestDeviceQuantized(t *testing.T) {
	c := newCard(t, 160)
	c.reduces = true // which is of no effect
	encoded := 0
	for k, s := range deviceShapes() {
		r := newRing(t, s)
		for i, q := range quantCases() {
			rng := rand.New(rand.NewPCG(uint64(k), uint64(i)))
			codec, err := quant.Lookup(q.name)
			require.NoError(t, err)
			specs, _ := r.specs(rng, q.dt, q.how, 64*s.n*(1+rng.IntN(12))+rng.IntN(5), i%2 == 0)
			var src [][]byte
			for i := range specs {
				src = append(src, append([]byte(nil), specs[i].Src...))
				specs[i].Quantizer, specs[i].WireType = codec, q.wt
			}
			want := quantOracle(r, codec, q, src)
			c.describes, c.encodes, c.decodes = (i+k)%3 > 0, (i+k)%3 > 1, (i+k)%2 > 0
			c.described.Store(0)
			c.floats.Store(0)
			c.decoded.Store(0)
			r.start(c.take(specs)).ok(t)
			if c.describes {
				require.EqualValues(t, s.n, c.described.Load(), "once for each peer")
			}
			own := 0
			if c.encodes && quant.FormOf(codec, q.dt, q.wt).Elements == 1 {
				encoded++
				own = len(src[0]) // each chunk is one peer's own
			}
			require.EqualValues(t, s.n*len(src[0])-own, c.floats.Load())
			if results := c.decoded.Load(); c.decodes {
				require.EqualValues(t, s.n*len(src[0]), results, "all results")
			} else {
				require.Zero(t, results)
			}
			for i, s := range specs {
				require.True(t, bytes.Equal(want, s.Dst), "shape %d, rank %d, %+v", k, i, q)
			}
		}
		r.close()
	}
	require.Zero(t, c.stages)
	require.Zero(t, c.reduced.Load())
	require.Greater(t, encoded, 10)
}

// An abort at any copy, a late one too, restores the device's memory bit by
// bit, and leaves nothing behind.
func TestDeviceAbortRestores(t *testing.T) {
	for k, s := range deviceShapes()[:5] {
		for at := 0; ; at++ {
			c := newCard(t, 256)
			c.reduces = at%2 == 1
			c.gate = make(chan struct{})
			r := newRing(t, s)
			specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Avg, 160*s.n, k%2 == 0)
			c.encodes, c.decodes = at%2 == 0, at%4 < 2
			if c.describes = at%3 == 0; c.describes {
				q, err := quant.Lookup("minmax")
				require.NoError(t, err)
				for i := range specs {
					specs[i].Quantizer, specs[i].WireType = q, dtype.Uint8
				}
			}
			before := keep(specs)
			was := make([][]byte, len(specs))
			for i := range specs {
				was[i] = append([]byte(nil), specs[i].Dst...)
			}
			st := r.start(c.take(specs))
			over := 0
			for left := at * 2; left > 0 && over < len(specs); left-- { // so many copies, then the master's word
				select {
				case c.gate <- struct{}{}:
				case err := <-st.errs[over]:
					require.NoError(t, err)
					st.errs[over] <- nil
					over++
				}
			}
			for _, op := range st.ops {
				op.Abort(errTest)
			}
			close(c.gate)
			st.wait(t)
			for i, op := range st.ops {
				op.Finish(true)
				require.True(t, bytes.Equal(before[i], specs[i].Src), "shape %d, rank %d, abort at %d", k, i, at)
			}
			r.close()
			require.Zero(t, c.stages)
			if over == len(specs) {
				require.Greater(t, at, 4)
				break
			}
		}
	}
}

// A device that fails ends its peer's part with the cause; whoever waits for
// local data lets go at once.
func TestDeviceFails(t *testing.T) {
	for k, s := range deviceShapes() {
		for _, after := range []int{0, 3, 20} {
			c := newCard(t, 64)
			c.reduces = after == 20
			r := newRing(t, s)
			specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 64*s.n*9, false)
			c.broken, c.after = errBroken, after
			st := r.start(c.take(specs))
			for i, c := range st.errs {
				select {
				case err := <-c:
					require.ErrorIs(t, err, errs.DeviceFailed, "shape %d, rank %d", k, i)
					require.ErrorContains(t, err, "a bolt came loose")
				case <-time.After(patience):
					t.Fatal("done was not called")
				}
				st.ops[i].Finish(true)
			}
			r.close()
			require.Zero(t, c.stages)
		}
	}
}

// A caller's stream that never gets there holds up its own operation alone, and
// that one only until it is aborted; the state says what is waited for.
func TestDeviceNeverReady(t *testing.T) {
	c := newCard(t, 64)
	c.gate = make(chan struct{})
	r := newRing(t, shape{n: 2, native: true, knows: true})
	rng := rand.New(rand.NewPCG(1, 1))
	specs, _ := r.specs(rng, dtype.Float32, dtype.Sum, 1000, true)
	mixed := c.take(specs)
	mixed[1].Src, mixed[1].Dst, mixed[1].DeviceSrc, mixed[1].DeviceDst = specs[1].Src, specs[1].Dst, device.Buffer{}, device.Buffer{}
	st := r.start(mixed)
	require.Eventually(t, func() bool { return r.eng[0].Stats().Writes+r.eng[1].Stats().Writes > 0 }, patience, time.Millisecond)
	require.Contains(t, st.ops[0].State().Waits, "device: 0 of 4000 bytes of the source have come")
	for _, op := range st.ops {
		op.Abort(errTest)
	}
	close(c.gate)
	for _, err := range st.wait(t) {
		require.ErrorIs(t, err, errTest)
	}
	for _, op := range st.ops {
		op.Finish(true)
	}
	c.gate = nil
	r.run(rng, dtype.Float32, dtype.Sum, 1000, true)
}

// With parameters from the platform, quantized data is sent while the own chunk is
// still on its way.
func TestQuantizedIsSentAsItArrives(t *testing.T) {
	for _, pool := range []int{1, 3} {
		const piece = 4096
		c := newCard(t, piece)
		c.describes, c.encodes, c.opens, c.gate = true, pool == 3, true, make(chan struct{})
		open := sync.OnceFunc(func() { close(c.gate) })
		s := shape{n: 2, native: true, knows: true}
		if pool > 1 {
			s = striping(2, pool)
		}
		s.cfg.turnBytes = piece
		r := newRing(t, s)
		defer open()
		q := quantCases()[0]
		codec, err := quant.Lookup(q.name)
		require.NoError(t, err)
		specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), q.dt, q.how, 16*piece/q.dt.Size(), false)
		var src [][]byte
		for i := range specs {
			src = append(src, append([]byte(nil), specs[i].Src...))
			specs[i].Quantizer, specs[i].WireType = codec, q.wt
		}
		want := quantOracle(r, codec, q, src)
		mixed := c.take(specs)
		mixed[1] = specs[1] // of the host
		st := r.start(mixed)
		for range 8 {
			c.gate <- struct{}{}
		}
		to := st.ops[1]
		sent := int64(3 * piece / q.dt.Size() * q.wt.Size())
		require.Eventually(t, func() bool { return to.in.pos.Load() >= sent }, patience, time.Millisecond)
		d := st.ops[0].dev
		require.Less(t, d.turns.ownAt(d.arrived.Load()), d.turns.own)
		open()
		st.ok(t)
		for i := range specs {
			require.True(t, bytes.Equal(want, specs[i].Dst), "rank %d", i)
		}
		r.close()
	}
}

// A ring of one copies on the device, or does nothing.
func TestDeviceAlone(t *testing.T) {
	c := newCard(t, 64)
	r := newRing(t, shape{n: 1})
	for _, inPlace := range []bool{true, false} {
		specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Avg, 100, inPlace)
		before := keep(specs)
		r.start(c.take(specs)).ok(t)
		require.Equal(t, before[0], specs[0].Dst)
	}
	require.Zero(t, c.stages)
}

func TestDeviceSpecIsChecked(t *testing.T) {
	newCard(t, 64)
	e := newEngine(Config{Backend: generic(t)})
	defer e.Close()
	b := device.Buffer{Platform: "card", Ptr: 1 << 32, Bytes: 32}
	ok := Spec{Count: 8, DType: dtype.Float32, Op: dtype.Sum, DeviceSrc: b, DeviceDst: b}
	for what, change := range map[string]func(*Spec){
		"not both on a device":        func(s *Spec) { s.DeviceDst, s.Dst = device.Buffer{}, make([]byte, 32) },
		"the destination on \"cuda\"": func(s *Spec) { s.DeviceDst.Platform = device.CUDA },
		"8 elements of float32":       func(s *Spec) { s.DeviceSrc.Bytes = 31 },
		"destination has 64 bytes":    func(s *Spec) { s.DeviceDst.Bytes = 64 },
		"only in part":                func(s *Spec) { s.DeviceDst.Ptr += 4 },
		"nothing serves":              func(s *Spec) { s.DeviceSrc.Platform, s.DeviceDst.Platform = "abacus", "abacus" },
	} {
		s := ok
		change(&s)
		_, err := e.NewOp(s)
		require.ErrorIs(t, err, errs.InvalidArgument, what)
		require.ErrorContains(t, err, what)
	}
	op, err := e.NewOp(Spec{DType: dtype.Float32, Op: dtype.Sum, DeviceSrc: device.Buffer{Platform: "card"}, DeviceDst: device.Buffer{Platform: "card"}})
	require.NoError(t, err, "no elements need no device")
	op.Finish(true)
}
