package message

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/message/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// TransferState is what is known of a message at one end.
type TransferState struct {
	Sends bool
	Peer  wire.UUID // zero: any member, and none has offered
	Tag   uint64
	Bytes int
	Moved int // bytes received, or handed to a connection
	Since time.Duration
	// Waits says what it waits for, and names the peer.
	Waits string
}

// State is what an engine has under way.
type State struct {
	Transfers []TransferState // oldest first
	// Offers is how many messages have come that nobody receives here.
	Offers int
}

// State describes what is under way. It may be called at any time from any goroutine.
func (e *Engine) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	st, now := State{Offers: e.m.Offers()}, time.Now()
	for _, t := range e.m.Transfers() {
		st.Transfers = append(st.Transfers, t.Owner.(*Transfer).look(now))
	}
	slices.SortFunc(st.Transfers, func(a, b TransferState) int {
		return cmp.Or(cmp.Compare(b.Since, a.Since), cmp.Compare(a.Tag, b.Tag), slices.Compare(a.Peer[:], b.Peer[:]))
	})
	return st
}

// look describes a transfer that is not over. Engine.mu is held.
func (t *Transfer) look(now time.Time) TransferState {
	st := TransferState{
		Sends: t.Sends(), Peer: t.Peer(), Tag: t.Tag, Bytes: len(t.Buf), Moved: t.Moved(), Since: now.Sub(t.began),
	}
	peer, moving := "peer "+t.Peer().Short(), t.State() == fsm.Moving
	switch {
	case st.Sends && moving:
		st.Waits = peer + ": has not said that it has all"
		if st.Moved < st.Bytes || t.Busy() {
			st.Waits = fmt.Sprintf("sender to %s: has sent %d of %d bytes", t.Peer().Short(), st.Moved, st.Bytes)
		}
	case st.Sends:
		st.Waits = peer + ": does not receive it yet"
	case moving:
		st.Waits = peer + ": sends it"
	case t.Any():
		st.Waits = "any member: has sent nothing with this tag"
	default:
		st.Waits = peer + ": has sent nothing with this tag"
	}
	return st
}
