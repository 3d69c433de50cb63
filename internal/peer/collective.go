package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/reduce"
	"github.com/gopccl/gopccl/internal/wire"
)

// maxVain bounds the retries that change nothing.
const maxVain = 16

// Quantize, Reduce and ReduceInfo are those of core, and documented there.
type (
	Quantize struct {
		Algorithm string
		Type      dtype.Type
	}
	Reduce struct {
		Tag                  uint64
		Src, Dst             []byte
		DeviceSrc, DeviceDst device.Buffer
		DType                dtype.Type
		Op                   dtype.Op
		Quantize             Quantize
	}
	ReduceInfo struct {
		WorldSize        int
		TxBytes, RxBytes uint64
		Retries          int
		Done             []bool
	}
)

const opName = "all-reduce"

// operation is a launched all-reduce.
type operation struct {
	data    *reduce.Op
	world   int
	posted  time.Time
	info    ReduceInfo
	failed  bool
	err     error         // if it failed and the machine said why
	verdict chan struct{} // closed by Finish
	running bool          // between Start and the end of the data phase
}

func (s *Session) operation(id fsm.OpID) *operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ops[id]
}

func (s *Session) finish(e fsm.Finish) {
	s.mu.Lock()
	op := s.ops[e.Op]
	delete(s.ops, e.Op)
	s.mu.Unlock()
	if op == nil {
		return
	}
	tx, rx := op.data.Counters()
	op.data.Finish(e.Restore)
	op.info = ReduceInfo{WorldSize: op.world, TxBytes: tx, RxBytes: rx}
	op.failed, op.err = e.Restore, e.Err
	close(op.verdict)
}

// Handle is an all-reduce in flight.
type Handle struct {
	s      *Session
	id     fsm.OpID
	call   fsm.CallID // of the launch
	launch *call
	op     *operation
	once   sync.Once
	done   chan struct{} // made by once, closed when err is set
	asked  atomic.Uint64 // the call of Notify
	err    error
}

// Done is closed when the verdict is known and the buffers are the caller's again.
func (h *Handle) Done() <-chan struct{} { return h.op.verdict }

// Wait returns the verdict. After a failure, and if no other operation is
// un-awaited, it also takes part in the round that repairs the ring, so that
// the caller may retry at once; every peer must therefore wait for its
// operations in the same order. ctx ends only the waiting; a later Wait
// returns the same result.
func (h *Handle) Wait(ctx context.Context) (ReduceInfo, error) {
	h.begin()
	select {
	case <-h.done:
		return h.result()
	case <-ctx.Done():
		return ReduceInfo{}, errs.New(errs.Canceled, "all-reduce", ctx.Err()).WithPhase("waiting")
	}
}

func (h *Handle) begin() {
	h.once.Do(func() {
		h.done = make(chan struct{})
		go h.await(context.Background())
	})
}

// Notify calls f once, as soon as Wait returns without waiting: on a goroutine
// of the engine, or on the caller's if the verdict is known, with no lock held.
// It is for those who wait in a way of their own: f must not block, nor close
// the session, since what runs on that goroutine waits for it.
func (h *Handle) Notify(f func()) {
	first := false
	h.once.Do(func() {
		first = true
		h.done = make(chan struct{})
	})
	if first && h.taken() {
		h.s.ask(h, f)
		return
	}
	go func() {
		defer errs.Catch(opName, h.s.crash)
		if first {
			h.await(context.Background())
		}
		<-h.done
		f()
	}()
}

// Cancel aborts the operation for all peers unless this one is through with it,
// as the end of AllReduce's context does. Its verdict has to be awaited still: only then are the buffers the caller's.
func (h *Handle) Cancel() { h.s.box.post(fsm.CallCancel{Call: fsm.CallID(h.asked.Load()), Op: h.id}) }

// taken reports whether the machine has taken the operation.
func (h *Handle) taken() bool {
	select {
	case <-h.launch.done:
		return h.launch.err == nil
	default:
		return false
	}
}

// ask asks the machine for the verdict without waiting for it.
func (s *Session) ask(h *Handle, f func()) {
	id, c := fsm.CallID(s.ids.Add(1)), &call{done: make(chan struct{})}
	h.asked.Store(uint64(id))
	c.then = func() {
		if crash := s.crashed.Load(); crash != nil && c.err != nil {
			go func() {
				defer errs.Catch(opName, s.crash)
				<-h.op.verdict // the machine did not wait for it
				h.end(faulty(opName, crash))
				f()
			}()
			return
		}
		h.end(c.err)
		f()
	}
	s.mu.Lock()
	crash, left := s.crashed.Load(), s.left
	if crash == nil && !left {
		s.calls[id] = c
	}
	s.mu.Unlock()
	switch {
	case crash != nil:
		c.finish(crash)
	case left:
		c.finish(closed())
	default:
		s.handle(fsm.CallAwait{Call: id, Op: h.id})
	}
}

// await asks the machine for the verdict; the end of ctx aborts the operation.
func (h *Handle) await(ctx context.Context) {
	err := h.launched(ctx)
	if err == nil {
		_, err = h.s.call(ctx, opName, h.id, nil, func(id fsm.CallID) fsm.Event {
			return fsm.CallAwait{Call: id, Op: h.id}
		})
	}
	if h.s.crashed.Load() != nil {
		<-h.op.verdict // the machine did not wait for it
	}
	h.end(err)
}

// end makes err, or what came before the session's end, the result.
func (h *Handle) end(err error) {
	if errs.CodeOf(err) == errs.Closed {
		select {
		case <-h.op.verdict: // the session is over, but the verdict came before
			if !h.op.failed || h.op.err != nil {
				err = h.op.err
			}
		default:
		}
	}
	h.err = err
	close(h.done)
}

// launched waits until the machine has taken the operation, or refused it.
func (h *Handle) launched(ctx context.Context) error {
	select {
	case <-h.launch.done:
		return h.launch.err
	default:
	}
	h.s.hand()
	if h.s.box.free() {
		h.s.turn()
	}
	_, err := h.s.wait(ctx, opName, h.call, h.launch, h.id)
	return err
}

func (h *Handle) result() (ReduceInfo, error) {
	if h.err != nil {
		return ReduceInfo{}, h.err
	}
	return h.op.info, nil
}

// AllReduceAsync launches an all-reduce and returns at once. Any number may be
// in flight with distinct tags; with PCCL ends in the group at most 16 run at
// a time and the others follow in launch order.
func (s *Session) AllReduceAsync(ctx context.Context, r Reduce) (*Handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, errs.New(errs.Canceled, opName, err)
	}
	f, _, err := s.post(r)
	if err != nil {
		return nil, err
	}
	if err := f.handle.launched(ctx); err != nil {
		if s.crashed.Load() != nil {
			<-f.op.verdict // until then its buffers may be touched
		}
		return nil, err
	}
	return &f.handle, nil
}

// prepare checks r and returns all that its launch needs.
func (s *Session) prepare(r Reduce) (*flight, fsm.CallReduce, error) {
	none := fsm.CallReduce{}
	v := s.view.Load()
	if err := check(r, v); err != nil {
		return nil, none, errs.New(errs.InvalidArgument, opName, err)
	}
	q, err := quant.Lookup(r.Quantize.Algorithm)
	if err != nil {
		return nil, none, errs.New(errs.InvalidArgument, opName, err)
	}
	count, wireType := r.bytes()/r.DType.Size(), r.DType
	form := wire.FormOf("", r.DType)
	if q != nil {
		wireType = r.Quantize.Type
		if err := q.Check(r.DType, wireType, r.Op, count/max(2, v.LocalWorldSize), v.Native); err != nil {
			return nil, none, errs.New(errs.InvalidArgument, opName, err)
		}
	}
	if wireType != r.DType { // otherwise it travels as it is
		form = wire.FormOf(r.Quantize.Algorithm, wireType)
	}
	data, err := s.engine.NewOp(reduce.Spec{
		Tag: r.Tag, Count: count, DType: r.DType, Op: r.Op,
		Src: r.Src, Dst: r.Dst, DeviceSrc: r.DeviceSrc, DeviceDst: r.DeviceDst, Quantizer: q, WireType: wireType,
	})
	if err != nil {
		return nil, none, err
	}
	id, call := fsm.OpID(s.ids.Add(1)), fsm.CallID(s.ids.Add(1))
	f := &flight{op: operation{data: data, world: v.LocalWorldSize, posted: time.Now(), verdict: make(chan struct{})}}
	f.launch.done, f.launch.id, f.launch.op = make(chan struct{}), id, &f.op
	f.handle = Handle{s: s, id: id, call: call, launch: &f.launch, op: &f.op}
	return f, fsm.CallReduce{Call: call, Op: id, Tag: r.Tag, Count: uint64(count), DType: r.DType, RedOp: r.Op, Form: form}, nil
}

func (r *Reduce) bytes() int {
	if r.DeviceSrc.None() {
		return len(r.Src)
	}
	return r.DeviceSrc.Bytes
}

func where(b device.Buffer) string {
	if b.None() {
		return "host"
	}
	return b.Platform
}

// check refuses what must never reach a vote.
func check(r Reduce, v *fsm.View) error {
	switch {
	case !r.DType.Valid():
		return fmt.Errorf("unknown element type %d", uint8(r.DType))
	case !r.Op.Valid():
		return fmt.Errorf("unknown reduce operation %d", uint8(r.Op))
	case r.DeviceSrc.None() != r.DeviceDst.None():
		return fmt.Errorf("source (%s) and destination (%s) are not both on a device", where(r.DeviceSrc), where(r.DeviceDst))
	case !r.DeviceSrc.None() && len(r.Src)+len(r.Dst) > 0:
		return errors.New("buffers of host and device are both given")
	case len(r.Src) != len(r.Dst) || r.DeviceSrc.Bytes != r.DeviceDst.Bytes:
		return fmt.Errorf("source has %d bytes, destination %d", r.bytes(), len(r.Dst)+r.DeviceDst.Bytes)
	case r.bytes()%r.DType.Size() != 0:
		return fmt.Errorf("%d bytes are not a whole number of %v elements", r.bytes(), r.DType)
	case v.Connected && !v.Native && (r.DType == dtype.Float16 || r.DType == dtype.BFloat16):
		return fmt.Errorf("%v cannot be reduced with PCCL peers in the group: they exit on it (use float32)", r.DType)
	}
	return nil
}

// AllReduce reduces r over the group and blocks until the verdict. If ctx ends
// first, the operation is aborted for all peers and the buffers are restored. If
// it ends when this peer has reported already that it is through, the others may
// have the result: then the verdict is waited for, for as long as the slowest of
// them takes, and returned, be it success. The master drops who is silent, and its
// own silence ends the session, so that the wait has an end.
func (s *Session) AllReduce(ctx context.Context, r Reduce) (ReduceInfo, error) {
	h, err := s.AllReduceAsync(ctx, r)
	if err != nil {
		return ReduceInfo{}, err
	}
	return h.finishWait(ctx)
}

// AllReduceMultipleWithRetry reduces every r, at most maxInFlight at a time
// (default 16), and retries those that failed with the survivors until all are
// done. It returns errs.TooFewPeers when this peer is the last of its group,
// errs.Mismatch if peers pass different arguments, and errs.RankConnectionLost
// when operations fail 16 times in a row although nobody came or left. The sums of
// the counters are returned, and, with an error too, which operations are done
// (ReduceInfo.Done): in place, to reduce those again would count every
// contribution twice. What is not done is as before.
func (s *Session) AllReduceMultipleWithRetry(ctx context.Context, rs []Reduce, maxInFlight int) (ReduceInfo, error) {
	const name = "all-reduce multiple"
	if len(rs) == 0 {
		return ReduceInfo{}, errs.New(errs.InvalidArgument, name, errors.New("no operations"))
	}
	tags := make(map[uint64]bool, len(rs))
	for _, r := range rs {
		if tags[r.Tag] {
			return ReduceInfo{}, errs.New(errs.InvalidArgument, name, fmt.Errorf("tag %d is used twice", r.Tag))
		}
		tags[r.Tag] = true
	}
	if maxInFlight <= 0 {
		maxInFlight = maxWithPCCL
	}
	total := ReduceInfo{Done: make([]bool, len(rs))}
	left := make([]int, len(rs)) // what is not done, by place in rs
	for i := range left {
		left[i] = i
	}
	vain, ring := 0, s.View().Ring
	for len(left) > 0 {
		again, info, failure, err := s.reduceOnce(ctx, rs, left, maxInFlight, total.Done)
		total.TxBytes += info.TxBytes
		total.RxBytes += info.RxBytes
		total.Retries += info.Retries
		if info.WorldSize > 0 {
			total.WorldSize = info.WorldSize
		}
		if err != nil {
			return total, partly(err, name, total.Done)
		}
		// All peers see the same verdicts and rings, so they give up together.
		now := s.View().Ring
		if vain++; len(again) < len(left) || !sameMembers(ring, now) {
			vain, ring = 0, now
		}
		if vain == maxVain {
			err := errs.New(errs.RankConnectionLost, name,
				fmt.Errorf("failed %d times in a row although nobody came or left: %w", vain, failure)).
				WithHint("pass the same quantization on every peer and see the peers' logs")
			return total, partly(err, name, total.Done)
		}
		left = again
	}
	return total, nil
}

// partly adds to err how much is done.
func partly(err error, name string, done []bool) error {
	n := 0
	for _, yes := range done {
		if yes {
			n++
		}
	}
	if n == 0 {
		return err
	}
	return errs.New(errs.CodeOf(err), name, err).WithPhase(fmt.Sprintf("%d of %d operations are done", n, len(done)))
}

// sameMembers compares rings as sets.
func sameMembers(a, b []wire.UUID) bool {
	if len(a) != len(b) {
		return false
	}
	for _, u := range a {
		if !slices.Contains(b, u) {
			return false
		}
	}
	return true
}

// reduceOnce launches those of rs that left names, in order, awaits them in order
// and notes what is done. After the first failure nothing more is launched: every
// peer sees the same verdicts, so every peer retries the same operations, which
// again names. failure is the last one that may be retried.
func (s *Session) reduceOnce(ctx context.Context, rs []Reduce, left []int, maxInFlight int, done []bool) (again []int, info ReduceInfo, failure, fatal error) {
	handles := make([]*Handle, 0, len(left))
	failed := false
	for awaited := 0; ; awaited++ {
		for !failed && len(handles) < len(left) && len(handles)-awaited < maxInFlight {
			h, err := s.AllReduceAsync(ctx, rs[left[len(handles)]])
			if err != nil {
				fatal, failed = err, true
				break
			}
			handles = append(handles, h)
		}
		if awaited == len(handles) {
			break
		}
		i, err := handles[awaited].finishWait(ctx)
		if err == nil {
			done[left[awaited]] = true
			info.TxBytes += i.TxBytes
			info.RxBytes += i.RxBytes
			info.WorldSize = i.WorldSize
			continue
		}
		failed = true
		if s.retryable(err) {
			info.Retries++
			failure = err
			again = append(again, left[awaited])
		} else if fatal == nil {
			fatal = err
		}
	}
	return append(again, left[len(handles):]...), info, failure, fatal
}

// finishWait waits like AllReduce: the end of ctx aborts the operation.
func (h *Handle) finishWait(ctx context.Context) (ReduceInfo, error) {
	h.once.Do(func() {
		h.done = make(chan struct{})
		h.await(ctx)
	})
	<-h.done
	return h.result()
}

// retryable says that the operation failed because the ring changed, and that
// the session goes on.
func (s *Session) retryable(err error) bool {
	return errs.CodeOf(err) == errs.RankConnectionLost && s.View().Connected
}
