package peer

import (
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// watchEvery is how often the watchdog looks. It is one goroutine for all
// sessions of the process.
const watchEvery = time.Second

func (r *registry) watch(stop <-chan struct{}, ended chan<- struct{}) {
	defer close(ended)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			for _, s := range r.all() {
				s.watch(now)
			}
		}
	}
}

// mark is how far an operation was when the watchdog last saw it move.
type mark struct {
	received, sent int64
	inWrite        int
	phase          string
	since          time.Time
	warned         time.Duration // standing when it was last reported
	seen           bool
}

// watcher finds operations whose data phase does not move. It belongs to the
// watchdog's goroutine.
type watcher struct {
	after time.Duration // never, if not positive
	marks map[standing]*mark
	alone time.Duration // without a master, when that was last reported
}

type standing struct{ tag, seq uint64 }

// stuck is one finding.
type stuck struct {
	tag, seq uint64
	next     wire.UUID
	prev     wire.UUID
	since    time.Duration
	waits    string
}

// look compares the operations with what was seen before and returns those
// that have stood still for as long as after, and again when that time has
// doubled.
func (w *watcher) look(now time.Time, ops []OpState) (found []stuck) {
	if w.marks == nil {
		w.marks = map[standing]*mark{}
	}
	for _, m := range w.marks {
		m.seen = false
	}
	for i := range ops {
		o := &ops[i]
		if o.Phase == "created" || o.Phase == "finished" || o.Eager {
			continue // the master names in its log whom a vote waits for
		}
		key := standing{o.Tag, o.Seq}
		m := w.marks[key]
		if m == nil || m.received != o.Received || m.sent != o.Sent || m.inWrite != o.InWrite || m.phase != o.Phase {
			w.marks[key] = &mark{received: o.Received, sent: o.Sent, inWrite: o.InWrite, phase: o.Phase, since: now, seen: true}
			continue
		}
		m.seen = true
		if stood := now.Sub(m.since); stood >= max(w.after, 2*m.warned) {
			m.warned = stood
			found = append(found, stuck{o.Tag, o.Seq, o.Next, o.Prev, stood, o.Waits})
		}
	}
	for key, m := range w.marks {
		if !m.seen {
			delete(w.marks, key)
		}
	}
	return found
}

// watch warns about what stands still.
func (s *Session) watch(now time.Time) {
	if s.dog.after <= 0 || s.crashed.Load() != nil {
		return
	}
	defer errs.Catch("watch operations", s.crash)
	s.watchMaster(now)
	s.mu.Lock()
	idle := len(s.ops) == 0
	s.mu.Unlock()
	if idle {
		clear(s.dog.marks)
		return
	}
	for _, f := range s.dog.look(now, s.State().Ops) {
		s.log.Warn("an operation does not move", "tag", f.tag, "sequence", f.seq, "since", f.since.Round(time.Second),
			"waits for", f.waits, "next", f.next.Short(), "previous", f.prev.Short())
		s.opt.Trace.Stands(f.tag, f.seq, f.since, f.waits)
	}
}

// watchMaster warns while there is no master, and again when the time has doubled.
func (s *Session) watchMaster(now time.Time) {
	a := s.master.away.Load()
	if a == nil {
		s.dog.alone = 0
		return
	}
	if d := now.Sub(a.Since); d >= max(watchEvery, 2*s.dog.alone) {
		s.dog.alone = d
		s.log.Warn("there is no master", "since", d.Round(100*time.Millisecond), "trying", a.Trying, "error", a.Err)
	}
}
