package reduce

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/wire"
)

// OpState is what is known of an operation at one moment. Counts are bytes on
// the wire, without headers and metadata.
type OpState struct {
	Tag, Seq         uint64
	Eager            bool // it began before its commence, which has not come; Seq is its epoch
	Count            int
	DType            dtype.Type
	Op               dtype.Op
	Phase            string // "created", "running", "aborted", "ended" (its done function runs), "finished"
	Step, Steps      int    // received so far: step Step of Steps
	Received, Expect int64
	Sent, ToSend     int64 // Sent: handed to a connection
	InWrite          int   // frames that the system has not yet taken
	Reading          bool  // inside a frame
	Since            time.Duration
	Next, Prev       wire.UUID
	Err              error // why it was aborted
	// Waits says what the operation waits for, and names the role and the peer.
	Waits string
}

// State is what is known of an engine at one moment.
type State struct {
	Ops   []OpState        // by sequence number
	Conns []link.ConnState // by role, peer and number
	// Active operations were started and their done function has not returned.
	Active int
	// Early is how many readers hold a frame of an operation that has not started
	// here, and wait for that.
	Early int
}

// State describes everything that runs. It may be called at any time from any
// goroutine, and holds no operation up for longer than a look takes.
func (e *Engine) State() State {
	e.mu.Lock()
	st := State{Active: e.active, Early: e.early}
	uses := map[*link.Receiver]int{}
	for _, op := range e.ops {
		st.Ops = append(st.Ops, op.look(op.in.receiver))
		for _, r := range op.receivers() {
			uses[r]++
		}
	}
	e.mu.Unlock()
	st.Conns = e.hub.State(func(r *link.Receiver) int { return uses[r] })
	slices.SortFunc(st.Ops, func(a, b OpState) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Tag, b.Tag)) })
	return st
}

// State describes the operation, started or not.
func (op *Op) State() OpState {
	op.e.mu.Lock()
	rx := op.in.receiver
	op.e.mu.Unlock()
	return op.look(rx)
}

// look describes op; rx is its receive connection, nil if there is none yet.
func (op *Op) look(rx *link.Receiver) OpState {
	op.mu.Lock()
	defer op.mu.Unlock()
	st := OpState{
		Tag: op.spec.Tag, Count: op.spec.Count, DType: op.spec.DType, Op: op.spec.Op, Err: op.failErr,
		Phase: [...]string{opCreated: "created", opRunning: "running", opEnded: "ended", opFinished: "finished"}[op.state],
	}
	if op.state == opCreated || op.done == nil {
		return st // Start may be writing the rest
	}
	st.Eager = op.id.unnamed
	st.Seq, st.Next, st.Prev, st.Since = op.id.number, op.next, op.prev, time.Since(op.began)
	st.Received, st.Expect, st.Sent, st.ToSend = op.in.pos.Load(), op.in.total, op.out.pos, op.out.total
	st.InWrite, st.Reading = op.out.refs, len(op.in.readers) > 0
	st.Step, st.Steps = op.stepAt(st.Received), len(op.comes)
	if op.state == opRunning && op.failErr != nil {
		st.Phase = "aborted"
	}
	st.Waits = op.waitsFor(&st, rx)
	return st
}

// stepAt returns the step in which the receive stream has pos bytes. Constant
// fields alone are read.
func (op *Op) stepAt(pos int64) int {
	for step := range op.comes {
		_, count := op.chunk(step, false)
		if pos -= int64(op.encoded(count)); pos < 0 {
			return step
		}
	}
	return len(op.comes)
}

// waitsFor says what has to happen next. op.mu is held.
func (op *Op) waitsFor(st *OpState, rx *link.Receiver) string {
	switch {
	case st.Phase == "created" || st.Phase == "finished":
		return ""
	case st.Phase == "ended":
		return "done function: has not returned"
	case st.Phase == "aborted" && st.Reading:
		return fmt.Sprintf("reader from %s: lets go of the buffers", op.prev.Short())
	case st.Phase == "aborted":
		return fmt.Sprintf("sender to %s: lets go of the buffers", op.next.Short())
	}
	text := ""
	if op.id.unnamed {
		text = "votes of the other peers"
	}
	if !op.in.done.Load() {
		if text != "" {
			text += "; "
		}
		switch {
		case rx == nil:
			text += fmt.Sprintf("previous peer %s: has not connected", op.prev.Short())
		case st.Reading:
			text += fmt.Sprintf("reader from %s: inside a frame of step %d", op.prev.Short(), st.Step)
		default:
			text += fmt.Sprintf("previous peer %s: no frame of step %d has come", op.prev.Short(), st.Step)
		}
	}
	if !op.out.done.Load() {
		if text != "" {
			text += "; "
		}
		switch ready := op.out.first + st.Received - st.Sent; {
		case st.InWrite > 0:
			text += fmt.Sprintf("sender to %s: %d frames are being written", op.next.Short(), st.InWrite)
		case ready > 0 && op.spec.Quantizer == nil:
			text += fmt.Sprintf("sender to %s: has not taken %d ready bytes", op.next.Short(), ready)
		default:
			text += fmt.Sprintf("sender to %s: nothing is ready", op.next.Short())
		}
	}
	if op.dev != nil && op.dev.busy {
		if text != "" {
			text += "; "
		}
		text += op.dev.waitsFor()
	}
	return text
}
