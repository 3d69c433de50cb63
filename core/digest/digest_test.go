package digest

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// generate makes the buffers of hash.json by their two rules.
func generate(gen string, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		if gen == "lin" {
			b[i] = byte(i*131 + 7*n)
		} else {
			b[i] = byte(uint32(i)*2654435761>>24) ^ byte(n)
		}
	}
	return b
}

// Hashes, sections 1 and 2: all golden values, at every alignment.
// Quirk Q45: at any alignment.
func TestGoldenHashes(t *testing.T) {
	raw, err := os.ReadFile("testdata/hash.json")
	require.NoError(t, err)
	var file struct {
		Vectors []struct {
			Gen, SimpleHash, CRC32 string
			Len                    int
		}
	}
	require.NoError(t, json.Unmarshal(raw, &file))
	require.Len(t, file.Vectors, 205)
	for _, v := range file.Vectors {
		simple, err := strconv.ParseUint(v.SimpleHash, 16, 32)
		require.NoError(t, err)
		crc, err := strconv.ParseUint(v.CRC32, 16, 32)
		require.NoError(t, err)
		shifts := 16
		if v.Len > 1<<16 {
			shifts = 2
		}
		if v.Len > 1<<22 && (slow || testing.Short()) {
			continue // 52 of 205; what they add is the longer blocks, which TestSimpleHashEqualsText has, too
		}
		data := generate(v.Gen, v.Len)
		room := make([]byte, v.Len+shifts)
		for shift := range shifts {
			b := room[shift : shift+v.Len]
			copy(b, data)
			require.Equal(t, uint32(simple), SimpleHash(b), "%s %d at offset %d", v.Gen, v.Len, shift) // S0-17
		}
		require.Equal(t, uint32(simple), parallel(t, data, 3), "%s %d", v.Gen, v.Len)
		require.Equal(t, uint32(crc), CRC32C(data), "%s %d", v.Gen, v.Len) // S1-21
		require.Equal(t, []uint64{crc}, hashAll(t, [][]byte{data}, crcHasher{}, 4), "%s %d", v.Gen, v.Len)
	}
}

// Hashes, section 1: constants and the worked example, value by value.
func TestWorkedExample(t *testing.T) {
	require.Equal(t, uint32(0x2c06f485), mix(0, 0))
	require.Equal(t, uint32(0x21ec2a05), mix(1, 2))
	require.Equal(t, uint32(0xfebca45b), warp(new([lanes]uint32)))
	require.Equal(t, uint32(0x35218f31), tree(new([threads]uint32)))

	b := generate("lin", 70)
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
	require.Equal(t, uint32(0x50ef61d2), s.block(b, 0))
	require.Equal(t, uint32(0x1dff18ac), s.finish(b[:64], []uint32{0x50ef61d2}))
	require.Equal(t, uint32(0xa303c522), s.finish(b[:68], []uint32{0x50ef61d2}))
	require.Equal(t, uint32(0xfd12240a), s.finish(b, []uint32{0x50ef61d2}))
	require.Equal(t, uint32(0xfd12240a), SimpleHash(b))
	require.Equal(t, uint32(0xbacc3eea), CRC32C(b))
	require.Equal(t, uint32(0xe3069283), CRC32C([]byte("123456789")))
	for n, want := range map[int]uint32{1: 0xe54b6b05, 3: 0x14185805, 4: 0xf7f4ef4b, 15: 0x656c7539, 16: 0xa5a01f9f, 17: 0x11abf352} {
		require.Equal(t, want, SimpleHash(generate("lin", n)))
	}
}

// literal is section 1 of the text, word for word, with no thought of speed.
func literal(b []byte) uint32 {
	if len(b) == 0 {
		return 0
	}
	c := func(a, b uint32) uint32 {
		a ^= b + 0x9e3779b1
		a = a<<7 | a>>25
		return a * 0x85ebca6b
	}
	w := func(v []uint32) uint32 {
		v = append([]uint32(nil), v...)
		for _, off := range []int{16, 8, 4, 2, 1} {
			for i := range off {
				v[i] = c(v[i], v[i+off])
			}
		}
		return v[0]
	}
	tree := func(a []uint32) uint32 {
		r := make([]uint32, 32)
		for i := range 8 {
			r[i] = w(a[32*i : 32*i+32])
		}
		return w(r)
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	words := len(b) / 4
	vecs := words / 4
	grid := min((vecs+255)/256, 960)
	h := uint32(0)
	if grid > 0 {
		per := (vecs + grid - 1) / grid
		p := make([]uint32, 256)
		for g := range grid {
			acc := make([]uint32, 256)
			for v := g * per; v < min((g+1)*per, vecs); v++ {
				for k := range 4 {
					i := (v - g*per) % 256
					acc[i] = c(acc[i], word(4*v+k))
				}
			}
			p[g%256] = c(p[g%256], tree(acc))
		}
		h = tree(p)
	}
	for i := vecs * 4; i < words; i++ {
		h = c(h, word(i))
	}
	if t := len(b) % 4; t > 0 {
		v := uint32(0)
		for i := range t {
			v |= uint32(b[words*4+i]) << (8 * i)
		}
		h = c(h, v)
	}
	return h
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = rng.Read(b)
	return b
}

// Hashes, section 1: equal to the literal text for every length up to some
// rows, and around the edge where blocks grow longer.
func TestSimpleHashEqualsText(t *testing.T) {
	data := random(1, 960*4096+70000)
	for n := range 4200 {
		require.Equal(t, literal(data[:n]), SimpleHash(data[:n]), "%d bytes", n)
	}
	for _, n := range []int{8192, 960*4096 - 1, 960 * 4096, 960*4096 + 15, 960*4096 + 16, 960*4096 + 4096, 960*4096 + 70000} {
		want := literal(data[:n])
		require.Equal(t, want, SimpleHash(data[:n]), "%d bytes", n) // S0-17
		require.Equal(t, want, parallel(t, data[:n], 7), "%d bytes", n)
	}
	rapid.Check(t, func(rt *rapid.T) {
		from := rapid.IntRange(0, 40).Draw(rt, "offset")
		n := rapid.IntRange(0, 60000).Draw(rt, "length")
		require.Equal(rt, literal(data[from:from+n]), SimpleHash(data[from:from+n]))
	})
}

func hashAll(t testing.TB, bufs [][]byte, h Hasher, workers int) []uint64 {
	t.Helper()
	sums, err := HashAll(context.Background(), bufs, h, workers)
	require.NoError(t, err)
	return sums
}

func parallel(t testing.TB, b []byte, workers int) uint32 {
	t.Helper()
	sum, err := SimpleHashParallel(context.Background(), b, workers)
	require.NoError(t, err)
	return sum
}

// Buffers of all sizes, hashed together, give the values that each gives alone.
func TestHashAll(t *testing.T) {
	sizes := []int{0, 1, 16, 5000, grain, 2*grain - 1, 2 * grain, 2*grain + 1, 3*grain + 5, 9*grain + 4095, 0}
	var bufs [][]byte
	for i, n := range sizes {
		bufs = append(bufs, random(uint64(i), n))
	}
	for _, name := range Names() {
		h, err := Lookup(name)
		require.NoError(t, err)
		require.Equal(t, name, h.Name())
		var want []uint64
		for _, b := range bufs {
			want = append(want, h.Sum64(b))
		}
		for _, workers := range []int{-1, 0, 1, 2, 3, 16, 1000} {
			require.Equal(t, want, hashAll(t, bufs, h, workers), "%s, %d workers", name, workers) // S1-21
		}
		require.Empty(t, hashAll(t, nil, h, 4))
	}
}

func TestLookupUnknown(t *testing.T) {
	_, err := Lookup("md5")
	require.ErrorIs(t, err, errs.InvalidConfig)
	require.ErrorContains(t, err, "simplehash")
}

func TestSHA256(t *testing.T) {
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	sum := SHA256([]byte("abc"))
	require.Equal(t, want, hex.EncodeToString(sum[:]))
	h := NewSHA256()
	_, err := h.Write([]byte("abc"))
	require.NoError(t, err)
	require.Equal(t, want, hex.EncodeToString(h.Sum(nil)))
	require.Equal(t, uint64(0xba7816bf8f01cfea), shaHasher{}.Sum64([]byte("abc")))
}

func TestSimpleHashDoesNotAllocate(t *testing.T) {
	b := random(1, 100000)
	require.Zero(t, testing.AllocsPerRun(10, func() { SimpleHash(b) }))
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
		run("simplehash-parallel", func() { sink += uint64(parallel(b, data, 0)) })
		run("crc32c", func() { sink += uint64(CRC32C(data)) })
		run("sha256", func() { sink += shaHasher{}.Sum64(data) })
		_ = sink
	}
}

// faulty is a hasher that cannot read one of its buffers.
type faulty struct{ simpleHasher }

func (faulty) Sum64(b []byte) uint64 {
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
			_, _ = HashAll(context.Background(), bufs, faulty{}, 4)
		}()
		require.ErrorIs(t, caught, errs.Internal)
		require.ErrorContains(t, caught, "unreadable")
		require.Contains(t, errs.StackOf(caught), "Sum64")
	}
}

// last is a hasher whose context ends while it hashes the part with this number.
type last struct {
	simpleHasher
	number int64
	hashed *atomic.Int64
	end    context.CancelFunc
}

func (h last) count() {
	if h.hashed.Add(1) == h.number {
		h.end()
	}
}

func (h last) Sum64([]byte) uint64     { h.count(); return 0 }
func (h last) parts(n int) int         { return n / grain }
func (h last) part([]byte, int) uint32 { h.count(); return 0 }

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
			all := int64(len(bufs))
			if all == 1 {
				all = 64
			}
			for _, number := range []int64{3, all - 1, all} {
				ctx, end := context.WithCancel(context.Background())
				h := last{number: number, hashed: new(atomic.Int64), end: end}
				sums, err := HashAll(ctx, bufs, h, workers)
				n := h.hashed.Load()
				require.LessOrEqual(t, n, min(all, number+int64(workers)), name)
				if n < all {
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
	_, err := SimpleHashParallel(ended, make([]byte, 10), 0)
	require.ErrorIs(t, err, context.Canceled)
	_, err = CRC32CInterruptible(ended, make([]byte, 10))
	require.ErrorIs(t, err, context.Canceled)
	sum, err := CRC32CInterruptible(context.Background(), random(1, 3*grain+7))
	require.NoError(t, err)
	require.Equal(t, CRC32C(random(1, 3*grain+7)), sum)
}
