package peer

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gopccl/gopccl/internal/collective"
	"github.com/gopccl/gopccl/internal/message"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/reduce"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// State is what is known of a session at one moment.
type State struct {
	View   fsm.View
	Names  map[wire.UUID]string // of members, in their certificates; nil: nobody has one
	Master string
	// Away is what is known while there is no master, nil otherwise; Reattached is how
	// often one has taken this peer back.
	Away       *Away
	Reattached uint64
	// Ops are all operations without a verdict, in launch order; those in phase
	// "created" wait for the votes of the other peers.
	Ops []OpState
	// Data is the state of the data path. Active and Early are those of all collectives.
	Data reduce.State
	// Messages are those under way, oldest first; Offers is how many have come that nobody
	// receives here.
	Messages []message.TransferState
	Offers   int
	// Calls is how many calls wait for an answer, Events how many events wait
	// to be handled.
	Calls, Events int
}

// OpState is an operation without a verdict.
type OpState struct {
	reduce.OpState
	Kind   string // of the collective
	Root   int    // of kinds that have one
	Lanes  []collective.LaneState
	Posted time.Duration // since it was launched
}

// State describes the session; it may be called from any goroutine at any
// time, also while a call hangs.
func (s *Session) State() State {
	var ops []*Operation
	s.mu.Lock()
	for _, op := range s.ops {
		ops = append(ops, op)
	}
	calls := len(s.calls) + len(s.opCalls)
	s.mu.Unlock()
	s.posts.mu.Lock()
	ops = append(ops, s.posts.queue...)
	s.posts.mu.Unlock()
	s.box.mu.Lock()
	events := len(s.box.queue)
	s.box.mu.Unlock()
	slices.SortFunc(ops, func(a, b *Operation) int { return cmp.Compare(a.id, b.id) })
	st := State{View: s.View(), Names: s.names.told(), Master: s.opt.Master, Data: s.engine.State(), Calls: calls, Events: events}
	moving := s.blocks.State()
	st.Data.Active, st.Data.Early = st.Data.Active+moving.Active, st.Data.Early+moving.Early
	posted := s.posted.State()
	st.Messages, st.Offers = posted.Transfers, posted.Offers
	st.Away, st.Reattached = s.master.away.Load(), s.master.again.Load()
	for _, op := range ops {
		o := OpState{OpState: op.phase().State(), Kind: op.name(), Root: int(op.event.Vote.Root), Posted: time.Since(op.posted)}
		if b, ok := op.phase().(blocks); ok {
			o.Lanes = b.Operation.State().Lanes
		}
		if o.Phase == "created" {
			o.Waits = "votes of the other peers, through the master"
			if st.Away != nil {
				o.Waits = st.Away.String()
			}
		}
		o.Waits, o.Err = s.names.sentence(o.Waits), s.names.named(o.Err)
		st.Ops = append(st.Ops, o)
	}
	for i := range st.Messages {
		st.Messages[i].Waits = s.names.sentence(st.Messages[i].Waits)
	}
	for i := range st.Data.Conns {
		st.Data.Conns[i].Cause = s.names.named(st.Data.Conns[i].Cause)
	}
	return st
}

// call returns what a peer is called.
func (st *State) call(u wire.UUID) string {
	if name := st.Names[u]; name != "" {
		return calledBy(name, u.Short())
	}
	return u.Short()
}

// registry knows every session of the process that was not closed.
type registry struct {
	mu       sync.Mutex
	sessions []*Session // oldest first
	stop     chan struct{}
	ended    chan struct{} // closed by the watchdog
}

var live registry

// add registers s and starts the watchdog with the first session.
func (r *registry) add(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions = append(r.sessions, s); len(r.sessions) == 1 {
		r.stop, r.ended = make(chan struct{}), make(chan struct{})
		go r.watch(r.stop, r.ended)
	}
}

// remove forgets s; the watchdog ends with the last session.
func (r *registry) remove(s *Session) {
	r.mu.Lock()
	r.sessions = slices.DeleteFunc(r.sessions, func(o *Session) bool { return o == s })
	last, stop, ended := len(r.sessions) == 0, r.stop, r.ended
	r.mu.Unlock()
	if last {
		close(stop)
		<-ended
	}
}

// all returns the sessions, oldest first.
func (r *registry) all() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sessions)
}

// States describes every session of this process that was not closed, oldest
// first.
func States() []State {
	var all []State
	for _, s := range live.all() {
		all = append(all, s.State())
	}
	return all
}

// DumpState writes every operation, connection and role of every session of
// this process as text, a few lines for each. The error is w's.
func DumpState(w io.Writer) error {
	b := bufio.NewWriter(w)
	all := States()
	fmt.Fprintf(b, "gopccl: %d communicators\n", len(all))
	for i := range all {
		all[i].write(b)
	}
	return b.Flush()
}

func (st *State) write(b *bufio.Writer) {
	v := &st.View
	status := "connected"
	if !v.Connected {
		status = "not connected"
	}
	fmt.Fprintf(b, "communicator %s: %s to the master %s, rank %d of %d", v.UUID, status, st.Master, v.Rank, v.LocalWorldSize)
	fmt.Fprintf(b, ", %d operations, %d in the data phase, %d calls wait, %d events wait, %d frames wait for their operation\n",
		len(st.Ops), st.Data.Active, st.Calls, st.Events, st.Data.Early)
	if st.Away != nil {
		fmt.Fprintf(b, "  %v\n", st.Away)
	}
	for i := range st.Ops {
		st.Ops[i].write(b)
	}
	st.writeMessages(b)
	for i := range st.Data.Conns {
		c := &st.Data.Conns[i]
		fmt.Fprintf(b, "  %s, peer %s, connection %d: %d operations", c.Role, st.call(c.Peer), c.Number, c.Ops)
		if c.Busy {
			fmt.Fprint(b, ", sends")
		}
		if !c.Runs {
			fmt.Fprint(b, ", was not needed yet")
		}
		if w := c.Path; w.RTT > 0 {
			fmt.Fprintf(b, ", round trip %v, shortest %v, %d bytes sent again", w.RTT.Round(time.Microsecond), w.MinRTT.Round(time.Microsecond), w.Resent)
		}
		if c.Path.Rate > 0 {
			fmt.Fprintf(b, ", %.1f Mbit/s", 8e-6*c.Path.Rate)
		}
		if c.Path.Congestion != "" {
			fmt.Fprintf(b, ", %s", c.Path.Congestion)
		}
		if c.Path.Bound > 0 {
			fmt.Fprintf(b, ", all distant peers together %.1f Mbit/s", 8e-6*c.Path.Bound)
		}
		if t := c.Thread; t != nil {
			fmt.Fprintf(b, ", thread %d %q on processors %s, memory node %d", t.ID, t.Name, platform.FormatCPUs(t.CPUs), t.Node)
		}
		if c.Closed {
			fmt.Fprint(b, ", closed")
		}
		if c.Cause != nil {
			fmt.Fprintf(b, ": %v", c.Cause)
		}
		fmt.Fprintln(b)
	}
}

func (o *OpState) write(b *bufio.Writer) {
	ago := o.Posted.Round(time.Microsecond)
	switch o.Kind {
	case plan.Barrier.String():
		fmt.Fprintf(b, "  barrier, posted %v ago", ago)
	case plan.AllReduce.String():
		fmt.Fprintf(b, "  operation tag %d: %s of %d %v, posted %v ago, %s", o.Tag, o.Op, o.Count, o.DType, ago, o.Phase)
	default:
		fmt.Fprintf(b, "  operation tag %d: %s", o.Tag, o.describe())
		fmt.Fprintf(b, " of %d %v, posted %v ago, %s", o.Count, o.DType, ago, o.Phase)
	}
	if o.Steps > 0 || o.Lanes != nil {
		name := "sequence"
		if o.Eager {
			name = "not commenced, epoch"
		}
		fmt.Fprintf(b, ", %s %d", name, o.Seq)
		if o.Steps > 0 {
			fmt.Fprintf(b, ", step %d of %d", o.Step, o.Steps)
		}
		fmt.Fprintf(b, ", received %d of %d bytes, sent %d of %d", o.Received, o.Expect, o.Sent, o.ToSend)
	}
	if o.Waits != "" {
		fmt.Fprintf(b, ", waits for: %s", o.Waits)
	}
	if o.Err != nil {
		fmt.Fprintf(b, ", error: %v", o.Err)
	}
	fmt.Fprintln(b)
}

// describe says what a collective other than all-reduce does.
func (o *OpState) describe() string {
	switch o.Kind {
	case plan.ReduceScatter.String():
		return fmt.Sprintf("%s (%s)", o.Kind, o.Op)
	case plan.Reduce.String():
		return fmt.Sprintf("%s (%s), root %d,", o.Kind, o.Op, o.Root)
	case plan.AllGather.String(), plan.AllToAll.String():
		return o.Kind
	}
	return fmt.Sprintf("%s, root %d,", o.Kind, o.Root)
}

func (st *State) writeMessages(b *bufio.Writer) {
	for i := range st.Messages {
		m := &st.Messages[i]
		what, end := "receive", st.call(m.Peer)
		if m.Sends {
			what = "send"
		}
		if m.Peer == (wire.UUID{}) {
			end = "any member"
		}
		fmt.Fprintf(b, "  message tag %d: %s of %d bytes, %s, since %v, waits for: %s\n", m.Tag, what, m.Bytes, end, m.Since.Round(time.Microsecond), m.Waits)
	}
	if st.Offers > 0 {
		fmt.Fprintf(b, "  %d messages have come that nobody receives\n", st.Offers)
	}
}
