package determinism

import (
	"context"
	"math"
	"runtime"
	"sync"
)

// Patterns is the number of float32 bit patterns.
const Patterns = 1 << 32

// ExpSums summarises exp over a set of float32 bit patterns: what the outputs
// are, and two checksums over their bits. Sums over disjoint sets add up with Add.
type ExpSums struct {
	NaN    uint64 `json:"nan"`
	Inf    uint64 `json:"inf"`
	Finite uint64 `json:"finite"`
	Sum    uint64 `json:"sum"` // of the output bits, modulo 2^64
	XOR    uint32 `json:"xor"` // of the output bits
}

// Reported is what PCCL's report lists for CUDA's expf over all patterns, equal
// on every GPU that it names.
var Reported = ExpSums{NaN: 16777214, Inf: 1020169705, Finite: 3258020377, Sum: 4602279786742895247, XOR: 0x45abda35}

// Ours is what Exp gives for all patterns, on every processor.
var Ours = ExpSums{NaN: 16777214, Inf: 1020169705, Finite: 3258020377, Sum: 4602279786696306981, XOR: 0x47876559}

// Add puts the sums of another set beside those of s.
func (s *ExpSums) Add(o ExpSums) {
	s.NaN += o.NaN
	s.Inf += o.Inf
	s.Finite += o.Finite
	s.Sum += o.Sum
	s.XOR ^= o.XOR
}

func (s *ExpSums) add(out uint32) {
	switch {
	case out&0x7fffffff > 0x7f800000:
		s.NaN++
	case out&0x7fffffff == 0x7f800000:
		s.Inf++
	default:
		s.Finite++
	}
	s.Sum += uint64(out)
	s.XOR ^= out
}

// expNaN is the pattern that every NaN gives, as on a GPU.
const expNaN = 0x7fffffff

// Limits of exp: at and below the first it rounds to 0, from the second on to infinity.
const (
	expZero = -103.972084
	expInf  = 88.722840
)

// Exp returns e to the x, rounded once to float32 from a float64 value whose
// error is a few units in its last place: the nearest float32 unless the true
// value is within 2^-49 of the middle of two. It uses additions, multiplications
// and conversions only, none of them fused, so it gives the same bits on every
// processor; math.Exp does not. NaNs give 0x7fffffff.
func Exp(x float32) float32 {
	switch {
	case x != x:
		return math.Float32frombits(expNaN)
	case x >= expInf:
		return float32(math.Inf(1))
	case x <= expZero:
		return 0
	case math.Abs(float64(x)) < 1.0/(1<<26): // far from the next numbers, 1-2^-24 and 1+2^-23
		return 1
	}
	const (
		toLog2 = 1 / math.Ln2
		high   = 0x1.62e42fee00000p-1 // ln 2 to 33 bits: a multiple by a small integer is exact
		low    = 0x1.a39ef35793c76p-33
	)
	v := float64(x)
	n := int(float64(v*toLog2) + math.Copysign(0.5, v))
	k := float64(n)
	r := float64(v-float64(k*high)) - float64(k*low) // |r| <= ln(2)/2 and a little
	p := 1.0
	for i := len(inverse) - 1; i > 0; i-- {
		p = 1 + float64(float64(p*r)*inverse[i])
	}
	// 2^n is a normal float64 in the range of float32 and of its subnormals.
	return float32(p * math.Float64frombits(uint64(n+1023)<<52))
}

// inverse holds 1/i. The term after the last, r^15/15!, is below 2^-62.
var inverse = func() (v [15]float64) {
	for i := 1; i < len(v); i++ {
		v[i] = 1 / float64(i)
	}
	return v
}()

// block is how many patterns a worker takes at a time.
const block = 1 << 20

// SweepExp evaluates Exp at each step-th of all patterns, from pattern 0 on, on
// all cores. It ends early, with ctx's error, when ctx does.
func SweepExp(ctx context.Context, step uint64) (ExpSums, error) {
	var (
		mu    sync.Mutex
		next  uint64
		total ExpSums
		wg    sync.WaitGroup
	)
	take := func(done ExpSums) (from uint64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		total.Add(done)
		from, ok = next, next < Patterns && ctx.Err() == nil
		next += block * step
		return from, ok
	}
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			var sums ExpSums
			for from, ok := take(sums); ok; from, ok = take(sums) {
				sums = sweep(from, min(from+block*step, Patterns), step)
			}
		})
	}
	wg.Wait()
	return total, ctx.Err()
}

func sweep(from, to, step uint64) (s ExpSums) {
	for i := from; i < to; i += step {
		s.add(math.Float32bits(Exp(math.Float32frombits(uint32(i)))))
	}
	return s
}
