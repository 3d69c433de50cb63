package cuda

import (
	"math/bits"
	"sync"

	"github.com/gopccl/gopccl/internal/buf"
)

// pinned is the pool of host memory that copies go through. Pinned memory is
// fast, slow to get, and taken from everybody else; so what was used is kept,
// and there is never more than the limit. Beyond it ordinary memory does.
type pinned struct {
	p        *Platform
	ordinary *buf.Pool

	mu       sync.Mutex
	limit    int64
	total    int64            // allocated
	idle     int64            // of it not in use
	free     map[int][][]byte // by size
	pageable uint64
	told     bool
}

// keptPageable bounds the idle ordinary memory in bytes.
const keptPageable = 256 << 20

func newPinned(p *Platform, limit int64) *pinned {
	return &pinned{p: p, ordinary: buf.NewPool(keptPageable), limit: limit, free: map[int][][]byte{}}
}

func (m *pinned) setLimit(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = n
}

func (m *pinned) stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stats{Pinned: m.total, Idle: m.idle, Pageable: m.pageable}
}

// sizeOf rounds n up: four sizes to a doubling, at least a page.
func sizeOf(n int) int {
	const page = 4096
	if n <= page {
		return page
	}
	step := max(page, 1<<(bits.Len(uint(n-1))-3))
	return (n + step - 1) / step * step
}

// area is memory from the pool.
type area struct {
	bytes  []byte // of the size asked for
	whole  []byte // as it was allocated
	pinned bool
}

// ready returns n > 0 bytes of arbitrary content without asking the driver;
// false: there are none.
func (m *pinned) ready(n int) (area, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept(n)
}

// kept is ready with m.mu held.
func (m *pinned) kept(n int) (area, bool) {
	size := sizeOf(n)
	l := m.free[size]
	if len(l) == 0 {
		return area{}, false
	}
	b := l[len(l)-1]
	m.free[size] = l[:len(l)-1]
	m.idle -= int64(size)
	return area{b[:n], b, true}, true
}

// get returns n > 0 bytes of arbitrary content. A context is current.
func (m *pinned) get(n int) area {
	size := sizeOf(n)
	m.mu.Lock()
	if a, ok := m.kept(n); ok {
		m.mu.Unlock()
		return a
	}
	old := m.evict(int64(size))
	fits := m.total+int64(size) <= m.limit
	if fits {
		m.total += int64(size)
	}
	m.mu.Unlock()
	for _, b := range old {
		if err := m.p.driver.HostFree(b); err != nil {
			m.p.log.Load().Warn("pinned memory could not be given back", "bytes", len(b), "error", err)
		}
	}
	if fits {
		b, err := m.p.driver.HostAlloc(size)
		if err == nil {
			return area{b[:n], b, true}
		}
		m.mu.Lock()
		m.total -= int64(size)
		m.mu.Unlock()
		m.p.log.Load().Warn("no pinned memory is available", "bytes", size, "error", err)
	}
	m.mu.Lock()
	m.pageable++
	first := !m.told
	m.told = true
	limit := m.limit
	m.mu.Unlock()
	if first {
		m.p.log.Load().Warn("ordinary memory is used for staging, which is slower: raise backends.cuda.staging",
			"bytes", n, "staging", limit)
	}
	b := m.ordinary.Get(n)
	return area{b, b, false}
}

// evict takes idle memory out of the pool until size more bytes fit, as far as
// that helps. m.mu is held.
func (m *pinned) evict(size int64) (old [][]byte) {
	if m.total-m.idle+size > m.limit {
		return nil
	}
	for m.total+size > m.limit {
		largest := 0
		for s, l := range m.free {
			if len(l) > 0 {
				largest = max(largest, s)
			}
		}
		l := m.free[largest]
		old = append(old, l[len(l)-1])
		m.free[largest] = l[:len(l)-1]
		m.idle -= int64(largest)
		m.total -= int64(largest)
	}
	return old
}

// put takes memory back that no copy uses any more.
func (m *pinned) put(a area) {
	switch {
	case a.whole == nil:
	case !a.pinned:
		m.ordinary.Put(a.whole)
	default:
		m.mu.Lock()
		defer m.mu.Unlock()
		m.idle += int64(len(a.whole))
		m.free[len(a.whole)] = append(m.free[len(a.whole)], a.whole)
	}
}

// drain frees the idle memory. A context is current.
func (m *pinned) drain() error {
	m.mu.Lock()
	var all [][]byte
	for size, l := range m.free {
		all = append(all, l...)
		m.total -= int64(size * len(l))
		m.idle -= int64(size * len(l))
	}
	clear(m.free)
	m.mu.Unlock()
	var first error
	for _, b := range all {
		if err := m.p.driver.HostFree(b); err != nil && first == nil {
			first = err
		}
	}
	return first
}
