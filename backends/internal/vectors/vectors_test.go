package vectors

import (
	"io"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
)

// slices makes a level whose kernels are those of plain Go.
func slices(t *testing.T) *Level {
	plain := At("", nil).Plain()
	l := &Level{Name: "slices", Step: 64}
	for typ := range dtype.Type(dtype.NumTypes) {
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			l.Reduce[typ][op] = func(dst, a, b *byte, n int) {
				require.True(t, n > 0 && n%l.Step == 0, "%d bytes", n)
				plain.Reduce(typ, op, unsafe.Slice(dst, n), unsafe.Slice(a, n), unsafe.Slice(b, n))
			}
		}
	}
	l.Divide = func(typ dtype.Type, dst *byte, n, world int) {
		require.True(t, n > 0 && n%l.Step == 0 && typ.IsFloat() && world > 1, "%v, %d bytes, %d", typ, n, world)
		plain.Finalize(typ, unsafe.Slice(dst, n), world)
	}
	return l
}

// Kernels get whole vectors, plain Go the rest.
func TestWholeVectorsAndTheRest(t *testing.T) {
	b := At("some", slices(t))
	require.Equal(t, "some", b.Name())
	x, y := make([]byte, 400), make([]byte, 400)
	for i := range x {
		x[i], y[i] = byte(i*37), byte(i*i*11)
	}
	got, want := make([]byte, 400), make([]byte, 400)
	for n := 0; n <= 320; n += 4 {
		b.Reduce(dtype.Uint32, dtype.Max, got[n%3:][:n], x[1:][:n], y[:n])
		b.Plain().Reduce(dtype.Uint32, dtype.Max, want[n%3:][:n], x[1:][:n], y[:n])
		b.Finalize(dtype.Float32, got[:n], 1+n%5)
		b.Plain().Finalize(dtype.Float32, want[:n], 1+n%5)
		require.Equal(t, want, got, "%d bytes", n)
	}
}

// A level that the machine lacks has no backend, nor has one with wrong results.
func TestDriver(t *testing.T) {
	with := func(l *Level, err error) Driver {
		return Driver{Name: "some", Order: 3, Level: func() (*Level, error) { return l, err }}
	}
	right, wrong, wrongDivide := slices(t), slices(t), slices(t)
	wrong.Reduce[dtype.Int16][dtype.Min] = wrong.Reduce[dtype.Int16][dtype.Max]
	wrongDivide.Divide = func(dtype.Type, *byte, int, int) {}
	b, err := with(right, nil).New()
	require.NoError(t, err)
	require.Same(t, right, b.(Backend).Level)
	require.Equal(t, 3, with(right, nil).Rank())
	require.NoError(t, with(right, nil).Probe())
	for _, l := range []*Level{wrong, wrongDivide} {
		_, err = with(l, nil).New()
		require.ErrorContains(t, err, "slices instructions")
	}
	require.ErrorIs(t, with(nil, io.EOF).Probe(), io.EOF)
	_, err = with(nil, io.EOF).New()
	require.ErrorIs(t, err, io.EOF)
}
