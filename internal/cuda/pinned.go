package cuda

import (
	"math/bits"
	"sync"

	"github.com/gopccl/gopccl/internal/buf"
)

// pinned is the pool of host memory that copies go through. Pinned memory is
// fast, slow to get, and taken from everybody else; so what was used is kept,
// and there is never more than the limit. Beyond it ordinary memory does.
//
// Giving pinned memory back waits for all that the device does, the trainer's
// kernels included. So no operation waits for that: one that finds the pool full
// of areas that are too small takes ordinary memory, and a goroutine pins an area
// in their place for those that follow. As areas give way to larger ones alone, and
// full pools lend larger ones to all, sizes in turns come to rest.
type pinned struct {
	p        *Platform
	ordinary *buf.Pool

	mu       sync.Mutex
	limit    int64            // 0: none was set yet
	total    int64            // allocated
	idle     int64            // of it not in use
	free     map[int][][]byte // by size
	pageable uint64
	told     bool
}

// keptPageable bounds the idle ordinary memory in bytes.
const keptPageable = 256 << 20

func newPinned(p *Platform) *pinned {
	return &pinned{p: p, ordinary: buf.NewPool(keptPageable), free: map[int][][]byte{}}
}

func (m *pinned) setLimit(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = n
}

// suggest sets a limit if there is none.
func (m *pinned) suggest(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit == 0 {
		m.limit = n
	}
}

// Without a setting a process pins up to a part of the machine's memory.
const (
	part = 8
	// usualLimit is for machines whose memory is not known.
	usualLimit = 2 << 30
)

func limitFor(memory uint64) int64 {
	if memory == 0 {
		return usualLimit
	}
	return int64(memory / part)
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
// false: get has to.
func (m *pinned) ready(n int) (area, bool) {
	m.mu.Lock()
	a, ok := m.kept(n)
	fits := m.fits(n)
	m.mu.Unlock()
	if ok || fits {
		return a, ok
	}
	return m.plain(n), true
}

// fits reports whether an area for n bytes may be allocated. m.mu is held.
func (m *pinned) fits(n int) bool { return m.total+int64(sizeOf(n)) <= m.limit }

// kept returns the smallest idle area that is large enough for n bytes; one that
// is more than twice as large only if there is no room for another. m.mu is held.
func (m *pinned) kept(n int) (area, bool) {
	size, best := sizeOf(n), 0
	for s, l := range m.free {
		if len(l) > 0 && s >= size && (best == 0 || s < best) {
			best = s
		}
	}
	if best == 0 || best > 2*size && m.fits(n) {
		return area{}, false
	}
	b := m.take(best)
	return area{b[:n], b, true}, true
}

// take takes an idle area of a size that has one. m.mu is held.
func (m *pinned) take(size int) []byte {
	l := m.free[size]
	b := l[len(l)-1]
	if m.free[size] = l[:len(l)-1]; len(l) == 1 {
		delete(m.free, size)
	}
	m.idle -= int64(size)
	return b
}

// get returns n > 0 bytes of arbitrary content. A context is current.
func (m *pinned) get(n int) area {
	size := sizeOf(n)
	m.mu.Lock()
	a, ok := m.kept(n)
	fits := !ok && m.fits(n)
	if fits {
		m.total += int64(size)
	}
	m.mu.Unlock()
	if ok {
		return a
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
	return m.plain(n)
}

// plain returns n bytes of ordinary memory, and lets as many be pinned in place of
// areas that are too small.
func (m *pinned) plain(n int) area {
	m.mu.Lock()
	m.pageable++
	first := !m.told
	m.told = true
	limit := m.limit
	size := sizeOf(n)
	old := m.evict(int64(size))
	m.mu.Unlock()
	if first {
		m.p.log.Load().Warn("ordinary memory is used for staging, which is slower: raise backends.cuda.staging",
			"bytes", n, "staging", limit)
	}
	if len(old) > 0 {
		m.p.spawn(func() { m.replace(old, size) })
	}
	b := m.ordinary.Get(n)
	return area{b, b, false}
}

// evict takes idle areas that are smaller than size out of the pool, the largest
// first, until one of size fits; none if that does not help. m.mu is held.
func (m *pinned) evict(size int64) (old [][]byte) {
	if m.total-m.idle+size > m.limit {
		return nil
	}
	for left := m.total; left+size > m.limit; {
		largest := 0
		for s := range m.free {
			largest = max(largest, s)
		}
		old = append(old, m.take(largest))
		left -= int64(largest)
	}
	return old
}

// replace gives areas back that were taken out of the pool, and pins one of size
// if it fits then: areas of other sizes would take the room.
func (m *pinned) replace(old [][]byte, size int) {
	d := m.p.usable()
	if d == nil {
		return // the driver takes nothing back
	}
	for _, b := range old {
		if err := d.do(func() error { return m.p.driver.HostFree(b) }); err != nil {
			m.p.log.Load().Warn("pinned memory could not be given back", "bytes", len(b), "error", err)
		}
		m.mu.Lock()
		m.total -= int64(len(b))
		m.mu.Unlock()
	}
	m.mu.Lock()
	fits := m.fits(size)
	if fits {
		m.total += int64(size)
	}
	m.mu.Unlock()
	if !fits {
		return
	}
	var b []byte
	err := d.do(func() (err error) {
		b, err = m.p.driver.HostAlloc(size)
		return err
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.total -= int64(size)
		return // the next operation tries again, and says so
	}
	m.idle += int64(size)
	m.free[size] = append(m.free[size], b)
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
