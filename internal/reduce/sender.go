package reduce

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

const (
	// maxBatch is the most frames in one write.
	maxBatch = 64
	// inlineBytes: batches up to this size are copied together and written by
	// whoever made them ready, if the socket takes them at once.
	inlineBytes = 8 << 10
	// promptBytes: batches up to this size that belong to operations which move
	// no more than promptTotal are written by whoever made them ready, too: to
	// wake the sender costs them more than the reader's time.
	promptBytes = 256 << 10
	promptTotal = 1 << 20
	slotBytes   = transport.HeaderSize + stripeHead + 1 + wire.MaxMetaSize
)

// frame is one frame of a batch on its way to the kernel.
type frame struct {
	conn    *sender
	of      source // nil: opener, or its operation has failed and was let go
	head    []byte // header, in a metadata frame and an opener the payload as well
	payload []byte // the user's memory or the operation's wire buffer
	pad     int    // zeros in place of payload
	sent    int    // bytes written so far
	step    int
	off     int // of payload in its chunk, in wire bytes
	kind    frameKind
	ready   bool // prepared: payload holds what shall be sent
	prompt  bool // worth being written by whoever made it ready
	left    bool // what there is was left to faster connections
}

type frameKind uint8

const (
	dataFrame frameKind = iota
	pieceFrame
	metaFrame
	openerFrame
)

func (f *frame) size() int { return len(f.head) + len(f.payload) + f.pad }

// opener is a frame that makes a PCCL receiver look for aborts (quirk Q23), or,
// with pingStream as sequence number, a ping.
type opener struct{ tag, seq uint64 }

// sender is one connection to a peer. Whoever holds busy owns the batch and
// the right to write: the sender goroutine, or for a moment a reader.
type sender struct {
	e      *Engine
	peer   wire.UUID
	number uint32
	conn   net.Conn
	try    transport.TryWriter // nil: only the sender goroutine writes
	all    transport.VecWriter // nil: large batches wait for the sender goroutine
	link   Link
	broken atomic.Bool
	echo   chan uint64                     // what watch heard last
	gone   chan struct{}                   // closed by close
	thread atomic.Pointer[platform.Thread] // of a pinned sender that runs

	mu      invariants.Mutex
	bell    *bell
	sources []source
	openers []opener
	next    int    // whose turn it is
	busy    bool   // somebody owns the batch
	pending bool   // look for work again
	handoff bool   // the owner left the batch to the sender goroutine
	woken   bool   // the write deadline is in the past because of an abort
	cause   error  // why the connection ended
	yielded source // has something to send that was left to faster connections

	// Owned by the holder of busy.
	batch []frame
	slots [maxBatch][slotBytes]byte
	stage []byte
	vec   net.Buffers
	parts [][]byte
	ended []source
	gauge gauge
}

func newSender(e *Engine, peer wire.UUID, number uint32, conn net.Conn, link Link) *sender {
	s := &sender{
		e: e, peer: peer, number: number, conn: conn, link: link, try: transport.NonBlocking(conn),
		echo: make(chan uint64, 1), gone: make(chan struct{}),
		batch: make([]frame, 0, maxBatch), stage: make([]byte, 0, inlineBytes),
		parts: make([][]byte, 0, 3*maxBatch),
	}
	s.all, _ = s.try.(transport.VecWriter)
	s.bell = newBell(s)
	s.mu.Rank(rankConn, "sender.mu")
	return s
}

// close ends the connection; the operations that still need it fail.
func (s *sender) close(cause error) {
	s.mu.Lock()
	if s.cause != nil {
		s.mu.Unlock()
		return
	}
	s.cause = cause
	s.broken.Store(true)
	close(s.gone)
	s.conn.Close()
	s.bell.Broadcast()
	s.mu.Unlock()
	s.e.lostSender(s, cause)
}

// attach makes x one of those that s sends for, unless it failed meanwhile.
func (s *sender) attach(x source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !x.stopped() {
		s.sources = append(s.sources, x)
	}
}

// detach takes a source that has failed off, interrupts a write that refers to
// its memory, and sends an opener if nothing was sent.
func (s *sender) detach(x source) {
	s.mu.Lock()
	s.remove(x)
	o, open := x.openerFrame()
	for i := range s.batch {
		if s.batch[i].of == x {
			s.woken = true
			s.conn.SetWriteDeadline(past)
			break
		}
	}
	if open {
		s.openers = append(s.openers, o)
	}
	s.mu.Unlock()
	if open {
		s.kick(false, true)
	}
}

func (s *sender) remove(x source) {
	for i, o := range s.sources {
		if o == x {
			last := len(s.sources) - 1
			copy(s.sources[i:], s.sources[i+1:])
			s.sources[last] = nil
			s.sources = s.sources[:last]
			return
		}
	}
}

// kick says that there may be something to send. inline allows the caller to
// write small batches itself; async moves done functions to another goroutine.
func (s *sender) kick(inline, async bool) {
	s.mu.Lock()
	s.pending = true
	if s.busy || s.cause != nil {
		s.mu.Unlock()
		return
	}
	if !inline || s.try == nil {
		s.bell.Signal()
		s.mu.Unlock()
		return
	}
	s.busy = true
	s.mu.Unlock()
	s.work(true, async)
}

func (s *sender) run() {
	s.e.pin(senderThread, &s.thread)
	s.mu.Lock()
	for {
		for !s.handoff && (s.busy || !s.pending) && (s.cause == nil || s.busy) {
			s.bell.Wait()
		}
		if s.cause != nil && !s.handoff {
			s.mu.Unlock()
			return
		}
		s.handoff, s.busy = false, true
		s.mu.Unlock()
		s.work(false, false)
		s.mu.Lock()
	}
}

// work sends what is ready until nothing is, then gives up busy. An inline
// owner stops at the first thing that would take long and hands the batch over.
func (s *sender) work(inline, async bool) {
	for {
		if len(s.batch) == 0 {
			s.mu.Lock()
			s.pending = false
			s.gather()
			skipped := s.yielded
			s.yielded = nil
			if len(s.batch) == 0 {
				s.busy = false
				s.gauge.since = time.Time{}
				if s.cause != nil {
					s.bell.Broadcast()
				}
				s.mu.Unlock()
				if skipped != nil {
					skipped.rouseBest()
				}
				return
			}
			s.mu.Unlock()
			if skipped != nil {
				skipped.rouseBest()
			}
		}
		total := 0
		for i := range s.batch {
			total += s.batch[i].size() - s.batch[i].sent
		}
		small := total <= inlineBytes
		if inline && !small && !s.prompt(total) {
			if s.handOff() {
				return
			}
			inline = false
		}
		if !s.prepare() {
			s.retire(nil, async) // drops them
			continue
		}
		began := time.Now()
		n, err := s.write(inline, small)
		ended := time.Now()
		s.gauge.use.add(n, ended.Sub(began))
		if s.batch[0].kind == pieceFrame {
			s.observe(began, ended, n)
		}
		s.advance(n)
		if err == nil && inline && n < total {
			if s.handOff() {
				return
			}
			inline = false
		}
		s.retire(err, async)
	}
}

// prepare encodes what the batch carries. false: an operation has failed, and
// what was not begun of its frames must not be sent: they may be lacking.
func (s *sender) prepare() bool {
	whole := true
	for i := range s.batch {
		f := &s.batch[i]
		if f.of == nil {
			continue
		}
		if !f.ready && !f.of.stopped() {
			f.ready = true
			s.guard(f.of, f.of.prepare, f)
		}
		whole = whole && !f.of.stopped()
	}
	return whole
}

// prompt reports whether a batch of total bytes is to be written at once
// although it is too large to be copied together.
func (s *sender) prompt(total int) bool {
	if s.all == nil || total > promptBytes {
		return false
	}
	for i := range s.batch {
		if f := &s.batch[i]; f.pad > 0 || f.of != nil && !f.prompt {
			return false
		}
	}
	return true
}

// guard calls do; a panic of a kernel or a quantizer fails the operation.
func (s *sender) guard(x source, do func(*frame), f *frame) {
	defer errs.Catch(opName, func(err *errs.Error) { x.fail(s.e.caught(err, s.peer)) })
	do(f)
}

// handOff leaves the batch to the sender goroutine; false: the connection has ended,
// so that nothing waits any more, and no goroutine may begin that Close does not
// know of.
func (s *sender) handOff() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return false
	}
	s.handoff = true
	s.bell.Broadcast()
	return true
}

// gather fills the batch with what the operations have ready, one piece of
// each in turn. s.mu is held.
func (s *sender) gather() {
	bytes := 0
	if s.cause != nil {
		return
	}
	for len(s.openers) > 0 && len(s.batch) < maxBatch {
		o := s.openers[0]
		s.openers = s.openers[1:]
		f := s.slot()
		f.kind = openerFrame
		f.head = f.head[:transport.HeaderSize+1]
		f.head[transport.HeaderSize] = 0
		transport.Header{Payload: 1, Tag: o.tag, Stream: o.seq | 1<<63}.Put((*[transport.HeaderSize]byte)(f.head))
		if o.seq != pingStream {
			s.e.cfg.Stats.Openers.Add(1)
		}
	}
	for {
		found := false
		for i := 0; i < len(s.sources) && len(s.batch) < maxBatch && bytes < s.e.cfg.FrameBytes; i++ {
			if s.next++; s.next >= len(s.sources) {
				s.next = 0
			}
			f := s.slot()
			if x := s.sources[s.next]; !x.nextFrame(f, bytes) {
				if f.left {
					s.yielded = x
				}
				s.batch = s.batch[:len(s.batch)-1]
				continue
			}
			bytes += f.size()
			found = true
		}
		if !found {
			return
		}
	}
}

// slot appends an empty frame to the batch.
func (s *sender) slot() *frame {
	n := len(s.batch)
	s.batch = s.batch[:n+1]
	s.batch[n] = frame{conn: s, head: s.slots[n][:transport.HeaderSize]}
	return &s.batch[n]
}

// write hands the rest of the batch to the kernel and returns what it took.
func (s *sender) write(inline, small bool) (int, error) {
	s.e.cfg.Stats.Writes.Add(1)
	if small {
		s.stage = s.stage[:0]
		for i := range s.batch {
			f := &s.batch[i]
			head, payload, pad := f.rest()
			s.stage = append(append(s.stage, head...), payload...)
			s.stage = append(s.stage, s.e.zeros[:min(pad, len(s.e.zeros))]...)
			s.e.cfg.Stats.Copied.Add(uint64(len(payload)))
		}
		if inline {
			s.e.cfg.Stats.InlineWrites.Add(1)
			return s.try.TryWrite(s.stage)
		}
		return s.conn.Write(s.stage)
	}
	s.parts = s.parts[:0]
	for i := range s.batch {
		head, payload, pad := s.batch[i].rest()
		if len(head) > 0 {
			s.parts = append(s.parts, head)
		}
		if len(payload) > 0 {
			s.parts = append(s.parts, payload)
		}
		if pad > 0 {
			s.parts = append(s.parts, s.e.zeros[:min(pad, len(s.e.zeros))])
			if pad > len(s.e.zeros) {
				break // the frames behind it have to wait for the next round
			}
		}
	}
	defer s.letGo()
	if inline {
		s.e.cfg.Stats.InlineWrites.Add(1)
		return s.all.TryWriteAll(s.parts)
	}
	if s.all != nil {
		return s.all.WriteAll(s.parts)
	}
	s.vec = s.parts
	n, err := s.vec.WriteTo(s.conn)
	return int(n), err
}

// letGo keeps nothing of the callers' memory beyond a write.
func (s *sender) letGo() {
	clear(s.parts)
	s.vec = nil
}

// rest returns what of f is still to be sent.
func (f *frame) rest() (head, payload []byte, pad int) {
	sent := f.sent
	if sent < len(f.head) {
		return f.head[sent:], f.payload, f.pad
	}
	sent -= len(f.head)
	if sent < len(f.payload) {
		return nil, f.payload[sent:], f.pad
	}
	return nil, nil, f.pad - (sent - len(f.payload))
}

// advance notes that n more bytes of the batch are sent.
func (s *sender) advance(n int) {
	for i := range s.batch {
		f := &s.batch[i]
		d := min(n, f.size()-f.sent)
		f.sent += d
		if n -= d; n == 0 {
			return
		}
	}
}

// retire takes complete frames out of the batch and, after an abort or an
// error, lets go of what must not be touched any more.
func (s *sender) retire(err error, async bool) {
	switch {
	case err == nil:
	case !transport.IsTimeout(err):
		s.close(err)
	case !transport.Resumable(s.conn):
		s.close(errInterrupted)
	}
	for i := range s.batch {
		if f := &s.batch[i]; f.of != nil && f.sent == f.size() {
			s.guard(f.of, f.of.sentFrame, f)
		}
	}
	s.mu.Lock()
	if s.woken {
		s.woken = false
		s.conn.SetWriteDeadline(time.Time{})
	}
	kept := 0
	for i := range s.batch {
		f := &s.batch[i]
		full := f.sent == f.size()
		drop := full || s.cause != nil
		if full {
			s.e.cfg.Stats.TxFrames.Add(1)
			s.e.cfg.Stats.TxBytes.Add(uint64(f.size() - transport.HeaderSize))
		}
		if x := f.of; x != nil && (drop || x.stopped()) {
			s.release(x, f, full)
			f.of = nil
			if !drop && f.sent > 0 {
				f.pad, f.payload = f.size()-len(f.head), nil
				if f.kind == metaFrame {
					f.pad = 0 // its payload is our own memory
				}
				s.e.cfg.Stats.PaddedBytes.Add(uint64(f.size() - f.sent))
			}
			drop = drop || f.sent == 0
		}
		if !drop {
			s.keep(kept, i)
			kept++
		}
	}
	clear(s.batch[kept:])
	s.batch = s.batch[:kept]
	s.mu.Unlock()
	for i, x := range s.ended {
		x.settle(async)
		s.ended[i] = nil
	}
	s.ended = s.ended[:0]
}

// keep moves frame i to place k of the batch, its header with it.
func (s *sender) keep(k, i int) {
	if k == i {
		return
	}
	f := s.batch[i]
	s.slots[k] = s.slots[i]
	f.head = s.slots[k][:len(f.head)]
	s.batch[k] = f
}

// release gives one reference of the batch to x's memory back; whole says that
// the frame was sent. s.mu is held.
func (s *sender) release(x source, f *frame, whole bool) {
	idle, over := x.releaseFrame(f, whole)
	if over {
		s.remove(x)
	}
	if !idle {
		return
	}
	if x.stopped() {
		if o, due := x.openerFrame(); due {
			s.openers = append(s.openers, o)
		}
	}
	s.ended = append(s.ended, x)
}
