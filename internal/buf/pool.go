// Package buf is the memory of the data path: a caching allocator of aligned,
// pre-faulted byte buffers in size classes.
package buf

import (
	"math/bits"
	"unsafe"

	"github.com/gopccl/gopccl/internal/invariants"
)

const (
	// Align is the alignment of every buffer in bytes: a cache line, and the
	// widest vector register.
	Align = 64
	// minShift: the smallest class has 4 KiB, so that tiny requests share one list.
	minShift   = 12
	numClasses = (64-minShift)*4 + 1
	pageSize   = 4096
	// DefaultLimit is what a pool built with limit 0 keeps when nobody uses it.
	DefaultLimit = 1 << 30
)

// Stats is a snapshot of a Pool.
type Stats struct {
	Gets     uint64 // calls of Get
	Hits     uint64 // Gets served from the cache
	InUse    int64  // bytes handed out and not put back
	Cached   int64  // bytes kept for later
	Dropped  uint64 // buffers given to the garbage collector because of the limit
	PeakUsed int64  // highest InUse so far
}

// Pool hands out buffers and keeps those that come back. The zero value is not
// usable; see NewPool. Safe for concurrent use.
type Pool struct {
	mu    invariants.Mutex
	limit int64
	free  [numClasses][][]byte
	stats Stats
}

// rank of the pool's lock: nothing is locked while it is held.
const rank = 1000

// NewPool returns a pool that keeps at most limit bytes of idle buffers
// (0: DefaultLimit). What is in use is not limited.
func NewPool(limit int64) *Pool {
	if limit <= 0 {
		limit = DefaultLimit
	}
	p := &Pool{limit: limit}
	p.mu.Rank(rank, "Pool.mu")
	return p
}

// class returns the index and the size of the class that holds n bytes. There
// are four classes to a doubling, so at most a quarter of a buffer is unused.
func class(n int) (int, int) {
	if n <= 1<<minShift {
		return 0, 1 << minShift
	}
	s := bits.Len(uint(n - 1))
	half, quarter := 1<<(s-1), 1<<(s-3)
	k := (n - half + quarter - 1) / quarter // 1..4
	return (s-minShift-1)*4 + k, half + k*quarter
}

// Size returns what a buffer of n bytes takes of a pool's memory.
func Size(n int) int {
	if n <= 0 {
		return 0
	}
	_, size := class(n)
	return size
}

// Get returns a buffer of n bytes with arbitrary content, aligned to Align.
// It belongs to the caller until Put. n = 0 gives nil.
func (p *Pool) Get(n int) []byte {
	if n <= 0 {
		return nil
	}
	c, size := class(n)
	p.mu.Lock()
	p.stats.Gets++
	p.stats.InUse += int64(size)
	p.stats.PeakUsed = max(p.stats.PeakUsed, p.stats.InUse)
	if l := len(p.free[c]); l > 0 {
		b := p.free[c][l-1]
		p.free[c][l-1] = nil
		p.free[c] = p.free[c][:l-1]
		p.stats.Hits++
		p.stats.Cached -= int64(size)
		p.mu.Unlock()
		return b[:n]
	}
	p.mu.Unlock()
	return fresh(size)[:n]
}

// fresh allocates size bytes, aligned and with every page touched, so that the
// page faults do not happen in the middle of a collective.
func fresh(size int) []byte {
	raw := make([]byte, size+Align)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (Align - 1))
	b := raw[off : off+size : off+size]
	for i := 0; i < size; i += pageSize {
		b[i] = 0
	}
	return b
}

// Put gives a buffer back that came from Get of this pool; nil is allowed. The
// caller must not use it, or any slice of it, afterwards.
func (p *Pool) Put(b []byte) {
	if cap(b) == 0 {
		return
	}
	c, size := class(cap(b))
	if size != cap(b) {
		invariants.Check(false, "buf: Put of a foreign buffer of %d bytes", cap(b))
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.InUse -= int64(size)
	if p.stats.Cached+int64(size) > p.limit {
		p.stats.Dropped++
		return
	}
	p.stats.Cached += int64(size)
	p.free[c] = append(p.free[c], b[:size])
}

// Stats returns a snapshot of the counters.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}
