//go:build invariants

package invariants

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
)

// Mutex is a sync.Mutex that checks the order in which locks are taken while
// somebody watches: a goroutine that holds one may only take those of a higher
// rank, so that no circle of goroutines can wait for each other.
type Mutex struct {
	mu   sync.Mutex
	rank int
	name string
}

// Rank names the lock and says where it stands; without it, it is not checked.
// It must be called before the lock is used.
func (m *Mutex) Rank(rank int, name string) { m.rank, m.name = rank, name }

// watchers counts the calls of WatchLocks that were not stopped; held knows the
// locks of each goroutine, in the order in which they were taken.
var (
	watchers atomic.Int32
	held     struct {
		sync.Mutex
		by map[uint64][]*Mutex
	}
)

// WatchLocks makes all ranked locks of the process check their order until stop
// is called. It costs a microsecond or more for every lock.
func WatchLocks() (stop func()) {
	held.Lock()
	if held.by == nil {
		held.by = map[uint64][]*Mutex{}
	}
	held.Unlock()
	watchers.Add(1)
	return sync.OnceFunc(func() {
		if watchers.Add(-1) == 0 {
			held.Lock()
			clear(held.by)
			held.Unlock()
		}
	})
}

// goroutine returns the number of the calling goroutine.
func goroutine() uint64 {
	var b [40]byte
	text := b[:runtime.Stack(b[:], false)]
	text = bytes.TrimPrefix(text, []byte("goroutine "))
	n, _ := strconv.ParseUint(string(text[:bytes.IndexByte(text, ' ')]), 10, 64)
	return n
}

// taking checks that the caller may take m and notes that it does. waits says
// that it would wait for m.
func (m *Mutex) taking(waits bool) {
	if m.rank == 0 || watchers.Load() == 0 {
		return
	}
	id := goroutine()
	held.Lock()
	defer held.Unlock()
	for _, h := range held.by[id] {
		Check(!waits || h.rank < m.rank, "lock order: %s (rank %d) is taken while %s (rank %d) is held", m.name, m.rank, h.name, h.rank)
	}
	held.by[id] = append(held.by[id], m)
}

// given forgets that the caller holds m.
func (m *Mutex) given() {
	if m.rank == 0 || watchers.Load() == 0 {
		return
	}
	id := goroutine()
	held.Lock()
	defer held.Unlock()
	all := held.by[id]
	for i := len(all) - 1; i >= 0; i-- {
		if all[i] == m {
			all = append(all[:i], all[i+1:]...)
			break
		}
	}
	if len(all) == 0 {
		delete(held.by, id)
	} else {
		held.by[id] = all
	}
}

// Lock takes the lock.
func (m *Mutex) Lock() {
	m.taking(true)
	m.mu.Lock()
}

// TryLock takes the lock if it is free.
func (m *Mutex) TryLock() bool {
	if !m.mu.TryLock() {
		return false
	}
	m.taking(false)
	return true
}

// Unlock gives the lock back.
func (m *Mutex) Unlock() {
	m.given()
	m.mu.Unlock()
}
