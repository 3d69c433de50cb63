package link

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// A sender learns that its connection ended when the system tells it, which may
// be after the round that could have made a new one; and of a peer that vanished
// silently the system tells nothing. So gopccl peers ask: a ping is a frame of
// the stream pingStream, one payload byte long, whose tag comes back as eight
// bytes (docs/spec/extensions.md). Nothing else flows back on a send connection.
const (
	pingStream = ^uint64(0)
	echoBytes  = 8
	answerTime = 5 * time.Second
	pingBytes  = transport.HeaderSize + 1 // of the question itself
	// pulseBit marks the tag of a ping that wants no answer: a pulse, the word that more
	// connections of the pool will come, or that the other end is to tell what comes.
	pulseBit, growTag, tellTag = uint64(1) << 63, uint64(1)<<63 | 1, uint64(1)<<63 | 2
)

var errSilent = errors.New("the peer did not answer a ping of the connection")

// watch notices that the peer closed the connection, and hears its answers to pings and what
// it tells.
func (s *Sender) watch() {
	var p [echoBytes]byte
	for {
		if _, err := io.ReadFull(s.conn, p[:]); err != nil {
			s.close(err)
			return
		}
		if word := binary.BigEndian.Uint64(p[:]); word&toldBit != 0 {
			if word > tellTag { // else it answers a word of ours, which it does not know
				s.told(word)
			}
			continue
		}
		select {
		case <-s.echo:
		default:
		}
		select {
		case s.echo <- binary.BigEndian.Uint64(p[:]):
		default:
		}
	}
}

// answer sends the tag of a ping back, unless it is a pulse's.
func (r *Receiver) answer(tag uint64) error {
	var p [64]byte
	for r.rd.Left() > 0 {
		if _, err := r.rd.Payload(p[:min(r.rd.Left(), len(p))]); err != nil {
			return err
		}
	}
	if tag&pulseBit != 0 {
		switch tag {
		case growTag:
			r.h.expect(r.peer)
		case tellTag:
			r.tells.on = true
		}
		return nil
	}
	r.h.vouch(r.peer)
	binary.BigEndian.PutUint64(p[:], tag)
	// A peer that asks reads the answer; one that does not is not a neighbour, and
	// must not keep the reader. What else is written here is the reader's, too, and the
	// bound ends with the write.
	r.conn.SetWriteDeadline(time.Now().Add(answerTime))
	_, err := r.conn.Write(p[:echoBytes])
	r.conn.SetWriteDeadline(time.Time{})
	return err
}

// ask sends a ping and waits for its answer; false if ctx ended before.
func (s *Sender) ask(ctx context.Context) bool {
	nonce := rand.Uint64() &^ pulseBit
	before := s.gauge.use.bytes.Load()
	s.mu.Lock()
	s.openers = append(s.openers, Opener{nonce, pingStream})
	s.mu.Unlock()
	s.Kick(false, true)
	for {
		select {
		case got := <-s.echo:
			if got == nonce {
				return true
			}
		case <-s.gone:
			return true
		case <-ctx.Done():
			return s.gauge.use.bytes.Load() > before+pingBytes
		}
	}
}

// PingSenders asks on all connections to peer whether it is there, closes those
// without an answer at the deadline of ctx, and returns how many are not broken. Peers that
// answer no pings count as alive, and so do connections that took something of an
// operation after the question: the answer may be behind megabytes. If ctx is canceled
// before, nothing is known of them and none is closed: others may rely on them.
func (h *Hub) PingSenders(ctx context.Context, peer wire.UUID) int {
	silent := make(chan *Sender)
	asked := 0
	for _, s := range h.Senders(peer) {
		if !s.features.Flows || s.Broken() {
			continue
		}
		asked++
		go func() {
			defer errs.Catch(OpName, func(err *errs.Error) {
				s.close(h.Caught(err, peer))
				silent <- nil
			})
			if s.ask(ctx) {
				silent <- nil
			} else {
				silent <- s
			}
		}()
	}
	for range asked {
		if s := <-silent; s != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.close(errSilent)
		}
	}
	return h.LiveSenders(peer)
}
