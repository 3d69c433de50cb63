package collective

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// LaneState is what is known of one lane at one moment.
type LaneState struct {
	Peer    wire.UUID
	Sends   bool
	Bytes   int64 // read, or handed to a connection
	Total   int64
	InWrite int // frames that the system has not taken yet
	Waiting int // pieces that came before their turn
	Done    bool
}

// OperationState is what is known of an operation at one moment.
type OperationState struct {
	Kind     plan.Kind
	Root     int
	Tag, Seq uint64
	Eager    bool // it began before its commence, which has not come; Seq is its epoch
	Count    int  // elements of the own block, or of the one buffer
	DType    dtype.Type
	Op       dtype.Op
	Members  int
	Mesh     bool
	Phase    string // "created", "running", "aborted", "ended" (its done function runs), "finished"
	Reading  int    // connections inside a frame of it
	Lanes    []LaneState
	Since    time.Duration
	Err      error // why it was aborted
	// Waits says what the operation waits for, and names the role and the peer.
	Waits string
}

// State is what is known of an engine at one moment.
type State struct {
	Ops []OperationState // by sequence number
	// Active operations were started and their done function has not returned.
	Active int
	// Early is how many readers hold a frame of an operation that has not started here,
	// and wait for that.
	Early int
}

// State describes everything that runs. It may be called at any time from any goroutine,
// and holds no operation up for longer than a look takes.
func (e *Engine) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := State{Active: e.active, Early: e.early}
	for _, op := range e.ops {
		st.Ops = append(st.Ops, op.look())
	}
	slices.SortFunc(st.Ops, func(a, b OperationState) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Tag, b.Tag)) })
	return st
}

// State describes the operation, started or not.
func (op *Operation) State() OperationState {
	op.e.mu.Lock()
	defer op.e.mu.Unlock()
	return op.look()
}

// look describes op. Engine.mu is held.
func (op *Operation) look() OperationState {
	op.mu.Lock()
	defer op.mu.Unlock()
	st := OperationState{
		Kind: op.spec.Kind, Root: op.spec.Root, Tag: op.spec.Tag, Count: op.spec.Count(), DType: op.spec.DType, Op: op.spec.Op, Err: op.failErr,
		Phase: [...]string{created: "created", running: "running", ended: "ended", finished: "finished"}[op.state],
	}
	if op.state == created {
		return st // Start may be writing the rest
	}
	st.Eager, st.Seq, st.Since = op.id.unnamed, op.id.number, time.Since(op.began)
	st.Members, st.Mesh, st.Reading = op.n, op.mesh, len(op.readers)
	for _, l := range op.outs {
		st.Lanes = append(st.Lanes, LaneState{Peer: l.peer, Sends: true, Bytes: int64(l.bytes), Total: l.total, InWrite: l.refs, Done: l.done.Load()})
	}
	for _, l := range op.ins {
		done := l.received.Load() && l.missing == 0
		st.Lanes = append(st.Lanes, LaneState{Peer: l.peer, Bytes: int64(l.bytes), Total: l.total, Waiting: max(l.missing-l.coming, 0), Done: done})
	}
	if op.state == running && op.failErr != nil {
		st.Phase = "aborted"
	}
	st.Waits = op.waitsFor(&st)
	return st
}

// waitsFor says what has to happen next. Engine.mu and Operation.mu are held.
func (op *Operation) waitsFor(st *OperationState) string {
	switch {
	case st.Phase == "ended":
		return "done function: has not returned"
	case st.Phase == "finished":
		return ""
	case st.Phase == "aborted":
		return fmt.Sprintf("%d readers and %d frames: let go of the buffers", len(op.readers), op.refs)
	}
	var list []string
	if st.Eager {
		list = append(list, "votes of the other peers")
	}
	for _, l := range op.ins {
		switch {
		case l.received.Load():
		case l.from == nil:
			list = append(list, fmt.Sprintf("peer %s: has not connected", l.peer.Short()))
		default:
			list = append(list, fmt.Sprintf("peer %s: %d of %d bytes have come", l.peer.Short(), l.bytes, l.total))
		}
	}
	for _, l := range op.outs {
		switch {
		case l.done.Load():
		case l.refs > 0:
			list = append(list, fmt.Sprintf("sender to %s: %d frames are being written", l.peer.Short(), l.refs))
		case l.count > 0:
			list = append(list, fmt.Sprintf("sender to %s: has not taken %d pieces that are ready", l.peer.Short(), l.count))
		case l.spares != nil && len(l.spares.ready) > 0:
			list = append(list, fmt.Sprintf("sender to %s: has not taken %d spares", l.peer.Short(), len(l.spares.ready)))
		default:
			list = append(list, fmt.Sprintf("sender to %s: nothing is ready", l.peer.Short()))
		}
	}
	if op.copying {
		list = append(list, "own block: is being copied")
	}
	if op.dev != nil && op.dev.busy {
		list = append(list, op.dev.waitsFor())
	}
	return strings.Join(list, "; ")
}
