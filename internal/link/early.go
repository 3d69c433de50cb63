package link

import (
	"errors"
	"io"
	"net"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// maxEarly bounds the memory that what came early from one neighbour takes:
	// of what the protocol allows it, 4 MiB, frames of any size take less.
	maxEarly = 8 << 20
	// maxEarlyStrange bounds that of all strangers together. They have no business
	// with it: a neighbour is known before it can begin anything.
	maxEarlyStrange = 1 << 20
	// Frames up to smallPart share memory of Go's; larger ones are read into
	// memory of the pool, at most largePart of it at a time, as their bytes come.
	smallPart = 4 << 10
	largePart = 64 << 10
	// What the books take, beside the bytes themselves.
	earlyCost = 256
	partCost  = 32
)

// Early is what came from one connection for a stream that has no sink yet: whole
// frames with their headers, one after another.
type Early struct {
	r       *Receiver
	key     earlyKey
	parts   [][]byte
	frames  int
	largest int // payload of a frame
	bytes   int // of all frames
	cost    int // memory that is reserved for it
}

// From returns the connection that brought the frames.
func (x *Early) From() *Receiver { return x.r }

// Head returns the first bytes of the payload of the first frame: all of a short one, and some
// hundred of others.
func (x *Early) Head() []byte { return x.parts[0][transport.HeaderSize:] }

// Bytes returns how much came.
func (x *Early) Bytes() int { return x.bytes }

type earlyKey struct {
	r           *Receiver
	tag, stream uint64
}

// kept is what a hub keeps of frames that came early. Guarded by Hub.mu.
type kept struct {
	early   map[earlyKey]*Early
	held    map[wire.UUID]int // memory that is reserved, by sender
	strange int               // of it, that of strangers
}

// EarlyUse is what a hub keeps of frames without a sink.
type EarlyUse struct {
	Bytes   int // of the frames, with their headers
	Memory  int // that is reserved for them and for those that are being read
	Strange int // of it, that of strangers
}

// Early returns what the hub keeps at this moment.
func (h *Hub) Early() EarlyUse {
	h.mu.Lock()
	defer h.mu.Unlock()
	u := EarlyUse{Strange: h.kept.strange}
	for _, x := range h.kept.early {
		u.Bytes += x.bytes
	}
	for _, n := range h.kept.held {
		u.Memory += n
	}
	return u
}

// reserve notes that cost bytes more are to be kept of what peer sends; false:
// that is too much. h.mu is held.
func (h *Hub) reserve(peer wire.UUID, cost int) bool {
	if h.kept.held[peer]+cost > maxEarly || !h.known[peer] && h.kept.strange+cost > maxEarlyStrange {
		return false
	}
	h.hold(peer, cost)
	return true
}

// hold adds d to what is kept of peer. h.mu is held.
func (h *Hub) hold(peer wire.UUID, d int) {
	if !h.known[peer] {
		h.kept.strange += d
	}
	if n := h.kept.held[peer] + d; n > 0 {
		h.kept.held[peer] = n
	} else {
		delete(h.kept.held, peer)
	}
}

// Keep adds a frame that was read to what came early on its connection.
func (h *Hub) Keep(frame *Early) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.kept.early[frame.key]
	switch {
	case frame.r.Closed(): // forgetEarly may have been here
		if x != nil {
			h.drop(x)
		}
		h.drop(frame)
		return
	case x == nil:
		h.kept.early[frame.key] = frame
		return
	}
	x.frames += frame.frames
	x.bytes += frame.bytes
	x.largest = max(x.largest, frame.largest)
	peer := frame.r.peer
	last := len(x.parts) - 1
	if frame.bytes > smallPart || frame.bytes > cap(x.parts[last])-len(x.parts[last]) && !h.widen(x, frame.bytes) {
		x.parts = append(x.parts, frame.parts...)
		x.cost += frame.cost - earlyCost
		h.hold(peer, -earlyCost)
		return
	}
	last = len(x.parts) - 1
	x.parts[last] = append(x.parts[last], frame.parts[0]...)
	h.hold(peer, -frame.cost)
}

// widen gives x room for a small frame and some that may follow; false: there is
// none. h.mu is held.
func (h *Hub) widen(x *Early, size int) bool {
	n := max(size, min(x.bytes, smallPart))
	if !h.reserve(x.r.peer, n+partCost) {
		return false
	}
	x.cost += n + partCost
	x.parts = append(x.parts, make([]byte, 0, n))
	return true
}

// TakeEarly returns what was kept of a stream, of each connection that has brought some
// of it, nil if there is nothing. The caller gives all of it to Replay.
func (h *Hub) TakeEarly(from wire.UUID, tag, stream uint64) (all []*Early) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kept.held[from] == 0 {
		return nil
	}
	for _, r := range h.rx[from] {
		k := earlyKey{r, tag, stream}
		if x := h.kept.early[k]; x != nil {
			delete(h.kept.early, k)
			all = append(all, x)
		}
	}
	return all
}

// DropEarly forgets what was kept of the streams that over tells. over is called with
// the hub's lock held.
func (h *Hub) DropEarly(over func(tag, stream uint64) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, x := range h.kept.early {
		if over(k.tag, k.stream) {
			h.drop(x)
		}
	}
}

// forgetEarly forgets what came early on a connection that is closed.
func (h *Hub) forgetEarly(r *Receiver) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kept.held[r.peer] == 0 {
		return
	}
	for _, x := range h.kept.early {
		if x.r == r {
			h.drop(x)
		}
	}
}

// drop forgets x. h.mu is held.
func (h *Hub) drop(x *Early) {
	delete(h.kept.early, x.key)
	h.stale(x.frames, x.bytes-x.frames*transport.HeaderSize)
	h.hold(x.r.peer, -x.cost)
	h.free(x)
}

// free gives the memory of x back.
func (h *Hub) free(x *Early) {
	for _, p := range x.parts {
		if cap(p) > smallPart {
			h.cfg.Pool.Put(p)
		}
	}
	x.parts = nil
}

func (h *Hub) stale(frames, bytes int) {
	h.cfg.Stats.StaleFrames.Add(uint64(frames))
	h.cfg.Stats.StaleBytes.Add(uint64(bytes))
}

// keep reads the frame whose header was read, which has no sink yet, and asks the
// router again: there may be one now.
func (r *Receiver) keep(h transport.Header) error {
	x, err := r.readEarly(h)
	if err != nil {
		return err
	}
	sink, verdict, err := r.h.router.Route(r, h, x)
	if verdict == Keep {
		return nil
	}
	if verdict != Deliver {
		sink = nil
	}
	if fault := r.h.Replay(x, sink); err == nil {
		err = fault
	}
	return err
}

// readEarly reads a frame into memory that was reserved before it was taken, and
// that is taken as the bytes come.
func (r *Receiver) readEarly(head transport.Header) (*Early, error) {
	h := r.h
	size := transport.HeaderSize + head.Payload
	x := &Early{r: r, key: earlyKey{r, head.Tag, head.Stream}, frames: 1, largest: head.Payload}
	fail := func(err error) (*Early, error) {
		h.mu.Lock()
		h.hold(r.peer, -x.cost)
		h.mu.Unlock()
		h.free(x)
		return nil, err
	}
	for x.bytes < size {
		n := min(size-x.bytes, max(x.bytes, smallPart), largePart)
		cost := n + partCost
		if n > smallPart {
			cost = buf.Size(n) + partCost
		}
		if x.bytes == 0 {
			cost += earlyCost
		}
		h.mu.Lock()
		ok := size <= maxEarly && h.reserve(r.peer, cost)
		h.mu.Unlock()
		if !ok {
			return fail(errs.New(errs.Protocol, OpName, errors.New("more data arrived for operations that are not launched yet than may be kept")).
				WithPhase(phase).WithPeer(r.peer.String()))
		}
		x.cost += cost
		var p []byte
		if n > smallPart {
			p = h.cfg.Pool.Get(n)
		} else {
			p = make([]byte, n)
		}
		x.parts = append(x.parts, p)
		if x.bytes == 0 {
			head.Put((*[transport.HeaderSize]byte)(p))
			p = p[transport.HeaderSize:]
		}
		for len(p) > 0 {
			n, err := r.rd.Payload(p)
			if err != nil {
				return fail(err)
			}
			p = p[n:]
		}
		x.bytes += n
	}
	return x, nil
}

// Replay gives the frames of x to a sink, on this goroutine, and their memory back.
// They are stale if to is nil. An error is a reason to close the connection that
// they came from; the sink has heard of it.
func (h *Hub) Replay(x *Early, to Sink) (err error) {
	q := &Receiver{h: h, peer: x.r.peer, ident: x.r.ident, conn: still{}}
	q.rd = transport.NewReader(&stored{parts: x.parts}, 0)
	if to != nil {
		q.makeRoom(x.largest)
	}
	frames, bytes := 0, 0
	for err == nil && to != nil && frames < x.frames && to.BeginReceive(q) {
		var head transport.Header
		if head, err = q.rd.Next(); err == nil {
			err = q.receive(to, head)
		}
		to.EndReceive(q)
		if err != nil {
			q.blame(to, err)
		}
		frames++
		bytes += head.Payload
	}
	h.cfg.Stats.RxFrames.Add(uint64(frames))
	h.cfg.Stats.RxBytes.Add(uint64(bytes))
	h.stale(x.frames-frames, x.bytes-x.frames*transport.HeaderSize-bytes)
	q.release()
	h.free(x)
	h.mu.Lock()
	h.hold(x.r.peer, -x.cost)
	h.mu.Unlock()
	q.flush()
	if errors.Is(err, ErrStopped) {
		return nil
	}
	return err
}

// stored reads the bytes of frames that were kept.
type stored struct {
	parts [][]byte
	read  int // of the first of them
}

func (m *stored) Read(p []byte) (int, error) {
	for len(m.parts) > 0 && m.read == len(m.parts[0]) {
		m.parts, m.read = m.parts[1:], 0
	}
	if len(m.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, m.parts[0][m.read:])
	m.read += n
	return n, nil
}

// still is the connection of a reader that reads memory: nothing interrupts it.
type still struct{ net.Conn }

func (still) SetReadDeadline(time.Time) error { return nil }
