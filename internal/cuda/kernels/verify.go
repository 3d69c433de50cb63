package kernels

import (
	"encoding/binary"
	"fmt"

	"github.com/gopccl/gopccl/core/errs"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

const (
	expTally   = "expf_tally"
	readParity = "read_parity"
)

// Tally counts what a function of float32 gave for a range of patterns.
type Tally struct {
	Sum              uint64 // of the results' patterns, modulo 2^64
	NaN, Inf, Finite uint64
	Xor              uint32 // of the results' patterns
}

// Add joins the results of another range.
func (t *Tally) Add(o Tally) {
	t.Sum += o.Sum
	t.NaN += o.NaN
	t.Inf += o.Inf
	t.Finite += o.Finite
	t.Xor ^= o.Xor
}

const tallyBytes = 40

// TallyBytes is how much device memory an ExpTally writes at most.
const TallyBytes = tallyBytes * groups

// ExpTally queues the evaluation of expf, CUDA's own for float32 without fast
// math, of count patterns: each step-th from first on. dst, a multiple of 8, gets
// the returned number of bytes, for ReadTally.
func (k *Set) ExpTally(dst driver.Ptr, first uint32, step, count uint64, s driver.Stream) (int, error) {
	if step == 0 || count > (1<<32-uint64(first)+step-1)/step {
		return 0, errs.New(errs.InvalidArgument, "device expf", fmt.Errorf("%d patterns, every %d-th from %#x on, are more than there are", count, step, first))
	}
	blocks := min(k.grid(count), groups)
	return int(blocks) * tallyBytes, k.launch(expTally, blocks, s, args().ptr(dst).u64(uint64(first)).u64(step).u64(count))
}

// ReadTally joins the results of ExpTally.
func ReadTally(results []byte) (t Tally) {
	for ; len(results) >= tallyBytes; results = results[tallyBytes:] {
		word := func(i int) uint64 { return binary.LittleEndian.Uint64(results[8*i:]) }
		t.Add(Tally{Sum: word(0), NaN: word(1), Inf: word(2), Finite: word(3), Xor: uint32(word(4))})
	}
	return t
}

// ParityBytes is how much device memory a ReadParity writes at most.
const ParityBytes = 4 * groups

// ReadParity queues a kernel that reads n bytes at src, a multiple of 16, less
// those behind the last 16: the exclusive or of their words, by block, to dst, a
// multiple of 4. It returns how many bytes it writes. It is what the speed of
// other kernels is compared with.
func (k *Set) ReadParity(dst, src driver.Ptr, n uint64, s driver.Stream) (int, error) {
	if src%vecBytes != 0 {
		return 0, errs.New(errs.InvalidArgument, "device read", fmt.Errorf("device address %#x is not a multiple of %d", uint64(src), vecBytes))
	}
	blocks := min(k.grid(n/vecBytes), groups)
	return int(blocks) * 4, k.launch(readParity, blocks, s, args().ptr(dst, src).u64(n/vecBytes))
}
