// Package plan is what peers do in a collective operation, as data (Plan): one for
// each kind (For), and the ring all-reduce that PCCL peers take part in (Ring), with
// its arithmetic: which elements form a chunk, and which chunk moves in which step
// (data spec, sections 2.1 and 2.2). It is pure.
//
// Both phases of that all-reduce are numbered as one sequence of 2(n-1) steps. Steps
// 0..n-2 are the reduce-scatter, steps n-1..2n-3 the all-gather. With that numbering
// the schedule of both phases is the same: in step s position r sends chunk r-s and
// receives chunk r-s-1 (mod n), and what is sent in step s+1 is what was received in
// step s.
package plan

// Chunk returns the first element and the number of elements of chunk c when
// count elements are cut into n chunks. The first count mod n chunks have one
// element more; chunks may be empty. n >= 1, 0 <= c < n, count >= 0.
func Chunk(count, n, c int) (off, length int) {
	base, rem := count/n, count%n
	if c < rem {
		return c * (base + 1), base + 1
	}
	return c*base + rem, base
}

// ChunkAt returns the chunk that holds element i of count.
func ChunkAt(count, n, i int) int {
	base, rem := count/n, count%n
	if long := rem * (base + 1); i >= long && base > 0 {
		return rem + (i-long)/base
	}
	return i / (base + 1)
}

// Steps returns the number of steps of both phases in a ring of n.
func Steps(n int) int { return 2 * (n - 1) }

// Reduces reports whether what arrives in step is combined with local data
// (reduce-scatter); otherwise it is taken as it is (all-gather).
func Reduces(n, step int) bool { return step < n-1 }

// SendChunk returns the chunk that position rank sends in step.
func SendChunk(rank, n, step int) int { return mod(rank-step, n) }

// RecvChunk returns the chunk that position rank receives in step.
func RecvChunk(rank, n, step int) int { return mod(rank-step-1, n) }

// MinChunk returns the elements of the smallest chunk.
func MinChunk(count, n int) int { return count / n }

// Traffic returns the elements that position rank sends and receives over all steps.
func Traffic(count, n, rank int) (sent, received int) {
	for s := range Steps(n) {
		_, a := Chunk(count, n, SendChunk(rank, n, s))
		_, b := Chunk(count, n, RecvChunk(rank, n, s))
		sent, received = sent+a, received+b
	}
	return sent, received
}

func mod(a, n int) int {
	if a %= n; a < 0 {
		a += n
	}
	return a
}
