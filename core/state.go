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
	// Master is the address that Connect was given.
	Master string
	// Ops are all operations without a verdict, in launch order.
	Ops []OpState
	// Conns are the connections to the neighbours, by role, peer and number.
	Conns []ConnState
	// Active is how many operations are in their data phase, Early how many
	// readers hold data of an operation that was not launched here yet.
	Active, Early int
	// Calls is how many calls wait for an answer, Events how many events wait to
	// be handled.
	Calls, Events int
}

// OpState is an operation without a verdict. Sizes are bytes on the wire,
// without headers and metadata.
type OpState struct {
	Kind  string // "all-reduce" or "barrier"
	Tag   uint64
	Count int // elements
	DType dtype.Type
	Op    dtype.Op
	// Phase is "created" while the other peers have not voted, then "running",
	// "aborted", "ended" or "finished".
	Phase string
	// Posted is the time since the launch, Since the time since data last moved.
	Posted, Since time.Duration
	// Step of Steps ring steps were received.
	Step, Steps int
	// Received of Expect bytes have come; Sent of ToSend were handed to a connection.
	Received, Expect, Sent, ToSend int64
	// Next and Prev are the neighbours in the ring.
	Next, Prev UUID
	// Err is why the operation was aborted, nil if it was not.
	Err error
	// Waits says in words what the operation waits for, and names the peer.
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
}

func stateOf(in peer.State) State {
	st := State{
		Attributes: attributesOf(in.View), Master: in.Master, Calls: in.Calls, Events: in.Events,
		Active: in.Data.Active, Early: in.Data.Early,
	}
	for i := range in.Ops {
		o := &in.Ops[i]
		st.Ops = append(st.Ops, OpState{
			Kind: o.Kind, Tag: o.Tag, Count: o.Count, DType: o.DType, Op: o.Op, Phase: o.Phase, Posted: o.Posted, Since: o.Since,
			Step: o.Step, Steps: o.Steps, Received: o.Received, Expect: o.Expect, Sent: o.Sent, ToSend: o.ToSend,
			Next: UUID(o.Next), Prev: UUID(o.Prev), Err: o.Err, Waits: o.Waits,
		})
	}
	for i := range in.Data.Conns {
		c := &in.Data.Conns[i]
		st.Conns = append(st.Conns, ConnState{
			Role: c.Role, Peer: UUID(c.Peer), Number: c.Number, Ops: c.Ops, Busy: c.Busy, Closed: c.Closed, Cause: c.Cause,
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
