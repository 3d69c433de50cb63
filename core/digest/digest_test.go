package digest

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/allocs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Hashes, section 1: constants and the worked example, value by value.
func TestWorkedExample(t *testing.T) {
	require.Equal(t, uint32(0x2c06f485), mix(0, 0))
	require.Equal(t, uint32(0x21ec2a05), mix(1, 2))
	require.Equal(t, uint32(0xfebca45b), warp(new([lanes]uint32)))
	require.Equal(t, uint32(0x35218f31), tree(new([threads]uint32)))

	b := linear(70, 0)
	require.Equal(t, "ea6df073f679fc7f0285088b", hex.EncodeToString(b[:12]))
	s := shapeOf(len(b))
	require.Equal(t, shape{vecs: 4, grid: 1, per: 4}, s)
	acc := uint32(0)
	for i, want := range []uint32{0x90d80243, 0x086649ad, 0x22576bb0, 0x27555519} {
		acc = mix(acc, binary.LittleEndian.Uint32(b[4*i:]))
		require.Equal(t, want, acc)
	}
	first := [lanes]uint32{0x27555519, 0x8fc91dd5, 0x7ff17579, 0x68bcadda}
	require.Equal(t, uint32(0xf325ef79), warp(&first))
	require.Equal(t, uint32(0x50ef61d2), hashBlock(s.block(b, 0), byVector))
	require.Equal(t, uint32(0x1dff18ac), s.finish(b[:64], []uint32{0x50ef61d2}))
	require.Equal(t, uint32(0xa303c522), s.finish(b[:68], []uint32{0x50ef61d2}))
	require.Equal(t, uint32(0xfd12240a), s.finish(b, []uint32{0x50ef61d2}))
	require.Equal(t, uint32(0xfd12240a), SimpleHash(b))
	require.Equal(t, uint32(0xbacc3eea), CRC32C(b))
	require.Equal(t, uint32(0xe3069283), CRC32C([]byte("123456789")))
	for n, want := range map[int]uint32{1: 0xe54b6b05, 3: 0x14185805, 4: 0xf7f4ef4b, 15: 0x656c7539, 16: 0xa5a01f9f, 17: 0x11abf352} {
		require.Equal(t, want, SimpleHash(linear(n, 0)))
	}
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = rng.Read(b)
	return b
}

// Without a hasher the built-in one is meant.
func TestNoHasherIsTheBuiltIn(t *testing.T) {
	ctx := context.Background()
	for _, n := range []int{0, 70, 3*grain + 7} {
		b := random(1, n)
		sum, err := SimpleHashParallel(ctx, b, nil, 3)
		require.NoError(t, err)
		require.Equal(t, SimpleHash(b), sum)
		sum, err = CRC32CParallel(ctx, b, nil, 3)
		require.NoError(t, err)
		require.Equal(t, CRC32C(b), sum) // S1-21
	}
	sums, err := SimpleHashAll(ctx, nil, nil, 4)
	require.NoError(t, err)
	require.Empty(t, sums)
}

func TestSHA256(t *testing.T) {
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	sum := SHA256([]byte("abc"))
	require.Equal(t, want, hex.EncodeToString(sum[:]))
	h := NewSHA256()
	_, err := h.Write([]byte("abc"))
	require.NoError(t, err)
	require.Equal(t, want, hex.EncodeToString(h.Sum(nil)))
}

func TestSimpleHashDoesNotAllocate(t *testing.T) {
	b := random(1, 100000)
	require.Zero(t, allocs.PerRun(10, func() { SimpleHash(b) }))
}

// BenchmarkHash reports GB/s beside the rate of a plain read of the memory.
func BenchmarkHash(b *testing.B) {
	for _, n := range []int{4 << 10, 1 << 20, 64 << 20} {
		data := random(1, n)
		run := func(name string, f func()) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					f()
				}
			})
		}
		var sink uint64
		run("read", func() {
			for p := data; len(p) >= 32; p = p[32:] {
				sink += binary.LittleEndian.Uint64(p) + binary.LittleEndian.Uint64(p[8:]) +
					binary.LittleEndian.Uint64(p[16:]) + binary.LittleEndian.Uint64(p[24:])
			}
		})
		run("simplehash", func() { sink += uint64(SimpleHash(data)) })
		run("simplehash-parallel", func() {
			sum, _ := SimpleHashParallel(context.Background(), data, nil, 0)
			sink += uint64(sum)
		})
		run("crc32c", func() { sink += uint64(CRC32C(data)) })
		run("sha256", func() {
			sum := SHA256(data)
			sink += uint64(sum[0])
		})
		_ = sink
	}
}

// faulty is a hasher that cannot read one of its buffers.
type faulty struct{ processor }

func (faulty) SimpleHash(b []byte) uint32 {
	if b[0] == 7 {
		panic("unreadable")
	}
	return 0
}

// A panic on any of the goroutines that share the work reaches the caller's,
// where it can be caught, with the stack of where it happened.
func TestPanicReachesTheCaller(t *testing.T) {
	bufs := make([][]byte, 64)
	for i := range bufs {
		bufs[i] = []byte{byte(i % 8)}
	}
	for range 20 {
		var caught *errs.Error
		func() {
			defer errs.Catch("test", func(err *errs.Error) { caught = err })
			_, _ = SimpleHashAll(context.Background(), bufs, faulty{}, 4)
		}()
		require.ErrorIs(t, caught, errs.Internal)
		require.ErrorContains(t, caught, "unreadable")
		require.Contains(t, errs.StackOf(caught), "SimpleHash")
	}
}

// last is an algorithm whose context ends while it hashes the part with this
// number. What begins after that part ends after the context: a worker may stand
// still between the two, and the others would hash on.
type last struct {
	number int64
	hashed *atomic.Int64
	ctx    context.Context
	end    context.CancelFunc
}

func (h last) count() {
	n := h.hashed.Add(1)
	if n == h.number {
		h.end()
	}
	if n > h.number {
		<-h.ctx.Done()
	}
}

func (h last) sum([]byte) uint32          { h.count(); return 0 }
func (last) parts(n int) int              { return max(1, n/grain) }
func (h last) part([]byte, int) uint32    { h.count(); return 0 }
func (last) join([]byte, []uint32) uint32 { return 0 }

// When the context ends nothing more is hashed than what is being hashed, in
// many buffers and in one; and a sum of a part is never returned for the whole.
func TestHashingEndsWithItsContext(t *testing.T) {
	many := make([][]byte, 500)
	for i := range many {
		many[i] = []byte{1}
	}
	big := [][]byte{make([]byte, 64*grain)}
	for name, bufs := range map[string][][]byte{"many": many, "one": big} {
		for _, workers := range []int{1, 4} {
			jobs := int64(len(bufs))
			if jobs == 1 {
				jobs = 64
			}
			for _, number := range []int64{3, jobs - 1, jobs} {
				ctx, end := context.WithCancel(context.Background())
				h := last{number: number, hashed: new(atomic.Int64), ctx: ctx, end: end}
				sums, err := all(ctx, bufs, h, workers)
				n := h.hashed.Load()
				require.LessOrEqual(t, n, min(jobs, number+int64(workers)), name)
				if n < jobs {
					require.ErrorIs(t, err, context.Canceled, name)
					require.Nil(t, sums)
				} else {
					require.NoError(t, err, name)
				}
			}
		}
	}
	ended, end := context.WithCancel(context.Background())
	end()
	_, err := SimpleHashParallel(ended, make([]byte, 10), nil, 0)
	require.ErrorIs(t, err, context.Canceled)
	_, err = CRC32CParallel(ended, make([]byte, 10), nil, 1)
	require.ErrorIs(t, err, context.Canceled)
}
