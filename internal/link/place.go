package link

import (
	"context"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// A uuid is not a secret, so anybody can say hello with that of the previous peer.
// Its living pool, over which it is heard, therefore keeps its place: it is replaced
// only in a round, and only if its owner has not asked for it there. A neighbour asks
// in every round whether its connections live (PingSenders), and dials only if they do
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
	// A connection is heard as long as something has come within the bound of what is not acknowledged, or within
	// leastSilence: at rest, systems ask no sooner than after a second.
	leastSilence = 3 * time.Second
	// askAgain is how long what the system has said of that counts.
	askAgain = 250 * time.Millisecond
)

// heardFor returns for how long the connection still counts as heard if nothing comes; 0: it has ended, or its peer
// was asked and is silent. Such a one may stay for long (platform.Options.Patient), while its owner has ended it.
// Hub.mu is held.
func (r *Receiver) heardFor(now time.Time) time.Duration {
	bound := r.h.cfg.Tuning.UserTimeout
	switch {
	case r.closed.Load():
		return 0
	case bound <= 0:
		return askAgain
	case r.place.asked.IsZero() || now.Sub(r.place.asked) >= askAgain:
		left := askAgain // as long as nobody knows
		if info, ok := platform.TCPInfo(r.conn); ok && info.Known.Has(platform.HasHeard|platform.HasRetries) {
			left = max(bound, leastSilence) - info.Heard
			unasked := info.Probes == 0 && info.Retries == 0 // this machine may have stood still
			if left > 0 || unasked {
				left = max(left, askAgain) // something may come before it is asked again
			}
		}
		r.place.asked, r.place.until = now, now.Add(left)
	}
	return max(r.place.until.Sub(now), 0)
}

// heardOf returns the longest time for which one of a pool still counts as heard. Hub.mu is held.
func heardOf(pool []*Receiver, now time.Time) (longest time.Duration) {
	for _, r := range pool {
		longest = max(longest, r.heardFor(now))
	}
	return longest
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
	now := time.Now()
	c := &h.claims
	switch {
	case len(pool) == 0 || peer != c.prev || !h.known[peer]:
		return true, 0
	case int(number) == len(pool) && now.Sub(pool[number-1].since) < growTime:
		return true, 0
	}
	heard := heardOf(pool, now)
	switch {
	case heard == 0:
		return true, 0
	case now.Sub(c.grown[peer]) < growTime && heardOf(pool[number:], now) == 0:
		return true, 0
	case !c.open || c.vouched[peer].After(c.since.Add(-vouchTime)):
		return false, max(heard, askAgain)
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
