package e2e

import (
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// What quantized collectives are to give, bit by bit, by the quantizer alone. A block that is
// gathered is encoded once, by its owner. A sum is encoded at every hop of the ring, and it
// begins behind the owner of the block. Which ring a group has is for its master to say, so
// there is a result for each.

// decoded sets dst := dst op what a receiver of src decodes.
func decoded(z core.Quantize, op dtype.Op, dst, src []float32) {
	if len(src) == 0 {
		return
	}
	q, err := quant.Lookup(z.Algorithm)
	if err != nil {
		panic(err)
	}
	from := dtype.AsBytes(src)
	m := q.Params(dtype.Float32, z.Type, from)
	w := make([]byte, quant.FormOf(q, dtype.Float32, z.Type).Size(len(src)))
	q.Quantize(dtype.Float32, z.Type, &m, w, from)
	q.Dequantize(dtype.Float32, z.Type, &m, op, dtype.AsBytes(dst), w)
}

// gatheredOf returns what an all-gather of the blocks gives.
func gatheredOf(z core.Quantize, blocks [][]float32) []float32 {
	if len(blocks) == 1 {
		return blocks[0]
	}
	var all []float32
	for _, b := range blocks {
		got := make([]float32, len(b))
		decoded(z, dtype.Set, got, b)
		all = append(all, got...)
	}
	return all
}

// ringsOf returns every ring of n members, beginning with the first.
func ringsOf(n int) [][]int {
	if n == 1 {
		return [][]int{{0}}
	}
	var all [][]int
	for _, r := range ringsOf(n - 1) {
		for at := 1; at < n; at++ {
			all = append(all, slices.Insert(slices.Clone(r), at, n-1))
		}
	}
	return all
}

// sumOf returns what a reduce-scatter in a ring leaves with a member; of its block each
// member has one in blocks.
func sumOf(z core.Quantize, ring []int, blocks [][]float32, owner int) []float32 {
	n, at := len(ring), slices.Index(ring, owner)
	var sum []float32
	for d := 1; d <= n; d++ {
		local := slices.Clone(blocks[ring[(at+d)%n]])
		if d > 1 {
			decoded(z, dtype.Sum, local, sum)
		}
		sum = local
	}
	return sum
}

// isSum checks that a block of a reduce-scatter is what some ring gives.
func isSum(z core.Quantize, got []float32, blocks [][]float32, owner int) error {
	for _, ring := range ringsOf(len(blocks)) {
		if slices.Equal(got, sumOf(z, ring, blocks, owner)) {
			return nil
		}
	}
	return fmt.Errorf("%v reduce-scatter: member %d has what no ring gives", z, owner)
}
