package bench

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
)

// HashResult is one line of `gopccl bench hash`: 10^9 bytes per second of one
// hash, or of reading the same bytes ("read"), on all cores; of sha256 on one.
type HashResult struct {
	Hash   string  `json:"hash"`
	Hasher string  `json:"hasher,omitempty"` // what computed it; "": nothing that can be chosen
	Bytes  int     `json:"bytes"`
	Rounds int     `json:"rounds"`
	Median float64 `json:"median_s"`
	Rate   float64 `json:"gb_per_s"`
}

// Hash measures reading and each hash on size bytes, in turns; h computes those of
// shared states.
func Hash(ctx context.Context, h digest.Hasher, size, rounds int, emit func(HashResult) error) error {
	data := make([]byte, size)
	fillState(data, 1)
	ways := []struct {
		name, hasher string
		run          func() error
	}{
		{"read", "", func() error { readAll(data); return nil }},
		{"crc32c", h.Name(), func() error { _, err := digest.CRC32CParallel(ctx, data, h, 0); return err }},
		{"sha256", "", func() error { digest.SHA256(data); return nil }},
		{"simplehash", h.Name(), func() error { _, err := digest.SimpleHashParallel(ctx, data, h, 0); return err }},
	}
	times := make([][]float64, len(ways))
	for range rounds + 1 {
		for i, w := range ways {
			start := time.Now()
			if err := w.run(); err != nil {
				return err
			}
			times[i] = append(times[i], time.Since(start).Seconds())
		}
	}
	for i, w := range ways {
		m := median(times[i][1:]) // the first round warms up
		if err := emit(HashResult{w.name, w.hasher, size, rounds, m, float64(size) / 1e9 / m}); err != nil {
			return err
		}
	}
	return nil
}

// readAll adds up the words of data on all cores, the least that a hash can do.
func readAll(data []byte) uint64 {
	words := dtype.View[uint64](data)
	n := runtime.GOMAXPROCS(0)
	sums := make([]uint64, n)
	var wg sync.WaitGroup
	for k := range n {
		part := words[len(words)*k/n : len(words)*(k+1)/n]
		wg.Go(func() {
			var a, b, c, d uint64
			for len(part) >= 4 {
				p := (*[4]uint64)(part)
				a, b, c, d = a+p[0], b+p[1], c+p[2], d+p[3]
				part = part[4:]
			}
			for _, w := range part {
				a += w
			}
			sums[k] = a + b + c + d
		})
	}
	wg.Wait()
	total := uint64(0)
	for _, s := range sums {
		total += s
	}
	return total
}
