//go:build !invariants

package invariants

import "sync"

// Mutex is a sync.Mutex. With the build tag `invariants` it can be made to
// check the order in which locks are taken; see WatchLocks.
type Mutex struct{ sync.Mutex }

// Rank does nothing in this build.
func (m *Mutex) Rank(int, string) {}

// WatchLocks does nothing in this build.
func WatchLocks() (stop func()) { return func() {} }
