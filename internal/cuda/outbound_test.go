package cuda

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
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

// decoding returns a trainer whose platform has the kernels that decode.
func decoding(t *testing.T, o ptxtest.Options, s device.Settings) *trainer {
	r := newTrainer(t, o, s)
	x := r.tensor(0, make([]byte, 64))
	task := device.Task{Source: x, Target: x, DType: dtype.Float32, Op: dtype.Avg, Quantizer: minmax.New(), Wire: dtype.Uint8}
	st := r.stage(task)
	require.False(t, st.Decodes(), "a launch does not wait for the compiler")
	st.Release()
	r.p.background.Wait()
	r.free(x)
	return r
}

// decode begins an operation and waits until its source is there.
func (r *trainer) decode(task device.Task) (*staging, *watcher, error) {
	s := r.stage(task)
	require.True(r.t, s.Decodes())
	w := newWatcher()
	s.Begin([]device.Range{{From: 0, To: task.Source.Bytes}}, w)
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

// Results are decoded, and divided, on the device with the bits of the quantizer and
// of the reduce backend, whatever they are, however they are cut. They cross the bus
// in wire form.
func TestDecoded(t *testing.T) {
	generic, _, err := backend.Select("cpu_generic")
	require.NoError(t, err)
	for _, limit := range []int64{0, 1} { // no memory can be pinned within 1 byte
		r := decoding(t, ptxtest.Options{}, device.Settings{Staging: limit})
		for k, c := range []struct {
			z     quant.Quantizer
			wires []dtype.Type
		}{
			{minmax.New(), []dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Uint32}},
			{zeropoint.New(), []dtype.Type{dtype.Uint8, dtype.Int8, dtype.Uint16, dtype.Int16, dtype.Uint32, dtype.Int32, dtype.Int64}},
		} {
			for _, typ := range []dtype.Type{dtype.Float32, dtype.Float64} {
				for j, q := range c.wires {
					n := []int{1, 1000, 3700}[(j+k)%3]
					for i, x := range []float64{0.5, math.NaN(), math.Inf(-1), math.Copysign(0, -1), 1e300} {
						if limit > 0 && i > 1 {
							continue
						}
						r.decoded(generic, c.z, typ, q, n, x, i+j+k)
					}
				}
			}
		}
		r.close()
	}
}

// decoded compares one operation: of n elements before, some that are not encoded
// come behind.
func (r *trainer) decoded(generic backend.Backend, z quant.Quantizer, typ, q dtype.Type, n int, x float64, turn int) {
	const plain = 5
	b := numbers(typ, n+plain, n/2, x)
	src := r.tensor(0, b)
	dst := src
	if turn%2 > 0 {
		dst = r.tensor(0, make([]byte, len(b)))
	}
	how, world := dtype.Sum, 0
	if turn%3 > 0 {
		how, world = dtype.Avg, 3
	}
	what := []any{"%s of %d %v as %v with %v, %v, turn %d", z.Name(), n, typ, q, x, how, turn}
	end := n * typ.Size()
	m := z.Params(typ, q, b[:end])
	wire, want := make([]byte, n*q.Size()), bytes.Clone(b)
	z.Quantize(typ, q, &m, wire, b[:end])
	for i := range wire[:len(wire)/2] {
		wire[i] += byte(i * 37) // what another peer sends may be anything
	}
	z.Dequantize(typ, q, &m, dtype.Set, want[:end], wire)
	if world > 0 {
		generic.Finalize(typ, want[:end], world)
	}
	_, before := r.d.Copied()
	s, w, err := r.decode(device.Task{Source: src, Target: dst, DType: typ, Op: how, Quantizer: z, Wire: q})
	require.NoError(r.t, err, what...)
	_, host := s.Memory()
	copy(host[end:], b[end:])
	for at, step := 0, 1; at < n; step *= 5 {
		to := min(n, at+step)
		s.PutEncoded(at*typ.Size(), to*typ.Size(), wire[at*q.Size():to*q.Size()], &m, world)
		at = to
	}
	s.Put(end, len(b))
	require.NoError(r.t, w.end(r.t), what...)
	require.True(r.t, bytes.Equal(want, r.content(dst)), what...)
	_, after := r.d.Copied()
	require.Equal(r.t, len(wire)+plain*typ.Size(), after-before, what...)
	require.NoError(r.t, s.Restore())
	s.Release()
	require.True(r.t, bytes.Equal(b, r.content(src)), what...)
	if r.free(src); dst != src {
		r.free(dst)
	}
}

// What follows what was put, and lies behind it on the wire, is decoded with it.
func TestPutsAreJoined(t *testing.T) {
	wire, m := make([]byte, 100), quant.Meta{Kind: quant.MinMax, Max: 1}
	at := func(from, to, world int, m quant.Meta) put {
		return put{device.Range{From: 4 * from, To: 4 * to}, wire[from:to], m, world}
	}
	plain := func(from, to int) put { return put{Range: device.Range{From: 4 * from, To: 4 * to}} }
	other := put{device.Range{From: 40, To: 44}, make([]byte, 1), m, 0}
	for _, c := range []struct {
		first, second put
		joined        bool
	}{
		{at(0, 10, 0, m), at(10, 20, 0, m), true},
		{at(0, 10, 2, m), at(10, 11, 2, m), true},
		{at(0, 10, 0, m), at(11, 20, 0, m), false},
		{at(0, 10, 0, m), at(10, 20, 3, m), false},
		{at(0, 10, 0, m), at(10, 20, 0, quant.Meta{Kind: quant.MinMax, Max: 2}), false},
		{at(0, 10, 0, m), plain(10, 20), false},
		{plain(0, 10), at(10, 20, 0, m), false},
		{plain(0, 10), plain(10, 20), true},
		{plain(0, 10), plain(11, 20), false},
		{at(0, 10, 0, m), other, false},
		{put{device.Range{From: 0, To: 400}, wire, m, 0}, put{device.Range{From: 400, To: 404}, wire[:1], m, 0}, false},
	} {
		p := c.first
		require.Equal(t, c.joined, p.extend(&c.second), "%+v", c)
		if !c.joined {
			require.Equal(t, c.first, p)
			continue
		}
		require.Equal(t, device.Range{From: c.first.From, To: c.second.To}, p.Range)
		require.Len(t, p.wire, len(c.first.wire)+len(c.second.wire))
	}
}

// Whichever call fails while results are decoded, the operation ends with it, the
// tensor is as it was, and the next operation works.
func TestDecodingFails(t *testing.T) {
	r := decoding(t, ptxtest.Options{}, device.Settings{})
	const n = 8000
	b, m := numbers(dtype.Float32, n/4, 1, 2), quant.Meta{Kind: quant.MinMax, DType: dtype.Float32, Max: 1}
	wire := random(n/4, 1)
	x := r.tensor(0, b)
	task := device.Task{Source: x, Target: x, DType: dtype.Float32, Op: dtype.Avg, Quantizer: minmax.New(), Wire: dtype.Uint8}
	run := func(fail func()) error {
		s, w, err := r.decode(task)
		require.NoError(t, err)
		fail()
		s.PutEncoded(0, n, wire, &m, 2)
		err = w.end(t)
		require.NoError(t, s.Restore())
		s.Release()
		require.True(t, bytes.Equal(b, r.content(x)))
		return err
	}
	nothing := func() {}
	// Only the first operation allocates.
	require.ErrorIs(t, run(func() { r.d.Fail("cuMemAlloc_v2", 1, driver.OutOfMemory) }), &driver.Error{Result: driver.OutOfMemory})
	require.NoError(t, run(nothing))
	for call, times := range map[string]int{"cuLaunchKernel": 6, "cuMemcpyHtoDAsync_v2": 3, "cuEventRecord": 3, "cuEventSynchronize": 1} {
		for nth := 1; nth <= times; nth++ {
			err := run(func() { r.d.Fail(call, nth, driver.OutOfMemory) })
			require.ErrorIs(t, err, errs.DeviceFailed, "%s, call %d", call, nth)
			require.ErrorIs(t, err, &driver.Error{Result: driver.OutOfMemory}, "%s, call %d", call, nth)
			require.NoError(t, run(nothing))
		}
	}
	r.close(x)
}

// What has no kernels is decoded on the host, and so is what they cannot write to.
func TestNotDecoded(t *testing.T) {
	r := decoding(t, ptxtest.Options{}, device.Settings{})
	x := r.tensor(0, numbers(dtype.Float32, 1000, 1, 2))
	odd := x
	odd.Ptr, odd.Bytes = x.Ptr+2, 2000
	for _, task := range []device.Task{
		{Source: x, Target: x, DType: dtype.Float32, Quantizer: newOther(), Wire: dtype.Uint8},
		{Source: x, Target: x, DType: dtype.Float32, Quantizer: blocks.New(), Wire: dtype.Int4},
		{Source: odd, Target: odd, DType: dtype.Float32, Quantizer: minmax.New(), Wire: dtype.Uint8},
	} {
		s := r.stage(task)
		require.False(t, s.Decodes(), "%+v", task)
		s.Release()
	}
	r.close(x)
}
