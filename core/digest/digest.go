// Package digest computes the hashes that gopccl uses: SimpleHash and CRC-32C
// for shared state on the wire (they travel zero-extended in a u64), SHA-256
// for what lies on a disk. It is the one importer of sha256-simd.
package digest

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	sha256 "github.com/minio/sha256-simd"

	"github.com/gopccl/gopccl/core/errs"
)

// Hasher is a digest of a buffer. Implementations are stateless and safe for
// concurrent use; Sum64 does not keep the buffer.
type Hasher interface {
	// Name is the name that Lookup knows it by.
	Name() string
	// Sum64 returns the digest of b, 32 bit ones zero-extended, longer ones
	// by their first 8 bytes, big-endian.
	Sum64(b []byte) uint64
}

// The hashers by name.
var hashers = []Hasher{simpleHasher{}, crcHasher{}, shaHasher{}}

// Names returns the names that Lookup knows.
func Names() []string {
	var names []string
	for _, h := range hashers {
		names = append(names, h.Name())
	}
	return names
}

// Lookup returns the hasher called name: "simplehash", "crc32c" or "sha256".
// Any other name is an *errs.Error with code InvalidConfig.
func Lookup(name string) (Hasher, error) {
	i := slices.IndexFunc(hashers, func(h Hasher) bool { return h.Name() == name })
	if i < 0 {
		return nil, errs.New(errs.InvalidConfig, "look up hasher", fmt.Errorf("unknown hasher %q (known: %v)", name, Names()))
	}
	return hashers[i], nil
}

// SHA256 returns the SHA-256 of b.
func SHA256(b []byte) [32]byte { return sha256.Sum256(b) }

// NewSHA256 returns a running SHA-256.
func NewSHA256() hash.Hash { return sha256.New() }

// SimpleHashParallel returns SimpleHash(b), computed by up to workers
// goroutines (all cores if workers < 1). Errors: see HashAll.
func SimpleHashParallel(ctx context.Context, b []byte, workers int) (uint32, error) {
	sums, err := HashAll(ctx, [][]byte{b}, simpleHasher{}, workers)
	if err != nil {
		return 0, err
	}
	return uint32(sums[0]), nil
}

// CRC32CInterruptible returns CRC32C(b), unless ctx ends first; errors: see HashAll.
func CRC32CInterruptible(ctx context.Context, b []byte) (uint32, error) {
	sums, err := HashAll(ctx, [][]byte{b}, crcHasher{}, 1)
	if err != nil {
		return 0, err
	}
	return uint32(sums[0]), nil
}

// splitter is a hasher whose digest can be put together from parts that are
// computed independently.
type splitter interface {
	Hasher
	// parts returns the number of parts of a buffer of n bytes, at least 1,
	// of about equal size.
	parts(n int) int
	// part returns the digest of part i of b.
	part(b []byte, i int) uint32
	// join returns the digest of b from those of its parts.
	join(b []byte, parts []uint32) uint64
}

// grain is what one job hashes, in bytes: long enough to outweigh its
// scheduling, short enough to keep all workers busy to the end.
const grain = 1 << 20

// HashAll returns the digests of bufs, in their order. Up to workers
// goroutines (all cores if workers < 1) share the work across the buffers
// and, for simplehash and crc32c, inside them. It returns when all are done
// and reads each byte once, or soon after ctx has ended, with the error
// of ctx; nothing reads bufs any more then. A panic of h on any of them is a panic of the
// caller's goroutine, with an *errs.Error as its value.
func HashAll(ctx context.Context, bufs [][]byte, h Hasher, workers int) ([]uint64, error) {
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	sums := make([]uint64, len(bufs))
	jobs := cut(bufs, h, sums)
	workers = min(workers, len(jobs))
	var next, done atomic.Int64
	var crash atomic.Pointer[errs.Error]
	work := func() {
		defer errs.Catch("hash", func(err *errs.Error) { crash.CompareAndSwap(nil, err) })
		for i := next.Add(1) - 1; i < int64(len(jobs)) && ctx.Err() == nil; i = next.Add(1) - 1 {
			jobs[i]()
			done.Add(1)
		}
	}
	var wg sync.WaitGroup
	for range max(0, workers-1) {
		wg.Go(work)
	}
	work()
	wg.Wait()
	if err := crash.Load(); err != nil {
		panic(err) // where the caller can catch it
	}
	if done.Load() < int64(len(jobs)) {
		return nil, ctx.Err()
	}
	return sums, nil
}

// cut returns jobs that fill sums in any order.
func cut(bufs [][]byte, h Hasher, sums []uint64) (jobs []func()) {
	for i, b := range bufs {
		s, ok := h.(splitter)
		if !ok || len(b) < 2*grain || s.parts(len(b)) == 1 {
			jobs = append(jobs, func() { sums[i] = h.Sum64(b) })
			continue
		}
		n := s.parts(len(b))
		step := max(1, int(int64(n)*grain/int64(len(b))))
		parts := make([]uint32, n)
		left := new(atomic.Int64)
		left.Store(int64((n + step - 1) / step))
		for from := 0; from < n; from += step {
			jobs = append(jobs, func() {
				for k := from; k < min(from+step, n); k++ {
					parts[k] = s.part(b, k)
				}
				if left.Add(-1) == 0 {
					sums[i] = s.join(b, parts)
				}
			})
		}
	}
	return jobs
}

type simpleHasher struct{}

func (simpleHasher) Name() string                { return "simplehash" }
func (simpleHasher) Sum64(b []byte) uint64       { return uint64(SimpleHash(b)) }
func (simpleHasher) parts(n int) int             { return max(1, shapeOf(n).grid) }
func (simpleHasher) part(b []byte, i int) uint32 { return shapeOf(len(b)).block(b, i) }
func (simpleHasher) join(b []byte, parts []uint32) uint64 {
	return uint64(shapeOf(len(b)).finish(b, parts))
}

type crcHasher struct{}

func (crcHasher) Name() string          { return "crc32c" }
func (crcHasher) Sum64(b []byte) uint64 { return uint64(CRC32C(b)) }
func (crcHasher) parts(n int) int       { return max(1, (n+grain-1)/grain) }

func (crcHasher) part(b []byte, i int) uint32 {
	return CRC32C(b[i*grain : min((i+1)*grain, len(b))])
}

func (crcHasher) join(b []byte, parts []uint32) uint64 {
	crc, shift := parts[0], crcShift(grain)
	for i, p := range parts[1:] {
		if end := (i + 2) * grain; end > len(b) {
			shift = crcShift(len(b) - (i+1)*grain)
		}
		crc = crcMul(shift, crc) ^ p
	}
	return uint64(crc)
}

type shaHasher struct{}

func (shaHasher) Name() string { return "sha256" }
func (shaHasher) Sum64(b []byte) uint64 {
	sum := SHA256(b)
	return binary.BigEndian.Uint64(sum[:])
}
