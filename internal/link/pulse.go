package link

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// A system takes the window of a connection back that has sent nothing for a moment,
// and what follows begins with a slow start. A pulse keeps the window: a ping that wants no
// answer, of 21 bytes, on each connection to a distant peer that has moved much, also while an
// operation has nothing for it. Peers that do not know pulses answer them. A connection that
// rests while others have data is the survey's, which sees it first. A pulse that is lost costs a part
// of the window, as data does, so there are no more of them than the window needs.

var pulse = Opener{pulseBit, pingStream}

// breath is after how long connections at rest are looked at again.
const breath = pace.Pulse / 3

// restFrom has pulses sent, if any connection is worth them. The caller is a
// goroutine that Close waits for; the last data left at since.
func (v *survey) restFrom(since time.Duration) {
	var worth []*Sender
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	until := v.rest.Begin(since)
	for _, s := range v.far {
		f := s.gauge.flow
		if f.moved.Store(0); s.features.Flows && f.worth.Load() && !f.keeps && !f.near.Load() && !s.Broken() {
			worth = append(worth, s)
		}
	}
	if len(worth) > 0 && !v.h.closed {
		v.h.spawn("pulse", wire.UUID{}, func() { v.keep(worth, until) }, func(error) {})
	}
}

// keep sends pulses until there is data again, or it is not worth it any more.
func (v *survey) keep(conns []*Sender, until time.Duration) {
	tick := time.NewTicker(breath)
	defer tick.Stop()
	for now := time.Since(v.made); len(conns) > 0 && now < until; now = time.Since(v.made) {
		if v.on.Load() {
			return
		}
		conns = slices.DeleteFunc(conns, func(s *Sender) bool { return s.Broken() || !s.gauge.flow.wide() })
		v.refresh(now, conns)
		select {
		case <-v.stop:
			return
		case <-tick.C:
		}
	}
}

// refresh sends a pulse on each of the connections for which it is time.
func (v *survey) refresh(now time.Duration, conns []*Sender) {
	for _, s := range conns {
		if f := s.gauge.flow; s.features.Flows && f.rests(now) {
			f.pulsed.Store(int64(now))
			s.pulse()
			if info, ok := platform.TCPInfo(s.conn); ok {
				f.look(&info)
			}
		}
	}
}

// pulse sends one, unless something is being sent. Beside sources, which an operation leaves
// with the connection also while it waits for others, another goroutine does: the survey does not
// write what they may have by then.
func (s *Sender) pulse() {
	s.mu.Lock()
	idle, alone := s.cause == nil && !s.busy && len(s.openers) == 0, len(s.sources) == 0
	if idle {
		s.openers = append(s.openers, pulse)
	}
	s.mu.Unlock()
	if idle {
		s.Kick(alone, true)
	}
}

// rested reports whether nothing is being sent, and nothing waits to be but what sources
// may have; they say so when they do.
func (s *Sender) rested() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause == nil && !s.busy && !s.pending && len(s.openers) == 0
}

// follow sends a pulse behind data, also for sources that will have more.
func (s *Sender) follow() {
	s.mu.Lock()
	s.openers = append(s.openers, pulse)
	s.mu.Unlock()
	s.Kick(false, true) // what sources have is not written by the survey
}

// pulses reports whether the batch is a pulse and nothing else, which counts neither
// as data nor as a sign of life. The caller holds busy.
func (s *Sender) pulses() bool { return len(s.batch) == 1 && s.batch[0].pulse }

// Announce says to peer, over the first connection of its pool, that more will come.
// It returns how many there are; 0: there is none that could grow.
func (h *Hub) Announce(peer wire.UUID) int {
	pool := h.Senders(peer)
	if len(pool) == 0 || !pool[0].features.Flows || slices.ContainsFunc(pool, (*Sender).Broken) {
		return 0
	}
	s := pool[0]
	s.mu.Lock()
	s.openers = append(s.openers, Opener{growTag, pingStream})
	s.mu.Unlock()
	s.Kick(false, true)
	return len(pool)
}
