package kernels

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
)

// The tally counts each pattern of its range once. Where the function is
// constant, the tally is known; about zero, the sum of patterns is close.
func TestExpTally(t *testing.T) {
	m := open(t, Verification)
	dst := m.put(make([]byte, TallyBytes), 0)
	steps := func(first uint32, step, count uint64) Tally {
		n, err := m.k.ExpTally(dst.Ptr, first, step, count, 0)
		require.NoError(t, err)
		b := make([]byte, n)
		require.NoError(t, m.d.CopyToHost(b, dst.Ptr, 0))
		require.NoError(t, m.d.StreamSynchronize(0))
		return ReadTally(b)
	}
	tally := func(first uint32, count uint64) Tally { return steps(first, 1, count) }
	inf, nan := uint64(0x7f800000), uint64(0x7fffffff)
	require.Equal(t, Tally{Sum: 1001*inf + 500*nan, Inf: 1001, NaN: 500, Xor: uint32(inf)}, tally(0x7f800000-1000, 1501))
	require.Equal(t, Tally{Sum: 3 * nan, Finite: 1001, NaN: 3, Xor: uint32(nan)}, tally(0xff800000-1000, 1004))
	require.Equal(t, Tally{Sum: 5 * nan, NaN: 5, Xor: uint32(nan)}, tally(0xfffffffb, 5), "up to the last pattern")
	require.Equal(t, Tally{}, tally(0, 0))
	require.Equal(t, Tally{Sum: inf + nan, Inf: 1, NaN: 1, Xor: uint32(inf ^ nan)}, steps(0x7f800000-7, 7<<20, 2))
	require.Equal(t, Tally{Sum: 7 * nan, NaN: 7, Xor: uint32(nan)}, steps(0x7f900000, 1<<20, 7))

	var whole Tally
	for _, part := range []struct {
		first uint32
		count uint64
	}{{0x3f000000, 300}, {0x3f000000 + 300, 1}, {0x3f000000 + 301, 699}} {
		whole.Add(tally(part.first, part.count))
	}
	require.Equal(t, tally(0x3f000000, 1000), whole)
	sum := 0.0
	for i := range uint32(1000) {
		sum += float64(math.Float32bits(float32(math.Exp(float64(math.Float32frombits(0x3f000000 + i))))))
	}
	require.InDelta(t, sum, float64(whole.Sum), 2*1000, "off by more than two steps of float32 each")
	require.EqualValues(t, 1000, whole.Finite)

	for _, bad := range [][2]uint64{{1, 1 << 32}, {0, 1}, {1 << 20, 1 << 12}, {1 << 40, 2}} {
		_, err := m.k.ExpTally(dst.Ptr, 1<<20, bad[0], bad[1], 0)
		require.ErrorIs(t, err, errs.InvalidArgument, "%d", bad)
	}
	m.free(dst)
}

func TestReadParity(t *testing.T) {
	m := open(t, Verification)
	b := make([]byte, 5000*16+15)
	rng := rand.New(rand.NewPCG(6, 2))
	want := uint32(0)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	for i := 0; i < 5000*16; i += 4 {
		want ^= binary.LittleEndian.Uint32(b[i:])
	}
	src, dst := m.put(b, 16), m.put(make([]byte, ParityBytes), 0)
	n, err := m.k.ReadParity(dst.Ptr, src.Ptr, uint64(len(b)), 0)
	require.NoError(t, err)
	got := uint32(0)
	for r := m.take(dst)[:n]; len(r) > 0; r = r[4:] {
		got ^= binary.LittleEndian.Uint32(r)
	}
	require.Equal(t, want, got)
	_, err = m.k.ReadParity(0, src.Ptr+4, 16, 0)
	require.ErrorIs(t, err, errs.InvalidArgument)
	m.free(src)
}
