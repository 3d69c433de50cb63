package reduce

import (
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/allocs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// 64 operations under 64 tags at once, of all sizes, plain and quantized, over
// one and over several connections with small buffers: no deadlock, every
// result exact. Each rank starts them in the order of the sequence numbers but
// at its own pace.
func TestManyOperationsAtOnce(t *testing.T) {
	q, err := quant.Lookup("minmax")
	require.NoError(t, err)
	for _, s := range []shape{
		{n: 3, cfg: Config{Link: link.Config{FrameBytes: 128}}, link: memory(transporttest.Options{Buffer: 300})},
		{n: 4, pool: 3, native: true, cfg: Config{Link: link.Config{FrameBytes: 1024}}, link: memory(transporttest.Options{Buffer: 5000, Piece: 700})},
		{n: 2, pool: 2, link: loopback},
		{n: 3, pool: 3, native: true, knows: true, flows: true, cfg: Config{Link: link.Config{FrameBytes: 256}, minStripe: 64}, link: memory(transporttest.Options{Buffer: 900})},
	} {
		r := newRing(t, s)
		const ops = 64
		rng := rand.New(rand.NewPCG(1, 1))
		specs := make([][]Spec, ops)
		want := make([][]byte, ops)
		for k := range ops {
			count := rng.IntN(3000) + s.n
			specs[k], want[k] = r.specs(rng, dtype.Float32, allOps[k%5], count, k%2 == 0)
			if k%3 == 0 {
				c := quantCase{"minmax", dtype.Float32, dtype.Uint8, allOps[k%5]}
				var src [][]byte
				for i := range specs[k] {
					specs[k][i].Quantizer, specs[k][i].WireType = q, c.wt
					src = append(src, append([]byte(nil), specs[k][i].Src...))
				}
				want[k] = quantOracle(r, q, c, src)
			}
		}
		var wg sync.WaitGroup
		var running sync.WaitGroup
		var failed atomic.Int64
		for i := range s.n {
			wg.Add(1)
			go func() {
				defer wg.Done()
				own := rand.New(rand.NewPCG(uint64(i), 9))
				for k := range ops {
					spec := specs[k][i]
					spec.Tag = uint64(1000 + k)
					op, err := r.eng[i].NewOp(spec)
					if err != nil {
						failed.Add(1)
						return
					}
					for range own.IntN(50) {
						runtime.Gosched()
					}
					running.Add(1)
					op.Start(Start{Seq: uint64(k), Ring: r.ids, Self: r.ids[i], Native: s.native, Done: func(err error) {
						if err != nil {
							failed.Add(1)
						}
						running.Done()
					}})
				}
			}()
		}
		wg.Wait()
		finished := make(chan struct{})
		go func() { running.Wait(); close(finished) }()
		select {
		case <-finished:
		case <-time.After(patience):
			t.Fatal("the operations do not end")
		}
		require.Zero(t, failed.Load())
		for k := range ops {
			for i := range s.n {
				require.Equal(t, want[k], specs[k][i].Dst, "operation %d, rank %d", k, i) // S1-03, S1-33
			}
		}
		r.close()
	}
}

// Some of many operations are aborted; the others are exact, and so is what
// runs under the same tags afterwards.
func TestAbortSomeOfMany(t *testing.T) {
	r := newRing(t, shape{n: 3, pool: 2, cfg: Config{Link: link.Config{FrameBytes: 64}}, link: memory(transporttest.Options{Buffer: 200})})
	rng := rand.New(rand.NewPCG(4, 4))
	for range 20 {
		var all []*started
		var specs [][]Spec
		var want, before [][]byte
		for k := range 12 {
			s, w := r.specs(rng, dtype.Float32, dtype.Sum, 100+10*k, true)
			for i := range s {
				s[i].Tag = uint64(k)
			}
			specs, want, before = append(specs, s), append(want, w), append(before, keep(s)...)
			all = append(all, r.start(s))
			if k%3 == 1 {
				for _, op := range all[k].ops {
					op.Abort(errTest)
				}
			}
		}
		for k, s := range all {
			verdicts := s.wait(t)
			for i, op := range s.ops {
				if k%3 == 1 {
					op.Finish(true)
					require.Equal(t, before[3*k+i], specs[k][i].Src)
					continue
				}
				require.NoError(t, verdicts[i]) // S2-21
				op.Finish(false)
				require.Equal(t, want[k], specs[k][i].Dst) // S2-34
			}
		}
	}
}

// countingConn counts calls that cost a system call or a timer.
type countingConn struct {
	*transporttest.Conn
	deadlines *atomic.Int64
}

func (c countingConn) SetReadDeadline(t time.Time) error {
	c.deadlines.Add(1)
	return c.Conn.SetReadDeadline(t)
}

func (c countingConn) SetWriteDeadline(t time.Time) error {
	c.deadlines.Add(1)
	return c.Conn.SetWriteDeadline(t)
}

// Being interruptible costs an operation nothing that the system sees: no
// deadline is ever set unless something is aborted.
func TestInterruptibleWithoutExtraCalls(t *testing.T) {
	var calls atomic.Int64
	r := newRing(t, shape{n: 2, cfg: Config{Link: link.Config{FrameBytes: 64}}, link: func(testing.TB) (net.Conn, net.Conn) {
		a, b := transporttest.Pair(transporttest.Options{})
		return countingConn{a, &calls}, countingConn{b, &calls}
	}})
	r.run(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 1000, true)
	require.Zero(t, calls.Load()) // S0-23
	r.out[0][0].(countingConn).Stall(true)
	specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 100_000, true)
	s := r.start(specs)
	for _, op := range s.ops {
		op.Abort(errTest)
	}
	s.wait(t)
	for _, op := range s.ops {
		op.Finish(true)
	}
	require.Positive(t, calls.Load())
}

// Both directions of a rank are independent: while nothing can be received
// everything that needs no data leaves, and the other way round.
func TestDirectionsAreIndependent(t *testing.T) {
	r := newRing(t, shape{n: 2, cfg: Config{Link: link.Config{FrameBytes: 64}}, link: memory(transporttest.Options{Buffer: 1 << 20})})
	r.out[1][0].(*transporttest.Conn).Stall(true) // rank 0 receives nothing
	const count = 1000
	specs, want := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Uint8, dtype.Sum, count, false)
	s := r.start(specs)
	// Rank 0 can send its own chunk, rank 1 that and the chunk it finishes.
	require.Eventually(t, func() bool { // S0-12
		return r.eng[0].Stats().TxBytes == count/2 && r.eng[1].Stats().TxBytes == count
	}, patience, time.Millisecond)
	r.out[1][0].(*transporttest.Conn).Stall(false)
	s.ok(t)
	require.Equal(t, want, specs[0].Dst)
}

// joinedBytes is the size of a write up to which link joins headers and payload.
const joinedBytes = 8 << 10

// The unquantized path hands the tensor's own memory to the system. Writes of up
// to joinedBytes are joined with their header instead, which costs less than a
// second entry of a vector: those may be copied, and nothing else is.
func TestSendsReferenceTheTensor(t *testing.T) {
	for _, count := range []int{64, 4000, 4096, 1 << 16, 1 << 20} {
		var lent []*lender
		r := newRing(t, shape{n: 2, native: true, link: func(testing.TB) (net.Conn, net.Conn) {
			a, b := transporttest.Pair(transporttest.Options{})
			lent = append(lent, &lender{Conn: a})
			return lent[len(lent)-1], b
		}})
		specs, want := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, count, false)
		for i := range specs {
			lent[i].tensors = [][]byte{specs[i].Src, specs[i].Dst}
		}
		r.start(specs).ok(t)
		for i, e := range r.eng {
			require.Equal(t, want, specs[i].Dst)
			require.EqualValues(t, 4*count, e.Stats().TxBytes)
			if 4*count/2+transport.HeaderSize > joinedBytes { // a frame is a header and half of the tensor
				require.Zero(t, e.Stats().Copied, "%d elements", count) // S0-13
				require.EqualValues(t, 4*count, lent[i].bytes.Load(), "%d elements: written from the tensors' own memory", count)
			} else {
				require.EqualValues(t, e.Stats().TxBytes, e.Stats().Copied+uint64(lent[i].bytes.Load()), "%d elements", count)
			}
		}
		r.close()
	}
}

// lender counts the written bytes that lie in the memory of tensors.
type lender struct {
	net.Conn
	tensors [][]byte
	bytes   atomic.Int64
}

func (l *lender) Write(p []byte) (int, error) {
	for _, t := range l.tensors {
		at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
		if first := uintptr(unsafe.Pointer(unsafe.SliceData(t))); first <= at && at < first+uintptr(len(t)) {
			l.bytes.Add(int64(len(p)))
		}
	}
	return l.Conn.Write(p)
}

// After warm-up an operation allocates as much with thousands of frames as with
// two, and all buffers come from the pool.
func TestNothingIsAllocatedPerFrame(t *testing.T) {
	r := newRing(t, shape{n: 2, link: loopback, cfg: Config{Link: link.Config{FrameBytes: 1024}}})
	measure := func(count int, inPlace bool) float64 {
		specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, count, inPlace)
		r.start(specs).ok(t)
		return allocs.PerRun(5, func() { r.start(specs).ok(t) })
	}
	long := 1 << 18 // 1024 frames per rank
	if testing.Short() {
		long = 1 << 15
	}
	few := measure(4, true)
	hits := func() (uint64, uint64) {
		b := r.eng[0].Buffers()
		return b.Gets, b.Hits
	}
	many := measure(long, true)
	require.True(t, raceEnabled || many-few < 16, "few frames: %v allocations, many: %v", few, many) // S0-14
	gets, hit := hits()
	specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, long, true)
	for range 5 {
		r.start(specs).ok(t)
	}
	gets2, hit2 := hits()
	// On a loaded machine a step may hold a buffer more than any before.
	require.LessOrEqual(t, (gets2-gets)-(hit2-hit), uint64(2), "the buffers of the steady state come from the cache") // S0-15
	require.Positive(t, gets2-gets)
}
