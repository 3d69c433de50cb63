package link

import (
	"math"
	"net"
	"slices"
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
	// inlineBytes: batches up to this size are copied together and written by the
	// goroutine that made them ready, if the socket takes them at once.
	inlineBytes = 8 << 10
	// promptBytes: batches of prompt frames up to this size are written by the
	// goroutine that made them ready, too. A source whose stream is no longer than
	// PromptTotal calls its frames prompt: to wake the sender costs it more than the
	// reader's time.
	promptBytes = 256 << 10
	PromptTotal = 1 << 20
	// HeadBytes is the room of Frame.Head: a header, the name of a piece and metadata.
	HeadBytes = transport.HeaderSize + 17 + wire.MaxMetaSize
)

// Sender is one connection to a peer. The holder of busy owns the batch and the
// right to write: the sender's goroutine, or for a moment another one.
type Sender struct {
	h    *Hub
	peer wire.UUID
	ident
	conn     net.Conn
	try      transport.TryWriter // nil: only the sender's goroutine writes
	all      transport.VecWriter // nil: large batches wait for the sender's goroutine
	features Features
	broken   atomic.Bool
	echo     chan uint64                     // what watch heard last
	gone     chan struct{}                   // closed by close
	thread   atomic.Pointer[platform.Thread] // of a pinned sender that runs

	mu      invariants.Mutex
	bell    *bell
	sources []Source
	openers []Opener
	next    int   // whose turn it is
	busy    bool  // a goroutine owns the batch
	pending bool  // look for work again
	handoff bool  // the owner left the batch to the sender's goroutine
	woken   bool  // the write deadline is in the past because of an abort
	cause   error // why the connection ended
	untold  untold

	// Owned by the holder of busy.
	batch []Frame
	slots [maxBatch][HeadBytes]byte
	stage []byte
	vec   net.Buffers
	parts [][]byte
	ended []Source
	gauge gauge
}

// untold is what sources cannot be told while Sender.mu is held, which guards it.
type untold struct {
	yielded []Source // have something to send that is for other connections
	faults  []fault  // panics in calls that are made with the lock held
}

// fault is a panic of a source.
type fault struct {
	of  Source
	err *errs.Error
}

func newSender(h *Hub, peer wire.UUID, number uint32, conn net.Conn, features Features) *Sender {
	s := &Sender{
		h: h, peer: peer, ident: ident{number: number}, conn: conn, features: features, try: transport.NonBlocking(conn),
		echo: make(chan uint64, 1), gone: make(chan struct{}),
		batch: make([]Frame, 0, maxBatch), stage: make([]byte, 0, inlineBytes),
		parts: make([][]byte, 0, 3*maxBatch),
	}
	s.all, _ = s.try.(transport.VecWriter)
	s.gauge.flow = newFlow(conn)
	s.bell = newBell(s)
	s.mu.Rank(RankConn, "Sender.mu")
	return s
}

// Peer returns the peer that frames go to.
func (s *Sender) Peer() wire.UUID { return s.peer }

// ID names the connection among all that the hub has had; later ones have higher numbers.
func (s *Sender) ID() uint64 { return s.id }

// Features returns what the peer announced.
func (s *Sender) Features() Features { return s.features }

// Broken reports whether the connection has ended.
func (s *Sender) Broken() bool { return s.broken.Load() }

// why returns why the connection has ended.
func (s *Sender) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// close ends the connection; the router hears of it.
func (s *Sender) close(cause error) {
	s.mu.Lock()
	if s.cause != nil {
		s.mu.Unlock()
		return
	}
	cause = ending(cause)
	s.cause = cause
	s.broken.Store(true)
	close(s.gone)
	s.endVigil()
	s.conn.Close()
	s.bell.Broadcast()
	s.mu.Unlock()
	s.h.lost(s.peer, s.number, true, cause, func(cause error) { s.h.router.SenderLost(s, cause) })
}

// Attach makes x one of those that s sends for, if it is not, unless it failed meanwhile.
func (s *Sender) Attach(x Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !x.Stopped() && !slices.Contains(s.sources, x) {
		s.sources = append(s.sources, x)
	}
}

// Detach takes a source that has failed off, interrupts a write that refers to
// its memory, and sends an opener if nothing was sent.
func (s *Sender) Detach(x Source) {
	s.mu.Lock()
	s.remove(x)
	o, due := x.Opener()
	for i := range s.batch {
		if s.batch[i].of == x {
			s.woken = true
			s.conn.SetWriteDeadline(past)
			break
		}
	}
	if due {
		s.openers = append(s.openers, o)
	}
	s.mu.Unlock()
	if due {
		s.Kick(false, true)
	}
}

// Leave takes a source that is over off.
func (s *Sender) Leave(x Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(x)
}

func (s *Sender) remove(x Source) {
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

// Kick says that there may be something to send. inline allows the caller to
// write small batches itself; async settles what is over on another goroutine.
func (s *Sender) Kick(inline, async bool) {
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

// rouse kicks the connection if it is idle; false: a goroutine works on it, and will
// look for work before it stops.
func (s *Sender) rouse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy || s.pending || s.cause != nil {
		return false
	}
	s.pending = true
	s.bell.Signal()
	return true
}

func (s *Sender) run() {
	s.h.pin(senderThread, &s.thread)
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
func (s *Sender) work(inline, async bool) {
	for {
		if len(s.batch) == 0 {
			s.mu.Lock()
			s.pending = false
			s.gather()
			idle := len(s.batch) == 0
			keeps := idle && s.cause == nil && transport.Keeps(s.try)
			if idle && !keeps {
				s.busy = false
				s.gauge.since = time.Time{}
				if s.cause != nil {
					s.bell.Broadcast()
				}
			}
			s.afterwards()
			if idle && !keeps {
				return
			}
			if keeps {
				if inline && s.handOff() {
					return
				}
				inline = false
				s.flush()
				continue
			}
		}
		total := 0
		for i := range s.batch {
			total += s.batch[i].size() - s.batch[i].sent
		}
		small := total <= inlineBytes
		bounded := s.bounded(total)
		if inline && (bounded || !small && !s.prompt(total)) {
			if s.handOff() {
				return
			}
			inline = false
		}
		if !s.prepare() {
			s.retire(nil, async) // drops them
			continue
		}
		n, err := s.transmit(inline, small, bounded)
		if err == nil && inline && n < total {
			if s.handOff() {
				return
			}
			inline = false
		}
		s.retire(err, async)
	}
}

// afterwards lets go of s.mu, which is held, and tells sources what could not be told
// with it: from then on s may be another goroutine's.
func (s *Sender) afterwards() {
	var few [4]Source
	skipped, faults := append(few[:0], s.untold.yielded...), s.untold.faults
	clear(s.untold.yielded)
	s.untold.yielded, s.untold.faults = s.untold.yielded[:0], nil
	s.mu.Unlock()
	for _, x := range skipped {
		x.RouseBest()
	}
	for _, f := range faults {
		f.of.Fail(s.h.Caught(f.err, s.peer))
	}
}

// flush waits until the system has what the connection has taken.
func (s *Sender) flush() {
	if _, err := s.conn.Write(nil); err != nil && !transport.IsTimeout(err) {
		s.close(err)
	}
}

// transmit writes what the system takes of the batch, and takes the measure of it.
func (s *Sender) transmit(inline, small, bounded bool) (int, error) {
	began := time.Now()
	f := s.gauge.flow
	if f != nil && !s.pulses() {
		f.writing(s.h)
	}
	wrote, most := began, math.MaxInt
	if bounded {
		most = s.await()
		wrote = time.Now()
	}
	n, err := s.write(inline, small, most)
	if bounded && n < most {
		s.h.allowance.refund(most - n)
	}
	ended := time.Now()
	if !s.pulses() {
		s.gauge.use.add(n, ended.Sub(began))
		if f != nil {
			f.wrote(s.h, n, ended)
		}
	}
	if s.batch[0].Gauged {
		s.gauge.observe(wrote, ended, n) // of the connection alone: what bounds all says nothing of it
	}
	s.advance(n)
	return n, err
}

// prepare encodes what the batch carries. false: an operation has failed, and
// what was not begun of its frames must not be sent: they may be lacking.
func (s *Sender) prepare() bool {
	whole := true
	for i := range s.batch {
		f := &s.batch[i]
		if f.of == nil {
			continue
		}
		if !f.ready && !f.of.Stopped() {
			f.ready = true
			s.guard(f.of, f.of.PrepareFrame, f)
		}
		whole = whole && !f.of.Stopped()
	}
	return whole
}

// prompt reports whether a batch of total bytes is to be written at once
// although it is too large to be copied together.
func (s *Sender) prompt(total int) bool {
	if s.all == nil || total > promptBytes {
		return false
	}
	for i := range s.batch {
		if f := &s.batch[i]; f.pad > 0 || f.of != nil && !f.Prompt {
			return false
		}
	}
	return true
}

// guard calls do; a panic of a kernel or a quantizer fails the operation.
func (s *Sender) guard(x Source, do func(*Frame), f *Frame) {
	defer errs.Catch(OpName, func(err *errs.Error) { x.Fail(s.h.Caught(err, s.peer)) })
	do(f)
}

// handOff leaves the batch to the sender's goroutine; false: the connection has ended,
// so that nothing waits any more, and no goroutine may begin that Close does not
// know of.
func (s *Sender) handOff() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return false
	}
	s.handoff = true
	s.bell.Broadcast()
	return true
}

// gather fills the batch with what the sources have ready, one frame of each in
// turn. s.mu is held.
func (s *Sender) gather() {
	bytes := 0
	if s.cause != nil {
		return
	}
	for len(s.openers) > 0 && len(s.batch) < maxBatch {
		o := s.openers[0]
		s.openers = s.openers[1:]
		f := s.slot()
		f.Head = f.Head[:transport.HeaderSize+1]
		f.Head[transport.HeaderSize] = 0
		transport.Header{Payload: 1, Tag: o.Tag, Stream: o.Stream | OpenerBit}.Put((*[transport.HeaderSize]byte)(f.Head))
		f.pulse = o == pulse
		if o.Stream != pingStream {
			s.h.cfg.Stats.Openers.Add(1)
		}
	}
	for {
		found := false
		for i := 0; i < len(s.sources) && len(s.batch) < maxBatch && bytes < s.h.cfg.FrameBytes; i++ {
			if s.next++; s.next >= len(s.sources) {
				s.next = 0
			}
			x := s.sources[s.next]
			f := s.slot()
			taken := s.offer(x, f, bytes)
			if (f.Left || f.More) && !slices.Contains(s.untold.yielded, x) {
				s.untold.yielded = append(s.untold.yielded, x)
			}
			if !taken {
				s.batch = s.batch[:len(s.batch)-1]
				continue
			}
			f.of = x
			bytes += f.size()
			found = true
		}
		if !found {
			return
		}
	}
}

// offer lets x fill f. A panic takes x off, and fails it as soon as s.mu, which is
// held, is not.
func (s *Sender) offer(x Source, f *Frame, bytes int) (found bool) {
	defer errs.Catch(OpName, func(err *errs.Error) { s.noteFault(x, err) })
	return x.NextFrame(f, bytes)
}

// noteFault takes x off, which has panicked in a call that is made with s.mu held.
func (s *Sender) noteFault(x Source, err *errs.Error) {
	s.remove(x)
	s.untold.faults = append(s.untold.faults, fault{x, err})
}

// slot appends an empty frame to the batch.
func (s *Sender) slot() *Frame {
	n := len(s.batch)
	s.batch = s.batch[:n+1]
	s.batch[n] = Frame{conn: s, Head: s.slots[n][:transport.HeaderSize]}
	return &s.batch[n]
}

// write hands the rest of the batch to the system, but no more than most bytes, and returns
// how much it took.
func (s *Sender) write(inline, small bool, most int) (int, error) {
	if most == 0 {
		return 0, nil
	}
	s.h.cfg.Stats.Writes.Add(1)
	if small {
		s.stage = s.stage[:0]
		for i := range s.batch {
			f := &s.batch[i]
			head, payload, pad := f.rest()
			s.stage = append(append(s.stage, head...), payload...)
			s.stage = append(s.stage, s.h.zeros[:min(pad, len(s.h.zeros))]...)
			s.h.cfg.Stats.Copied.Add(uint64(len(payload)))
		}
		if inline {
			s.h.cfg.Stats.InlineWrites.Add(1)
			return s.try.TryWrite(s.stage)
		}
		return s.conn.Write(s.stage[:min(most, len(s.stage))])
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
			s.parts = append(s.parts, s.h.zeros[:min(pad, len(s.h.zeros))])
			if pad > len(s.h.zeros) {
				break // the frames behind it have to wait for the next round
			}
		}
	}
	if most < math.MaxInt {
		s.trim(most)
	}
	defer s.letGo()
	if inline {
		s.h.cfg.Stats.InlineWrites.Add(1)
		return s.all.TryWriteAll(s.parts)
	}
	if s.all != nil {
		return s.all.WriteAll(s.parts)
	}
	s.vec = s.parts
	n, err := s.vec.WriteTo(s.conn)
	return int(n), err
}

// trim leaves no more than most bytes of what is about to be written.
func (s *Sender) trim(most int) {
	for i, part := range s.parts {
		if len(part) >= most {
			s.parts[i] = part[:most]
			clear(s.parts[i+1:])
			s.parts = s.parts[:i+1]
			return
		}
		most -= len(part)
	}
}

// letGo keeps nothing of the callers' memory beyond a write.
func (s *Sender) letGo() {
	clear(s.parts)
	s.vec = nil
}

// advance notes that n more bytes of the batch are sent.
func (s *Sender) advance(n int) {
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
func (s *Sender) retire(err error, async bool) {
	switch {
	case err == nil:
	case !transport.IsTimeout(err):
		s.close(err)
	case !transport.Resumable(s.conn):
		s.close(errInterrupted)
	}
	for i := range s.batch {
		if f := &s.batch[i]; f.of != nil && f.sent == f.size() {
			s.guard(f.of, f.of.SentFrame, f)
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
			s.h.cfg.Stats.TxFrames.Add(1)
			s.h.cfg.Stats.TxBytes.Add(uint64(f.size() - transport.HeaderSize))
		}
		if x := f.of; x != nil && (drop || x.Stopped()) {
			s.release(x, f, full)
			f.of = nil
			if !drop && f.sent > 0 {
				f.pad, f.Payload = f.pad+len(f.Payload), nil
				s.h.cfg.Stats.PaddedBytes.Add(uint64(f.size() - f.sent))
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
	s.afterwards()
	for i, x := range s.ended {
		x.Settle(async)
		s.ended[i] = nil
	}
	s.ended = s.ended[:0]
}

// keep moves frame i to place k of the batch, its header with it.
func (s *Sender) keep(k, i int) {
	if k == i {
		return
	}
	f := s.batch[i]
	s.slots[k] = s.slots[i]
	f.Head = s.slots[k][:len(f.Head)]
	s.batch[k] = f
}

// release gives one reference of the batch to x's memory back; whole says that
// the frame was sent. s.mu is held.
func (s *Sender) release(x Source, f *Frame, whole bool) {
	defer errs.Catch(OpName, func(err *errs.Error) { s.noteFault(x, err) })
	idle, over := x.ReleaseFrame(f, whole)
	if over {
		s.remove(x)
	}
	if !idle {
		return
	}
	if x.Stopped() {
		if o, due := x.Opener(); due {
			s.openers = append(s.openers, o)
		}
	}
	s.ended = append(s.ended, x)
}
