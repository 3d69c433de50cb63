package kernels

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"

	"github.com/gopccl/gopccl/internal/cuda/cudatest"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

var soak = flag.Bool("soak", false, "a hundred times as many random cases")

// seeds are those of the random cases.
func seeds(first uint64) []uint64 {
	n := uint64(1)
	if *soak {
		n = 100
	}
	var s []uint64
	for i := range n {
		s = append(s, first+i<<32)
	}
	return s
}

// machine is a device with the kernels of some files: one that interprets PTX is
// the oldest, with the oldest driver.
type machine struct {
	t *testing.T
	d cudatest.Device
	k *Set
}

// Its NaNs of float64 are not those that the tests of hosted get: the kernels make
// their own.
func open(t *testing.T, files ...string) *machine {
	d := cudatest.Open(t, ptxtest.Options{Eager: true, OtherNaNs: true, Version: 9000, Capability: 52})
	runtime.LockOSThread()
	c, err := d.Retain(0)
	require.NoError(t, err)
	require.NoError(t, d.Push(c))
	k, err := Load(d, 0, files...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, k.Unload())
		_, err := d.Pop()
		require.NoError(t, err)
		require.NoError(t, d.Release(0))
		require.Equal(t, ptxtest.Counts{}, d.Live())
		runtime.UnlockOSThread()
	})
	return &machine{t, d, k}
}

// operand is a piece of device memory of its own: what lies before its first
// byte is compared when it is read, and there is nothing behind its last one.
type operand struct {
	driver.Ptr
	base   driver.Ptr
	before []byte
	n      int
}

// put copies b to the device, offset bytes behind an aligned address.
func (m *machine) put(b []byte, offset int) operand {
	base, err := m.d.Alloc(uint64(max(1, offset+len(b))))
	require.NoError(m.t, err)
	all := make([]byte, offset, offset+len(b))
	for i := range all {
		all[i] = byte(0xc0 + i)
	}
	before := all
	all = append(all, b...)
	require.NoError(m.t, m.d.CopyToDevice(base, all, 0))
	return operand{base + driver.Ptr(offset), base, before, len(b)}
}

// take returns what o holds now and frees it.
func (m *machine) take(o operand) []byte {
	all := make([]byte, len(o.before)+o.n)
	require.NoError(m.t, m.d.CopyToHost(all, o.base, 0))
	require.NoError(m.t, m.d.StreamSynchronize(0))
	require.Equal(m.t, o.before, all[:len(o.before)], "bytes in front of the operand changed")
	m.free(o)
	return all[len(o.before):]
}

func (m *machine) free(operands ...operand) {
	for _, o := range operands {
		require.NoError(m.t, m.d.Free(o.base))
	}
}

// special patterns of a float: zeros, subnormals, the smallest normal, one, the
// largest, infinity, quiet and signalling NaNs; the same negative.
func specials(t dtype.Type) []uint64 {
	fraction, width := 52, 64
	switch t {
	case dtype.Float16:
		fraction, width = 10, 16
	case dtype.BFloat16:
		fraction, width = 7, 16
	case dtype.Float32:
		fraction, width = 23, 32
	}
	sign := uint64(1) << (width - 1)
	inf := sign - 1<<fraction
	one := inf / 2 &^ (1<<fraction - 1)
	s := []uint64{0, 1, 2, 1<<fraction - 1, 1 << fraction, one, one + 1, one - 1, inf - 1, inf, inf + 1, inf + 1<<(fraction-1), inf + 1<<(fraction-1) + 3, sign - 1}
	for _, v := range s[:len(s):len(s)] {
		s = append(s, v|sign)
	}
	return s
}

// patterns are n elements of t: half of a float's are special, others are near
// one or random.
func patterns(t dtype.Type, n int, rng *rand.Rand) []byte {
	b := make([]byte, n*t.Size())
	for i := range n {
		v := rng.Uint64()
		if t.IsFloat() {
			s := specials(t)
			switch rng.IntN(4) {
			case 0, 1:
				v = s[rng.IntN(len(s))]
			case 2:
				v = s[5] + v%(1<<(2*t.Size())) // one, and above
			}
		} else if rng.IntN(3) == 0 {
			v = uint64(int64(rng.IntN(5) - 2))
		}
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], v)
		copy(b[i*t.Size():(i+1)*t.Size()], word[:])
	}
	return b
}

func element(t dtype.Type, b []byte, i int) uint64 {
	var word [8]byte
	copy(word[:], b[i*t.Size():(i+1)*t.Size()])
	return binary.LittleEndian.Uint64(word[:])
}

func setElement(t dtype.Type, b []byte, i int, v uint64) {
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], v)
	copy(b[i*t.Size():(i+1)*t.Size()], word[:])
}
