package message

import (
	"cmp"
	"fmt"
	"slices"
	"time"

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
	st, now := State{Offers: len(e.offers)}, time.Now()
	for _, t := range e.sends {
		st.Transfers = append(st.Transfers, t.look(now))
	}
	for _, t := range e.taken {
		st.Transfers = append(st.Transfers, t.look(now))
	}
	for _, t := range e.recvs {
		st.Transfers = append(st.Transfers, t.look(now))
	}
	slices.SortFunc(st.Transfers, func(a, b TransferState) int {
		return cmp.Or(cmp.Compare(b.Since, a.Since), cmp.Compare(a.Tag, b.Tag), slices.Compare(a.Peer[:], b.Peer[:]))
	})
	return st
}

// look describes a transfer that is not over. Engine.mu is held.
func (t *Transfer) look(now time.Time) TransferState {
	st := TransferState{Sends: t.sends, Peer: t.peer, Tag: t.tag, Bytes: len(t.buf), Since: now.Sub(t.began)}
	peer := "peer " + t.peer.Short()
	switch {
	case t.sends && t.out.taken:
		st.Moved = t.out.pos
		st.Waits = fmt.Sprintf("%s: has not said that it has all", peer)
		if t.out.pos < len(t.buf) || t.out.refs > 0 {
			st.Waits = fmt.Sprintf("sender to %s: has sent %d of %d bytes", t.peer.Short(), t.out.pos, len(t.buf))
		}
	case t.sends:
		st.Moved = t.ahead
		st.Waits = peer + ": does not receive it yet"
	case t.number > 0:
		st.Waits = peer + ": sends it"
		if t.reader == nil { // which writes got
			st.Moved = t.got
		}
	case t.any:
		st.Waits = "any member: has sent nothing with this tag"
	default:
		st.Waits = peer + ": has sent nothing with this tag"
	}
	return st
}
