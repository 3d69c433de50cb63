package peer

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// The rate of the link to the next peer is reported at most every reportEvery, and
// only if it moved leastReport bytes in that time.
const (
	reportEvery = time.Second
	leastReport = 1 << 20
)

// meter watches the link to the next peer while operations are under way.
type meter struct {
	use     func(wire.UUID) (uint64, time.Duration) // totals of a link: bytes, time at work
	yielded often                                   // reports of what all connections gave

	mu     sync.Mutex
	flying int
	to     wire.UUID
	began  time.Time     // of the operations under way
	bytes  uint64        // totals then
	busy   time.Duration // totals then

	moved            uint64 // since the last report
	worked, operated time.Duration
	reported         time.Time
}

// started is called before an operation starts in the ring.
func (m *meter) started(ring []wire.UUID, self wire.UUID, now time.Time) {
	i := slices.Index(ring, self)
	if i < 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if to := ring[(i+1)%len(ring)]; to != m.to {
		m.to, m.moved, m.worked, m.operated = to, 0, 0, 0
		m.began = now
		m.bytes, m.busy = m.use(to)
	}
	if m.flying++; m.flying == 1 {
		m.began = now
		m.bytes, m.busy = m.use(m.to)
	}
}

// timing is an operation as the meter sees it. What began before its commence and is
// bounded until then waits for members that come late: its time begins with the commence.
type timing struct {
	ring  []wire.UUID // nil: the meter does not look at it
	self  wire.UUID
	state atomic.Int32 // untimed, timed, or over
}

const (
	untimed int32 = iota
	timed
	over
)

// time has the meter look at an operation in the ring, at once or when it is commenced.
func (s *Session) time(op *Operation, e fsm.StartData) {
	t := &op.timing
	t.ring, t.self = e.Ring, e.Self
	t.state.Store(untimed)
	if e.Ahead == 0 {
		s.commenced(op)
	}
}

// commenced begins the time of an operation that is not timed yet, and not over.
func (s *Session) commenced(op *Operation) {
	t := &op.timing
	if t.ring == nil || t.state.Load() != untimed {
		return
	}
	s.meter.started(t.ring, t.self, time.Now())
	if !t.state.CompareAndSwap(untimed, timed) {
		s.meter.ended(time.Now())
	}
}

// ended is called when the data phase of an operation has ended; ok if there is
// something to report.
func (m *meter) ended(now time.Time) (u fsm.LinkUsed, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.flying--; m.flying > 0 {
		return u, false
	}
	m.flying = 0
	bytes, busy := m.use(m.to)
	if bytes < m.bytes || busy < m.busy {
		return u, false // the connections are not the same
	}
	m.moved += bytes - m.bytes
	m.worked += busy - m.busy
	m.operated += now.Sub(m.began)
	if m.moved < leastReport || m.operated <= 0 || now.Sub(m.reported) < reportEvery {
		return u, false
	}
	u = fsm.LinkUsed{
		To: m.to, Mbps: float64(m.moved) * 8 / 1e6 / m.operated.Seconds(),
		Busy: min(1, m.worked.Seconds()/m.operated.Seconds()),
	}
	m.moved, m.worked, m.operated, m.reported = 0, 0, 0, now
	return u, true
}

// yields reports what the connections to distant peers gave, as often as a meter does:
// at the end of the data phase of an operation, in front of the word about that.
func (s *Session) yields(err error) {
	if err != nil || !s.View().MasterRates || !s.meter.yielded.due(time.Now()) {
		return
	}
	if r, ok := s.hub.TakeYield(leastReport); ok {
		s.meter.yielded.done(time.Now())
		s.box.post(fsm.RatesSeen{Rates: r})
	}
}

// often bounds how often something is reported.
type often struct{ last atomic.Int64 }

func (o *often) due(now time.Time) bool {
	last := o.last.Load()
	return last == 0 || now.UnixNano()-last >= int64(reportEvery)
}

func (o *often) done(now time.Time) { o.last.Store(now.UnixNano()) }
