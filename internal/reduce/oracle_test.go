package reduce

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
)

// Data spec, sections 2.1 to 2.3 and 3: worlds, counts around the world size
// and odd sizes, in and out of place, small frames.
func TestRingMatchesOracle(t *testing.T) {
	for n := 2; n <= 9; n++ {
		t.Run(name("world %d", n), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			r := newRing(t, shape{n: n, cfg: Config{Link: link.Config{FrameBytes: 64}}})
			for count := 0; count <= 40; count++ {
				r.run(rng, dtype.Float32, dtype.Sum, count, count%2 == 0) // S1-29, S1-30, S2-35
			}
			for _, count := range []int{97, 1000, 4099} {
				r.run(rng, dtype.Float32, dtype.Sum, count, false)
				r.run(rng, dtype.Float64, dtype.Sum, count, true)
			}
		})
	}
}

// Every element type with every operation; among gopccl ends (the owner
// divides) and with the schedule of PCCL (everybody divides) avg gives the same
// bits. Data spec, section 3.
func TestEveryTypeAndOperation(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		for _, native := range []bool{false, true} {
			r := newRing(t, shape{n: n, native: native, knows: native, cfg: Config{Link: link.Config{FrameBytes: 128}}})
			for dt := range dtype.Type(dtype.NumTypes) {
				for _, how := range allOps {
					rng := rand.New(rand.NewPCG(uint64(dt), uint64(how)))
					for _, inPlace := range []bool{false, true} {
						r.run(rng, dt, how, 331, inPlace) // S2-30
						r.run(rng, dt, how, n-1, inPlace)
					}
				}
			}
			r.close()
		}
	}
}

// divisions counts the bytes that are divided.
type divisions struct {
	backend.Backend
	bytes atomic.Int64
}

func (d *divisions) Finalize(t dtype.Type, dst []byte, world int) {
	d.bytes.Add(int64(len(dst)))
	d.Backend.Finalize(t, dst, world)
}

// Among gopccl ends each element is divided once in the whole ring, with PCCL
// ends once by everybody.
func TestAvgDivides(t *testing.T) {
	for _, native := range []bool{true, false} {
		d := &divisions{Backend: generic(t)}
		r := newRing(t, shape{n: 4, native: native, knows: native, cfg: Config{Backend: d, Link: link.Config{FrameBytes: 64}}})
		specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Avg, 1000, false)
		d.bytes.Store(0)
		r.start(specs).ok(t)
		if native {
			require.EqualValues(t, 4000, d.bytes.Load())
		} else {
			require.EqualValues(t, 16000, d.bytes.Load())
		}
	}
}

// Real sockets, the default frame, pools of several connections, and readers
// and senders that meet full buffers.
func TestRingOverLoopback(t *testing.T) {
	counts := []int{1, 1000, 300_001, 2_000_003}
	if raceEnabled || testing.Short() {
		counts = counts[:3] // the rest is arithmetic, a minute of it with the detector
	}
	for _, s := range []shape{{n: 2}, {n: 2, pool: 3, native: true}, {n: 3, pool: 2}, {n: 4, native: true}, {n: 2, pool: 4, native: true, knows: true, flows: true}} {
		s.link = loopback
		r := newRing(t, s)
		rng := rand.New(rand.NewPCG(7, uint64(s.n)))
		for _, count := range counts {
			r.run(rng, dtype.Float32, dtype.Avg, count, false)
			r.run(rng, dtype.Float32, dtype.Sum, count, true)
		}
		r.close()
	}
}

// Connections that deliver in crumbs and hold almost nothing: progress must
// not depend on any buffer.
func TestTinyBuffers(t *testing.T) {
	for _, o := range []transporttest.Options{{Buffer: 1}, {Buffer: 7, Piece: 3}, {Buffer: 100, Piece: 1}} {
		r := newRing(t, shape{n: 3, link: memory(o), cfg: Config{Link: link.Config{FrameBytes: 64}}})
		rng := rand.New(rand.NewPCG(3, 3))
		r.run(rng, dtype.Float64, dtype.Sum, 101, false)
		r.run(rng, dtype.Int16, dtype.Max, 77, true)
		r.close()
	}
}

// quantCase is one legal combination with the quantizers that are built in.
type quantCase struct {
	name   string
	dt, wt dtype.Type
	how    dtype.Op
}

func quantCases() []quantCase {
	cases := []quantCase{
		{"minmax", dtype.Float32, dtype.Uint8, dtype.Sum},
		{"minmax", dtype.Float32, dtype.Uint8, dtype.Avg},
		{"minmax", dtype.Float32, dtype.Uint16, dtype.Prod},
		{"minmax", dtype.Float64, dtype.Uint32, dtype.Max},
		{"minmax", dtype.Float64, dtype.Uint8, dtype.Min},
		{"minmax", dtype.Float64, dtype.Uint16, dtype.Avg},
		{"zeropoint", dtype.Float32, dtype.Int8, dtype.Sum},
		{"zeropoint", dtype.Float32, dtype.Uint8, dtype.Avg},
		{"zeropoint", dtype.Float64, dtype.Int16, dtype.Sum},
		{"zeropoint", dtype.Float64, dtype.Uint32, dtype.Avg},
	}
	return cases
}

// quantOracle does by the letter of the data spec, section 4.3, what all ranks end up with.
func quantOracle(r *ring, q quant.Quantizer, c quantCase, src [][]byte) []byte {
	n, size := len(src), c.dt.Size()
	count := len(src[0]) / size
	out := make([]byte, len(src[0]))
	hop := func(op dtype.Op, dst, from []byte) {
		m := q.Params(c.dt, c.wt, from)
		w := make([]byte, quant.FormOf(q, c.dt, c.wt).Size(len(from)/size))
		q.Quantize(c.dt, c.wt, &m, w, from)
		q.Dequantize(c.dt, c.wt, &m, op, dst, w)
	}
	how := c.how
	if how == dtype.Avg {
		how = dtype.Sum
	}
	for chunk := range n {
		first, length := plan.Chunk(count, n, chunk)
		part := func(b []byte) []byte { return append([]byte(nil), b[first*size:(first+length)*size]...) }
		acc := part(src[chunk])
		for k := 1; k < n; k++ {
			local := part(src[(chunk+k)%n])
			hop(how, local, acc)
			acc = local
		}
		hop(dtype.Set, out[first*size:(first+length)*size], acc)
	}
	if c.how == dtype.Avg {
		r.shape.cfg.Backend.Finalize(c.dt, out, n)
	}
	return out
}

// Data spec, section 4: every hop quantizes afresh, the owner adopts its own
// dequantized values, what is forwarded is not touched: bit-identical results
// on all ranks.
func TestQuantized(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		r := newRing(t, shape{n: n, cfg: Config{Link: link.Config{FrameBytes: 64}}})
		for _, c := range quantCases() {
			q, err := quant.Lookup(c.name)
			require.NoError(t, err)
			for _, count := range []int{2 * n, 2*n + 1, 333, 1000} {
				for _, inPlace := range []bool{false, true} {
					rng := rand.New(rand.NewPCG(uint64(n), uint64(count)))
					specs, plain := r.specs(rng, c.dt, c.how, count, inPlace)
					var src [][]byte
					for i := range specs {
						src = append(src, append([]byte(nil), specs[i].Src...))
						specs[i].Quantizer, specs[i].WireType = q, c.wt
					}
					want := quantOracle(r, q, c, src)
					r.start(specs).ok(t)
					for i, s := range specs {
						require.Equal(t, want, s.Dst, "rank %d of %d: %+v, %d elements, in place %v", i, n, c, count, inPlace) // S0-21, S2-35
					}
					if count == 1000 && c.wt.Size() == 1 {
						require.NotEqual(t, plain, want, "quantization did not happen") // S0-19
					}
				}
			}
		}
		r.close()
	}
}

// A wire type equal to the data type travels unquantized (data spec, section 4.1).
func TestQuantizedSameType(t *testing.T) {
	q, err := quant.Lookup("zeropoint")
	require.NoError(t, err)
	r := newRing(t, shape{n: 3})
	specs, want := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Avg, 50, false)
	for i := range specs {
		specs[i].Quantizer, specs[i].WireType = q, dtype.Float32
	}
	if q.Check(dtype.Float32, dtype.Float32, dtype.Avg, 50, true) != nil {
		_, err := r.eng[0].NewOp(specs[0])
		require.Error(t, err)
		return
	}
	r.start(specs).ok(t)
	require.Equal(t, want, specs[1].Dst)
}

// Fewer elements than ranks cannot be quantized (quirk Q28): every rank's phase
// ends with an error at once, nothing is sent.
func TestQuantizedTooFewElements(t *testing.T) {
	q, err := quant.Lookup("minmax")
	require.NoError(t, err)
	r := newRing(t, shape{n: 3, native: true, knows: true})
	specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 2, false)
	for i := range specs {
		specs[i].Quantizer, specs[i].WireType = q, dtype.Uint8
	}
	for _, err := range r.start(specs).wait(t) {
		require.Error(t, err)
	}
	for _, e := range r.eng {
		require.Zero(t, e.Stats().TxFrames)
	}
}

// Byte counters as PCCL shows them (data spec, section 5, quirk Q43).
func TestCounters(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		r := newRing(t, shape{n: n})
		specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 10, false)
		s := r.start(specs)
		for _, err := range s.wait(t) {
			require.NoError(t, err)
		}
		for i, op := range s.ops {
			sent, received := plan.Traffic(10, n, i)
			tx, rx := op.Counters()
			require.Equal(t, []uint64{uint64(4 * sent), uint64(4 * received)}, []uint64{tx, rx}) // S1-29
			op.Finish(false)
		}
		if n == 4 { // exactly 2(n-1)/n of the buffer if it divides
			specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 400, false)
			s := r.start(specs)
			s.wait(t)
			tx, rx := s.ops[0].Counters()
			require.Equal(t, []uint64{2400, 2400}, []uint64{tx, rx})
		}
		r.close()
	}
}

func TestSpecIsChecked(t *testing.T) {
	e := newEngine(Config{Backend: generic(t)})
	defer e.Close()
	buf := make([]byte, 64)
	ok := Spec{Count: 8, DType: dtype.Float32, Op: dtype.Sum, Src: buf[:32], Dst: buf[32:]}
	_, err := e.NewOp(ok)
	require.NoError(t, err)
	q, _ := quant.Lookup("minmax")
	for what, change := range map[string]func(*Spec){
		"type":            func(s *Spec) { s.DType = 12 },
		"set":             func(s *Spec) { s.Op = dtype.Set },
		"operation":       func(s *Spec) { s.Op = 6 },
		"negative count":  func(s *Spec) { s.Count = -1 },
		"short source":    func(s *Spec) { s.Src = buf[:28] },
		"ragged":          func(s *Spec) { s.Src, s.Dst = buf[:33], buf[:33] },
		"long target":     func(s *Spec) { s.Dst = buf },
		"partial overlap": func(s *Spec) { s.Dst = buf[4:36] },
		"overlap by one":  func(s *Spec) { s.Src, s.Dst = buf[28:60], buf[:32] },
		"combination": func(s *Spec) {
			s.Quantizer, s.WireType = q, dtype.Int8
		},
	} {
		s := ok
		change(&s)
		_, err := e.NewOp(s)
		require.Error(t, err, what)
		require.Contains(t, err.Error(), "invalid argument", what)
	}
	s := ok
	s.Dst = s.Src
	_, err = e.NewOp(s)
	require.NoError(t, err)
}

// A ring of one has nothing to send: the result is the source.
func TestWorldOfOne(t *testing.T) {
	e := newEngine(Config{Backend: generic(t)})
	defer e.Close()
	src, dst := []byte{1, 2, 3}, make([]byte, 3)
	op, err := e.NewOp(Spec{Count: 3, DType: dtype.Uint8, Op: dtype.Avg, Src: src, Dst: dst})
	require.NoError(t, err)
	done := make(chan error, 1)
	op.Start(Start{Seq: 1, Ring: []wire.UUID{uuid(0)}, Self: uuid(0), Native: true, Done: func(err error) { done <- err }})
	require.NoError(t, <-done)
	require.Equal(t, src, dst)
	op.Finish(false)
}

// A peer that is not in the ring it is given is told so.
func TestNotInRing(t *testing.T) {
	r := newRing(t, shape{n: 2})
	op, err := r.eng[0].NewOp(Spec{Count: 1, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1}, Dst: []byte{1}})
	require.NoError(t, err)
	done := make(chan error, 1)
	op.Start(Start{Seq: 1, Ring: []wire.UUID{uuid(7), uuid(8)}, Self: uuid(0), Native: true, Done: func(err error) { done <- err }})
	require.ErrorContains(t, <-done, "not in the ring")
	op.Finish(true)
}
