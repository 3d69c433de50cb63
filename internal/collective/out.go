package collective

import (
	"encoding/binary"
	"slices"

	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// headBytes is the size of what precedes the data of a piece: u32 size of pieces, u32
// index, u64 bytes of the lane (docs/spec/extensions.md, "Pieces of collectives").
const headBytes = 16

// A piece's name and the metadata before its data fit in a frame's head.
const _ = uint(link.HeadBytes - (transport.HeaderSize + headBytes + 1 + wire.MaxMetaSize))

var _ link.Source = (*outLane)(nil)

// attach hands the lanes to the connections that send for them. Distant peers get a few pieces
// by turns: a sum is there when its parts have come from all, so the peer that is sent to last
// would hold up all that waits for its sum, while this host's line rests.
func (op *Operation) attach() {
	holds := slices.ContainsFunc(op.outs, func(l *outLane) bool { return l.held > 0 })
	op.hold(holds)
	for _, l := range op.outs {
		conns := l.flows.Conns()
		for _, s := range conns {
			s.Attach(l)
		}
		if l.held == 0 {
			l.wake(len(conns), nil)
		}
	}
	for more := holds; more; {
		more = false
		for _, l := range op.outs {
			more = l.letGo() || more
		}
	}
	op.mu.Lock()
	op.attached = true
	op.mu.Unlock()
	if op.hold(false); holds {
		for _, l := range op.outs {
			if l.spares != nil {
				l.kickPicked(true)
			}
		}
	}
}

// hold keeps spares back while other lanes have pieces that wait for their turn, or no longer.
func (op *Operation) hold(on bool) {
	op.mu.Lock()
	op.holds = on
	op.mu.Unlock()
}

// letGo lets the next of the pieces go that are held, if there is one; false: there was none.
func (l *outLane) letGo() bool {
	op := l.op
	op.mu.Lock()
	if l.held == 0 {
		op.mu.Unlock()
		return false
	}
	l.held--
	left := l.total - int64(l.bytes)
	op.mu.Unlock()
	if l.spares != nil {
		l.kickPicked(true)
	} else {
		l.flows.Kick(l.piece, left)
	}
	return true
}

// wake tells the connections of the lane that n more pieces are ready. r is the
// connection whose frame made them so: it goes on before it tells.
func (l *outLane) wake(n int, r *link.Receiver) {
	switch conns := l.flows.Conns(); {
	case n == 0 || len(conns) == 0:
	case len(conns) > 1:
		l.flows.Wake(n)
	case r != nil:
		r.Notify(conns[0])
	default:
		conns[0].Kick(true, true)
	}
}

func (l *outLane) Stopped() bool { return l.op.aborted.Load() }

func (l *outLane) Fail(err error) { l.op.fail(l.op.lost(l.peer, err)) }

func (l *outLane) Settle(async bool) { l.op.settle(async) }

func (l *outLane) RouseBest() {
	if l.spares == nil {
		l.flows.RouseBest()
		return
	}
	l.kickPicked(false)
}

// NextFrame takes the lowest piece that is ready. Of several connections, one that
// would hold the others up leaves it to them; for more than the first frame of a batch
// there has to be enough for all, since no other one can send what it has taken.
func (l *outLane) NextFrame(f *link.Frame, batch int) bool {
	op := l.op
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.failErr != nil || op.limited && l.credit < int64(l.piece)+link.HeadBytes {
		return false
	}
	if l.count <= l.held {
		return l.nextSpare(f)
	}
	if n := len(l.flows.Conns()); n > 1 {
		s := f.Conn()
		if l.spares == nil && batch > 0 && (l.count < 2*n || batch > s.AtOnce()) {
			return false
		}
		if l.spares != nil {
			f.Left = l.pickForPiece() != s
		} else {
			f.Left = l.flows.Yields(s, l.total-int64(l.bytes), l.piece)
		}
		if f.Left {
			return false
		}
		f.Gauged = true
	}
	p := l.at(l.segs, l.pop())
	f.More = l.flows.Took(f.Conn(), p.n) && l.count > l.held
	if seg := &l.segs[p.k]; op.quantized() {
		f.Step, f.Off = p.k, p.off
		f.Payload = op.code.wire[seg.code+p.off : seg.code+p.off+p.n]
	} else {
		f.Payload = op.bytesAt(seg.at, p.off, p.n)
		f.Prompt = l.total <= link.PromptTotal
	}
	var at spareRef
	if l.spares != nil {
		at = l.took(f, p)
		f.More = l.count > l.held || len(l.spares.ready) > 0
	}
	l.head(f, p.index, at, 0)
	if op.limited {
		l.credit -= int64(p.n) + link.HeadBytes
	}
	l.refs++
	op.refs++
	l.bytes += uint64(p.n)
	return true
}

func putHead(b []byte, piece, index int, total uint64) {
	binary.BigEndian.PutUint32(b, uint32(piece))
	binary.BigEndian.PutUint32(b[4:], uint32(index))
	binary.BigEndian.PutUint64(b[8:], total)
}

// SentFrame: what was sent is not needed any more.
func (l *outLane) SentFrame(*link.Frame) {}

func (l *outLane) ReleaseFrame(_ *link.Frame, whole bool) (idle, over bool) {
	op := l.op
	op.mu.Lock()
	defer op.mu.Unlock()
	l.refs--
	op.refs--
	l.short = l.short || !whole
	if l.refs > 0 {
		return false, false
	}
	if over = l.left == 0 && op.failErr == nil && !l.short; over && !l.done.Load() {
		l.done.Store(true)
		op.pending--
	}
	return true, over
}

// Opener: a peer that runs collectives hears of aborts from the master.
func (l *outLane) Opener() (link.Opener, bool) { return link.Opener{}, false }
