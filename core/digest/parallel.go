package digest

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/gopccl/gopccl/core/errs"
)

// SimpleHashAll returns the SimpleHashes of bufs, in their order, as h computes
// them; nil is the built-in hasher. Up to workers goroutines (all cores if
// workers < 1) share the work across the buffers and, if h is a [BlockHasher],
// inside them. It returns when all are done and reads each byte once, or soon
// after ctx has ended, with the error of ctx; nothing reads bufs any more then.
// A panic of h on any of them is a panic of the caller's goroutine, with an
// *errs.Error as its value.
func SimpleHashAll(ctx context.Context, bufs [][]byte, h Hasher, workers int) ([]uint32, error) {
	return all(ctx, bufs, simple{orBuiltIn(h)}, workers)
}

// SimpleHashParallel returns the SimpleHash of b. Everything else is as
// SimpleHashAll has it.
func SimpleHashParallel(ctx context.Context, b []byte, h Hasher, workers int) (uint32, error) {
	return one(SimpleHashAll(ctx, [][]byte{b}, h, workers))
}

// CRC32CParallel returns the CRC-32C of b, which is shared out in any case.
// Everything else is as SimpleHashAll has it.
func CRC32CParallel(ctx context.Context, b []byte, h Hasher, workers int) (uint32, error) {
	return one(all(ctx, [][]byte{b}, castagnoliSum{orBuiltIn(h)}, workers))
}

func one(sums []uint32, err error) (uint32, error) {
	if err != nil {
		return 0, err
	}
	return sums[0], nil
}

func orBuiltIn(h Hasher) Hasher {
	if h == nil {
		return processor{vectors: byVector}
	}
	return h
}

// algorithm is a hash whose value can be put together from parts that are
// computed independently.
type algorithm interface {
	// sum returns the hash of b.
	sum(b []byte) uint32
	// parts returns into how many parts of about equal size a buffer of n bytes
	// is cut, at least 1; 1: it is not cut.
	parts(n int) int
	// part returns the hash of part i of b.
	part(b []byte, i int) uint32
	// join returns the hash of b from those of its parts.
	join(b []byte, parts []uint32) uint32
}

// grain is what one job hashes, in bytes: long enough to outweigh its
// scheduling, short enough to keep all workers busy to the end.
const grain = 1 << 20

func all(ctx context.Context, bufs [][]byte, a algorithm, workers int) ([]uint32, error) {
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	sums := make([]uint32, len(bufs))
	jobs := cut(bufs, a, sums)
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
func cut(bufs [][]byte, a algorithm, sums []uint32) (jobs []func()) {
	for i, b := range bufs {
		n := 1
		if len(b) >= 2*grain {
			n = a.parts(len(b))
		}
		if n == 1 {
			jobs = append(jobs, func() { sums[i] = a.sum(b) })
			continue
		}
		step := max(1, int(int64(n)*grain/int64(len(b))))
		parts := make([]uint32, n)
		left := new(atomic.Int64)
		left.Store(int64((n + step - 1) / step))
		for from := 0; from < n; from += step {
			jobs = append(jobs, func() {
				for k := from; k < min(from+step, n); k++ {
					parts[k] = a.part(b, k)
				}
				if left.Add(-1) == 0 {
					sums[i] = a.join(b, parts)
				}
			})
		}
	}
	return jobs
}

// simple is SimpleHash by h, by whose blocks a buffer is cut if it has them.
type simple struct{ h Hasher }

func (s simple) sum(b []byte) uint32 { return s.h.SimpleHash(b) }

func (s simple) parts(n int) int {
	if _, ok := s.h.(BlockHasher); !ok {
		return 1
	}
	return max(1, shapeOf(n).grid)
}

func (s simple) part(b []byte, i int) uint32 {
	return s.h.(BlockHasher).Block(shapeOf(len(b)).block(b, i))
}

func (simple) join(b []byte, parts []uint32) uint32 { return shapeOf(len(b)).finish(b, parts) }

// castagnoliSum is CRC-32C by h.
type castagnoliSum struct{ h Hasher }

func (c castagnoliSum) sum(b []byte) uint32 { return c.h.CRC32C(b) }
func (castagnoliSum) parts(n int) int       { return max(1, (n+grain-1)/grain) }

func (c castagnoliSum) part(b []byte, i int) uint32 {
	return c.h.CRC32C(b[i*grain : min((i+1)*grain, len(b))])
}

func (castagnoliSum) join(b []byte, parts []uint32) uint32 {
	crc, shift := parts[0], crcShift(grain)
	for i, p := range parts[1:] {
		if end := (i + 2) * grain; end > len(b) {
			shift = crcShift(len(b) - (i+1)*grain)
		}
		crc = crcMul(shift, crc) ^ p
	}
	return crc
}
