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
// hasher, or of reading the same bytes ("read"), on all cores.
type HashResult struct {
	Hash   string  `json:"hash"`
	Bytes  int     `json:"bytes"`
	Rounds int     `json:"rounds"`
	Median float64 `json:"median_s"`
	Rate   float64 `json:"gb_per_s"`
}

// Hash measures reading and each hasher on size bytes, in turns.
func Hash(size, rounds int, emit func(HashResult) error) error {
	data := make([]byte, size)
	fillState(data, 1)
	names := append([]string{"read"}, digest.Names()...)
	times := make(map[string][]float64)
	for range rounds + 1 {
		for _, name := range names {
			start := time.Now()
			if name == "read" {
				readAll(data)
			} else {
				h, err := digest.Lookup(name)
				if err != nil {
					return err
				}
				if _, err := digest.HashAll(context.Background(), [][]byte{data}, h, 0); err != nil {
					return err
				}
			}
			times[name] = append(times[name], time.Since(start).Seconds())
		}
	}
	for _, name := range names {
		m := median(times[name][1:]) // the first round warms up
		if err := emit(HashResult{name, size, rounds, m, float64(size) / 1e9 / m}); err != nil {
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
