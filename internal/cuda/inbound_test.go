package cuda

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
	"github.com/gopccl/gopccl/quantizers/blocks"
	"github.com/gopccl/gopccl/quantizers/minmax"
	"github.com/gopccl/gopccl/quantizers/zeropoint"
)

// encode begins an operation whose bytes from..to are described and come in turns
// with the others, and waits until all are there.
func (r *trainer) encode(task device.Task, from, to int) (*staging, *watcher, error) {
	s := r.stage(task)
	require.True(r.t, s.Describe(from, to))
	mid := from + (to-from)/2/8*8
	w := newWatcher()
	s.Begin([]device.Range{{From: from, To: mid}, {From: 0, To: from}, {From: mid, To: to}, {From: to, To: task.Source.Bytes}}, w)
	for {
		select {
		case n := <-w.arrived:
			if n == task.Source.Bytes {
				return s, w, nil
			}
		case err := <-w.ended:
			return s, w, err
		}
	}
}

// The own chunk is encoded on the device, with the bits of the quantizer, whatever
// it has to encode. What crosses the bus is the wire form, and in place the
// original, which is back on the device after an abort.
func TestEncoded(t *testing.T) {
	r := prepared(t)
	for k, c := range []struct {
		z     quant.Quantizer
		wires []dtype.Type
	}{
		{minmax.New(), []dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Uint32}},
		{zeropoint.New(), []dtype.Type{dtype.Uint8, dtype.Int8, dtype.Uint16, dtype.Int16, dtype.Uint32, dtype.Int32, dtype.Int64}},
	} {
		for _, typ := range []dtype.Type{dtype.Float32, dtype.Float64} {
			for j, q := range c.wires {
				n := []int{1, 1000, 1700}[j%3]
				for i, x := range []float64{0.5, math.NaN(), math.Inf(-1), math.Copysign(0, -1), 1e300} {
					inPlace := (i+j+k)%2 == 0
					b := numbers(typ, n+7, n/2+3, x)
					src := r.tensor(0, b)
					dst := src
					if !inPlace {
						dst = r.tensor(0, make([]byte, len(b)))
					}
					from, to := 3*typ.Size(), (3+n)*typ.Size()
					what := []any{"%s of %d %v as %v with %v, in place %v", c.z.Name(), n, typ, q, x, inPlace}
					s, w, err := r.encode(device.Task{Source: src, Target: dst, DType: typ, Op: dtype.Sum, Quantizer: c.z, Wire: q}, from, to)
					require.NoError(t, err, what...)
					m, want := s.Params(), make([]byte, n*q.Size())
					c.z.Quantize(typ, q, &m, want, b[from:to])
					require.True(t, bytes.Equal(want, s.Encoded()), what...)
					host, result := s.Memory()
					require.True(t, bytes.Equal(b[:from], host[:from]), what...)
					require.True(t, bytes.Equal(b[to:], host[to:]), what...)
					clear(result)
					s.Put(0, len(b))
					require.NoError(t, w.end(t), what...)
					require.True(t, bytes.Equal(make([]byte, len(b)), r.content(dst)), what...)
					require.NoError(t, s.Restore())
					s.Release()
					require.True(t, bytes.Equal(b, r.content(src)), what...)
					if r.free(src); !inPlace {
						r.free(dst)
					}
				}
			}
		}
	}
	r.close()
}

// Of float32 as uint8 a quarter crosses the bus.
func TestEncodedIsAQuarterOfTheBus(t *testing.T) {
	r := prepared(t)
	const n, chunk = 16000, 8000
	x, y := r.tensor(0, numbers(dtype.Float32, n/4, 1, 2)), r.tensor(0, make([]byte, n))
	copied := func(target device.Buffer, z quant.Quantizer) int {
		before, _ := r.d.Copied()
		task := device.Task{Source: x, Target: target, DType: dtype.Float32, Op: dtype.Sum, Quantizer: z, Wire: dtype.Uint8}
		s, w, err := r.encode(task, 0, chunk)
		require.NoError(t, err)
		s.Put(0, n)
		require.NoError(t, w.end(t))
		s.Release()
		after, _ := r.d.Copied()
		return after - before
	}
	const bounds = 24
	require.Equal(t, bounds+chunk/4+chunk, copied(y, minmax.New()))
	require.Equal(t, bounds+chunk/4+chunk+chunk, copied(x, minmax.New()), "in place the original follows")
	require.Equal(t, bounds+n, copied(y, newOther()), "there are no kernels for it")
	r.free(y)
	r.close(x)
}

// other is a quantizer with the parameters of minmax and a wire form of its own.
type other struct {
	quant.Quantizer
	quant.Bounded
}

func (other) Name() string { return "other" }

func newOther() quant.Quantizer { return other{minmax.New(), minmax.New().(quant.Bounded)} }

// Nothing is overwritten before the host has what restores it, in whichever order
// the device works; an abort at any moment puts it back.
func TestOriginalsComeFirst(t *testing.T) {
	for seed := range uint64(20) {
		r := newTrainer(t, ptxtest.Options{Seed: seed}, device.Settings{})
		require.NoError(t, r.p.Probe())
		d, err := r.p.device(0)
		require.NoError(t, err)
		d.compiled("params", "quantize")
		r.p.background.Wait()
		const n = 12000
		b := numbers(dtype.Float32, n/4, 1, 2)
		x := r.tensor(0, b)
		task := device.Task{Source: x, Target: x, DType: dtype.Float32, Op: dtype.Sum, Quantizer: minmax.New(), Wire: dtype.Uint8}
		s := r.stage(task)
		require.True(t, s.Describe(0, n))
		w := newWatcher()
		s.Begin([]device.Range{{From: 0, To: n}}, w)
		first := <-w.arrived
		_, result := s.Memory()
		clear(result)
		s.Put(0, n/2)
		if seed%2 == 0 {
			w.until(t, n)
			s.Put(n/2, n)
			require.NoError(t, w.end(t))
			require.True(t, bytes.Equal(make([]byte, n), r.content(x)))
		} else {
			for range seed % 8 {
				<-w.arrived
			}
			s.Stop()
			require.NoError(t, w.end(t))
		}
		require.Less(t, first, n)
		require.NoError(t, s.Restore())
		s.Release()
		require.True(t, bytes.Equal(b, r.content(x)), "seed %d", seed)
		r.close(x)
	}
}

// Whichever call fails while a chunk is encoded, the operation ends with it, the
// tensor is as it was, and the next operation works.
func TestEncodingFails(t *testing.T) {
	r := prepared(t)
	const n = 8000
	b := numbers(dtype.Float32, n/4, 1, 2)
	x := r.tensor(0, b)
	task := device.Task{Source: x, Target: x, DType: dtype.Float32, Op: dtype.Sum, Quantizer: minmax.New(), Wire: dtype.Uint8}
	run := func() error {
		s, w, err := r.encode(task, 0, n/2)
		if err == nil {
			s.Put(0, n)
			err = w.end(t)
		}
		require.NoError(t, s.Restore())
		s.Release()
		require.True(t, bytes.Equal(b, r.content(x)))
		return err
	}
	require.NoError(t, run())
	before := r.d.Calls()
	require.NoError(t, run())
	after := r.d.Calls()
	for _, call := range []string{"cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuEventSynchronize"} {
		times := after[call] - before[call]
		require.Greater(t, times, 5, call)
		for nth := 2; nth <= 8; nth += 2 {
			if call == "cuEventRecord" && nth == 2 {
				continue
			}
			r.d.Fail(call, min(nth, times-4), driver.OutOfMemory)
			err := run()
			require.ErrorIs(t, err, errs.DeviceFailed, "%s, call %d", call, nth)
			require.ErrorIs(t, err, &driver.Error{Result: driver.OutOfMemory}, "%s, call %d", call, nth)
			require.NoError(t, run())
		}
	}
	r.close(x)
}

// What has kernels for its parameters alone, or for nothing, is encoded on the host.
func TestNotEncoded(t *testing.T) {
	r := prepared(t)
	x := r.tensor(0, numbers(dtype.Float32, 1000, 1, 2))
	for _, z := range []quant.Quantizer{newOther(), blocks.New()} {
		s := r.stage(device.Task{Source: x, Target: x, DType: dtype.Float32, Op: dtype.Sum, Quantizer: z, Wire: dtype.Uint8})
		s.Describe(0, 2000)
		require.Nil(t, s.Encoded())
		require.False(t, s.encoded)
		s.Release()
	}
	r.close(x)
}
