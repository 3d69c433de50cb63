package link

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// ConnState is what is known of a connection at one moment.
type ConnState struct {
	Role    string // "sender" or "reader"
	Peer    wire.UUID
	Number  uint32
	Native  bool // of a sender: to a gopccl peer
	Busy    bool // of a sender: something is being sent
	Ops     int  // operations that use it
	Closed  bool
	Cause   error
	Openers int  // of a sender: that wait to be sent
	Runs    bool // its goroutine was needed
	// Thread is the operating system thread of a pinned role that runs, with its
	// processors and its memory node.
	Thread *platform.Thread
	Path   PathState // of a sender
}

// PathState is what the system knows of the way of a connection; zero: nothing.
type PathState struct {
	RTT, MinRTT time.Duration // the round trip, and the shortest of some minutes
	Resent      uint64        // bytes that were sent again
	Rate        float64       // bytes per second, as writers that had to wait saw it; 0: none had to
	Congestion  string        // the congestion control; "": not known
	// Bound is what may be written to all distant peers together, in bytes per second, because
	// more stood in a queue before this host's line; 0: nothing bounds it.
	Bound float64
}

// path asks the system.
func (s *Sender) path() (p PathState) {
	if info, ok := platform.TCPInfo(s.conn); ok {
		p = PathState{RTT: info.RTT, MinRTT: info.MinRTT, Resent: info.Resent}
	}
	if v := s.gauge.rate.Load(); v != 0 {
		p.Rate = math.Float64frombits(v)
	}
	p.Congestion = platform.Congestion(s.conn)
	if s.Distant() {
		p.Bound = s.h.allowance.get()
	}
	return p
}

// State describes all connections in the pools, by role, peer and number. sinks says
// how many operations need a connection; it is called with no lock held. State holds
// no connection up for longer than a look takes.
func (h *Hub) State(sinks func(*Receiver) int) []ConnState {
	h.mu.Lock()
	var tx []*Sender
	for _, pool := range h.tx {
		tx = append(tx, pool...)
	}
	var rx []*Receiver
	for _, pool := range h.rx {
		rx = append(rx, pool...)
	}
	h.mu.Unlock()
	var all []ConnState
	for _, r := range rx {
		all = append(all, ConnState{
			Role: "reader", Peer: r.peer, Number: r.number, Ops: sinks(r), Closed: r.Closed(), Runs: true, Thread: r.thread.Load(),
		})
	}
	for _, s := range tx {
		path := s.path()
		s.mu.Lock()
		all = append(all, ConnState{
			Role: "sender", Peer: s.peer, Number: s.number, Native: s.features.Native, Busy: s.busy, Ops: len(s.sources),
			Closed: s.cause != nil, Cause: s.cause, Openers: len(s.openers),
			Runs: s.bell.started, Thread: s.thread.Load(), Path: path,
		})
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b ConnState) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), slices.Compare(a.Peer[:], b.Peer[:]), cmp.Compare(a.Number, b.Number))
	})
	return all
}
