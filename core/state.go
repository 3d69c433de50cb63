package core

import (
	"io"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/peer"
)

// State is what is known of a communicator at one moment, for status pages and
// for finding out why a call hangs. All of it is the caller's. Fields may be added.
type State struct {
	// Attributes are those of the last round.
	Attributes Attributes
	// Names are those in the certificates of Attributes.Ring, "" of a peer without one; nil:
	// nobody has one.
	Names []string
	// Master is the address that Connect was given.
	Master string
	// Away is what is known while the communicator has no master, nil otherwise.
	// Reattached is how often a master has taken it back.
	Away       *AwayState
	Reattached uint64
	// Ops are all operations without a verdict, in launch order.
	Ops []OpState
	// Messages are those under way here, oldest first. Offers is how many have come that
	// nobody receives yet.
	Messages []MessageState
	Offers   int
	// Conns are the connections to the neighbours, by role, peer and number.
	Conns []ConnState
	// Active is how many operations are in their data phase, Early how many
	// readers hold data of an operation that was not launched here yet.
	Active, Early int
	// Calls is how many calls wait for an answer, Events how many events wait to
	// be handled.
	Calls, Events int
}

// AwayState is a communicator without a master.
type AwayState struct {
	// Since is how long it has had none.
	Since time.Duration
	// Trying is the master that is dialled, Err why the last try failed, or nil.
	Trying string
	Err    error
}

// OpState is an operation without a verdict. Sizes are bytes on the wire,
// without headers and metadata.
type OpState struct {
	Kind  string // "all-reduce", "barrier", or as "all-gather"
	Root  int    // of kinds that have one
	Tag   uint64
	Count int // elements; of kinds with blocks, of the own block
	DType dtype.Type
	Op    dtype.Op
	// Phase is "created" while the other peers have not voted, then "running",
	// "aborted", "ended" or "finished".
	Phase string
	// Posted is the time since the launch, Since the time since data last moved.
	Posted, Since time.Duration
	// Step of Steps ring steps of an all-reduce were received.
	Step, Steps int
	// Received of Expect bytes have come; Sent of ToSend were handed to a connection.
	Received, Expect, Sent, ToSend int64
	// Next and Prev are the neighbours in the ring, of an all-reduce.
	Next, Prev UUID
	// Lanes are what goes to each other member, and what comes, of other collectives in
	// their data phase.
	Lanes []LaneState
	// Err is why the operation was aborted, nil if it was not.
	Err error
	// Waits says in words what the operation waits for, and names the peer.
	Waits string
}

// LaneState is what goes to one member in a collective, or comes from it.
type LaneState struct {
	Peer  UUID
	Sends bool
	Bytes int64 // received, or handed to a connection
	Total int64
	Done  bool
}

// MessageState is a message under way, at this end.
type MessageState struct {
	Sends bool
	Peer  UUID // zero: any member, and none has sent
	Tag   uint64
	Bytes int           // of the whole message
	Moved int           // received, or handed to a connection
	Since time.Duration // since it was begun
	// Waits says in words what the message waits for, and names the peer.
	Waits string
}

// ConnState is one connection to a neighbour.
type ConnState struct {
	// Role is "sender" or "reader".
	Role string
	// Peer is the neighbour, Number that of the connection in its pool.
	Peer   UUID
	Number uint32
	// Ops is how many operations are attached to it; Busy says that a sender is
	// sending.
	Ops  int
	Busy bool
	// Closed says that the connection has ended; Cause is why, or nil.
	Closed bool
	Cause  error
	// RTT is the round trip time of a sender's connection, MinRTT the shortest of some
	// minutes, Resent how many bytes were sent again; zero: the system does not tell.
	// Rate is how many bytes per second it takes, 0 if no writer had to wait for it.
	// Congestion is the congestion control of the system, "" if it does not tell.
	// Bound is how many bytes per second all distant peers together are sent, because
	// more stood in a queue before this host's line; 0: nothing bounds them.
	RTT, MinRTT time.Duration
	Resent      uint64
	Rate        float64
	Congestion  string
	Bound       float64
}

func stateOf(in peer.State) State {
	st := State{
		Attributes: attributesOf(in.View), Master: in.Master, Calls: in.Calls, Events: in.Events,
		Active: in.Data.Active, Early: in.Data.Early, Offers: in.Offers,
	}
	st.Reattached = in.Reattached
	if in.Names != nil {
		st.Names = make([]string, len(in.View.Ring))
		for i, u := range in.View.Ring {
			st.Names[i] = in.Names[u]
		}
	}
	if a := in.Away; a != nil {
		st.Away = &AwayState{Since: time.Since(a.Since), Trying: a.Trying, Err: a.Err}
	}
	for i := range in.Messages {
		m := &in.Messages[i]
		st.Messages = append(st.Messages, MessageState{
			Sends: m.Sends, Peer: UUID(m.Peer), Tag: m.Tag, Bytes: m.Bytes, Moved: m.Moved, Since: m.Since, Waits: m.Waits,
		})
	}
	for i := range in.Ops {
		o := &in.Ops[i]
		var lanes []LaneState
		for _, l := range o.Lanes {
			lanes = append(lanes, LaneState{Peer: UUID(l.Peer), Sends: l.Sends, Bytes: l.Bytes, Total: l.Total, Done: l.Done})
		}
		st.Ops = append(st.Ops, OpState{
			Kind: o.Kind, Root: o.Root, Lanes: lanes, Tag: o.Tag, Count: o.Count, DType: o.DType, Op: o.Op, Phase: o.Phase, Posted: o.Posted, Since: o.Since,
			Step: o.Step, Steps: o.Steps, Received: o.Received, Expect: o.Expect, Sent: o.Sent, ToSend: o.ToSend,
			Next: UUID(o.Next), Prev: UUID(o.Prev), Err: o.Err, Waits: o.Waits,
		})
	}
	for i := range in.Data.Conns {
		c := &in.Data.Conns[i]
		st.Conns = append(st.Conns, ConnState{
			Role: c.Role, Peer: UUID(c.Peer), Number: c.Number, Ops: c.Ops, Busy: c.Busy, Closed: c.Closed, Cause: c.Cause,
			RTT: c.Path.RTT, MinRTT: c.Path.MinRTT, Resent: c.Path.Resent, Rate: c.Path.Rate, Congestion: c.Path.Congestion, Bound: c.Path.Bound,
		})
	}
	return st
}

// State describes the communicator with all its operations and connections as
// they are now. It never waits for a peer, so it works while a call hangs.
func (c *Communicator) State() State { return stateOf(c.s.State()) }

// States describes every communicator of this process that was not closed,
// oldest first.
func States() []State {
	var all []State
	for _, st := range peer.States() {
		all = append(all, stateOf(st))
	}
	return all
}

// DumpState writes every operation and connection of every communicator of this
// process as text, a few lines for each, and what each waits for. The error is w's.
func DumpState(w io.Writer) error { return peer.DumpState(w) }
