package link

import (
	"bytes"
	"time"

	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/wire"
)

// count is what is known of a peer.
type count struct {
	*pace.Count
	span   pace.Span
	came   uint64  // bytes that arrived at the peer in this tick, also behind a gap
	seen   bool    // in this tick
	used   int     // connections that operations were told of
	before float64 // the bound before more were tried, in bytes per second; 0: there was none
	heard  account
}

// settle asks the count of a peer, and has connections opened if more are wanted
// than there are.
func (v *survey) settle(now time.Duration, peer wire.UUID, c *count) {
	v.h.mu.Lock()
	most, refused := v.most[peer]
	delete(v.most, peer)
	pool := len(v.h.tx[peer])
	_, decided := v.wanted[peer]
	asked := v.asked[peer]
	if asked.due {
		v.asked[peer] = ask{n: asked.n}
	}
	v.h.mu.Unlock()
	if asked.due && asked.n > pool && v.h.cfg.Grow != nil {
		v.h.cfg.Grow(peer, asked.n)
	}
	if !decided { // some may have come since the first was seen
		c.Follow(pool)
	}
	before, trying := c.N(), c.Trying()
	if refused {
		c.Refused(now, most)
	}
	if !c.Step(now, c.span) && !refused {
		return
	}
	v.tried(c, before, trying && (refused || c.N() < before))
	v.want(peer, c.N(), pool)
}

// level has a peer that gets less of a full line than others try as many connections as the one of them
// with most.
func (v *survey) level(now time.Duration) {
	var most *count
	var first wire.UUID // of those with as many
	for peer, c := range v.counts {
		if c.seen && c.span.Waiting && c.Shares(now) && (most == nil || c.N() > most.N() || c.N() == most.N() && bytes.Compare(peer[:], first[:]) < 0) {
			most, first = c, peer
		}
	}
	if most == nil {
		return
	}
	for peer, c := range v.counts {
		before := c.N()
		if c.seen && c.span.Waiting && c.Level(now, most.Count) {
			v.tried(c, before, false)
			v.h.mu.Lock()
			pool := len(v.h.tx[peer])
			v.h.mu.Unlock()
			v.want(peer, c.N(), pool)
		}
	}
}

// want has operations use n connections to a peer, and more opened if the pool has fewer.
func (v *survey) want(peer wire.UUID, n, pool int) {
	v.h.mu.Lock()
	v.wanted[peer] = n
	v.h.mu.Unlock()
	v.h.cfg.Logger.Debug("connections", "peer", peer.Short(), "wanted", n, "open", pool)
	if n > pool && v.h.cfg.Grow != nil {
		v.h.cfg.Grow(peer, n)
	}
}

// ask is what Hub.Ask was told last; due: nobody has been asked to open them since.
type ask struct {
	n   int
	due bool
}

// Ask says that operations would use n connections to a distant peer if there were as many. They
// are opened while there is data.
func (h *Hub) Ask(peer wire.UUID, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n > len(h.tx[peer]) && n > h.survey.asked[peer].n { // once: it may have been refused
		h.survey.asked[peer] = ask{n, true}
	}
}

// Wanted returns how many connections to peer operations want; 0: nothing is known.
func (h *Hub) Wanted(peer wire.UUID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.survey.wanted[peer], h.survey.asked[peer].n)
}

// InUse returns the connections to peer that an operation which begins now is to use,
// by number. It is not to be changed.
func (h *Hub) InUse(peer wire.UUID) []*Sender {
	h.mu.Lock()
	defer h.mu.Unlock()
	pool := h.tx[peer]
	if n := h.survey.wanted[peer]; n > 0 && n < len(pool) {
		return pool[:n:n]
	}
	return pool
}

// Refused says that no more than n connections to peer can be had for now.
func (h *Hub) Refused(peer wire.UUID, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.survey.most[peer] = n
}
