package compat

import "sync"

// The originals wait by spinning, so worlds that compute at the same time on
// few cores hold each other up, while worlds that measure bandwidth take the
// same ten seconds per link however many they are. Therefore the worlds of
// this package compute one after the other and measure all together.
var turns = newGate()

type gate struct {
	mu        sync.Mutex
	changed   *sync.Cond
	computing bool
	waiting   int // worlds that want to compute
	measuring int
}

func newGate() *gate {
	g := &gate{}
	g.changed = sync.NewCond(&g.mu)
	return g
}

// compute waits until no other world computes or measures. The caller must call done.
func (g *gate) compute() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting++
	for g.computing || g.measuring > 0 {
		g.changed.Wait()
	}
	g.waiting--
	g.computing = true
}

// measure waits until no world computes or wants to. The caller must call measured.
func (g *gate) measure() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.computing || g.waiting > 0 {
		g.changed.Wait()
	}
	g.measuring++
}

func (g *gate) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.computing = false
	g.changed.Broadcast()
}

func (g *gate) measured() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.measuring--
	g.changed.Broadcast()
}
