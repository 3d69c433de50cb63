//go:build !nocuda && (linux || windows) && (amd64 || arm64)

package libcuda

import (
	"sync/atomic"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// Present reports whether this process has loaded the driver already, and
// returns it unless it is too old. It opens nothing. The driver need not have
// been initialised: until somebody does that, each call fails with
// driver.NotInitialized.
func Present() (d driver.Driver, loaded bool) {
	found, loaded := system.look()
	if found == nil { // and not an interface that holds nil
		return nil, loaded
	}
	return found, true
}

var system = presence{path: library}

// presence finds out whether a library is loaded. If it is not, nothing has to
// be searched for again before the process loads another one, which the loader
// counts.
type presence struct {
	path   string
	found  atomic.Pointer[Driver]
	tooOld atomic.Bool
	seen   atomic.Uint64 // loads when it was not there
}

func (p *presence) look() (d *Driver, there bool) {
	if d := p.found.Load(); d != nil || p.tooOld.Load() {
		return d, true
	}
	now := loads()
	if now != 0 && now == p.seen.Load() {
		return nil, false
	}
	lib := loaded(p.path)
	if lib == 0 {
		p.seen.Store(now)
		return nil, false
	}
	d, err := bind(lib, p.path)
	if err != nil {
		p.tooOld.Store(true)
		return nil, true
	}
	p.found.Store(d)
	return d, true
}
