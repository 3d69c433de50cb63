package link

import (
	"context"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// A uuid is not a secret, so anybody can say hello with that of the previous peer.
// Its living pool therefore keeps its place: it is replaced only in a round, and
// only if its owner has not asked for it there. A neighbour asks in every
// round whether its connections live (PingSenders), and dials only if they do
// not; a pool that it has closed gives way at once. Pools of others have no such
// place: a stranger may have opened them before the peer that the uuid belongs to.
const (
	// claimPause is how long a connection that would take the place of a living one
	// waits, from the beginning of a round, for the living one to be asked.
	claimPause = 250 * time.Millisecond
	// vouchTime is how long before a round, as this peer sees it, the question may
	// have come: the other peer may have heard of the round earlier.
	vouchTime = 2 * time.Second
	// growTime is how long a pool may get another connection after its last one, and
	// after its owner has said, over one that lives, that more will come.
	growTime = 30 * time.Second
	// A connection lives as long as it was heard within the bound of what is not acknowledged, or within
	// leastSilence: at rest, systems ask no sooner than after a second.
	leastSilence = 3 * time.Second
)

// lives reports whether the connection has not ended, and its peer is heard over it. One that is silent may stay for
// long (platform.Options.Patient), and its owner may have ended it.
func (r *Receiver) lives() bool {
	bound := r.h.cfg.Tuning.UserTimeout
	if r.Closed() || bound <= 0 {
		return !r.Closed()
	}
	info, ok := platform.TCPInfo(r.conn)
	return !ok || !info.Known.Has(platform.HasHeard) || info.Heard <= max(bound, leastSilence)
}

// claims is what decides about the places in receive pools. Hub.mu guards it.
type claims struct {
	prev    wire.UUID               // the previous peer of the ring in force
	open    bool                    // a round is in progress
	since   time.Time               // ... since then
	vouched map[wire.UUID]time.Time // when a neighbour has asked for its pool
	grown   map[wire.UUID]time.Time // when one has said that it will open more of them
}

// BeginRound says that a round is in progress, in which the previous peer may
// replace its pool.
func (h *Hub) BeginRound() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claims.open, h.claims.since = true, time.Now()
	h.changed.Broadcast()
}

// EndRound says that a ring is in force, and which peer precedes this one in it:
// zero, if none does.
func (h *Hub) EndRound(prev wire.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claims.open, h.claims.prev = false, prev
	h.changed.Broadcast()
}

// vouch notes that peer has asked whether a connection of its pool lives.
func (h *Hub) vouch(peer wire.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known[peer] { // others cannot fill the map
		h.claims.vouched[peer] = time.Now()
	}
}

// expect notes that peer is about to open more connections of its pool.
func (h *Hub) expect(peer wire.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known[peer] { // others cannot fill the map
		h.claims.grown[peer] = time.Now()
		h.changed.Broadcast()
	}
}

// mayTake reports whether connection number of peer may be taken now, and, if
// not, how long it has at least to wait; 0: for something to happen. h.mu is held.
func (h *Hub) mayTake(peer wire.UUID, number uint32) (ok bool, wait time.Duration) {
	pool := h.rx[peer]
	if int64(number) > int64(len(pool)) {
		return false, 0
	}
	alive := slices.ContainsFunc(pool, (*Receiver).lives)
	now := time.Now()
	c := &h.claims
	switch {
	case !alive || peer != c.prev || !h.known[peer]:
		return true, 0
	case int(number) == len(pool) && now.Sub(pool[number-1].since) < growTime:
		return true, 0
	case now.Sub(c.grown[peer]) < growTime && !slices.ContainsFunc(pool[number:], (*Receiver).lives):
		return true, 0
	case !c.open || c.vouched[peer].After(c.since.Add(-vouchTime)):
		return false, 0
	}
	wait = claimPause - now.Sub(c.since)
	return wait <= 0, max(wait, 0)
}

// MayTake reports whether connection number of peer may be taken now.
func (h *Hub) MayTake(peer wire.UUID, number uint32) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	ok, _ := h.mayTake(peer, number)
	return ok
}

// AwaitPlace waits until connection number of peer may be taken: as long as it
// would take the place of a living one without need and, with fill, until peer
// has opened those below it. Without fill the answer for one that leaves a hole is
// true at once: AddReceiver refuses it, as PCCL does. It returns false if ctx or
// the hub ends before.
func (h *Hub) AwaitPlace(ctx context.Context, peer wire.UUID, number uint32, fill bool) bool {
	wake := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.changed.Broadcast()
	}
	defer context.AfterFunc(ctx, wake)()
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		ok, wait := h.mayTake(peer, number)
		ok = ok || !fill && int64(number) > int64(len(h.rx[peer]))
		if ok || ctx.Err() != nil || h.closed {
			return ok
		}
		var alarm *time.Timer
		if wait > 0 {
			alarm = time.AfterFunc(wait, wake)
		}
		h.changed.Wait()
		if alarm != nil {
			alarm.Stop()
		}
	}
}
