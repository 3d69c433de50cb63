package kernels

import "github.com/gopccl/gopccl/internal/cuda/driver"

const (
	hashBlocks = "hash_blocks"
	hashFinish = "hash_finish"
)

// Shape of SimpleHash (hashes, section 1).
const (
	vecBytes      = 16
	maxHashBlocks = 960
)

// HashScratch is how many bytes of device memory a Hash needs beside its input.
const HashScratch = 4 * maxHashBlocks

// Hash queues the computation of SimpleHash (hashes, section 1) over n bytes at
// src, which may lie at any address; it is fastest at multiples of 16 and 4.
// The result, a uint32, goes to dst, a multiple of 4. scratch points to
// HashScratch bytes, a multiple of 4, which are in use until the result is
// there.
func (k *Set) Hash(dst, scratch, src driver.Ptr, n uint64, s driver.Stream) error {
	vecs := n / vecBytes
	blocks := min((vecs+block-1)/block, maxHashBlocks)
	if blocks > 0 {
		per := (vecs + blocks - 1) / blocks
		if err := k.launch(hashBlocks, uint32(blocks), s, args().ptr(scratch, src).u64(vecs).u64(per)); err != nil {
			return err
		}
	}
	tail := src + driver.Ptr(vecs*vecBytes)
	return k.launch(hashFinish, 1, s, args().ptr(dst, scratch).u32(uint32(blocks)).ptr(tail).u32(uint32(n%vecBytes)))
}
