package reduce

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// watched is a platform that notes the order in which its stagings are called.
type watched struct {
	*card
	begin func() // called inside Begin
	stop  func() // called inside Stop
	asked func() // called inside Memory

	mu    sync.Mutex
	calls []string
}

func watch(t *testing.T) *watched {
	w := &watched{card: newCard(t, 64), begin: func() {}, stop: func() {}, asked: func() {}}
	t.Cleanup(device.Replace("card", w))
	return w
}

func (w *watched) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, what)
}

func (w *watched) heard() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.calls...)
}

func (w *watched) Stage(t device.Task) (device.Staging, error) {
	s, err := w.card.Stage(t)
	return &watchedStage{s, w}, err
}

type watchedStage struct {
	device.Staging
	w *watched
}

func (s *watchedStage) Memory() (src, dst []byte) {
	s.w.asked()
	return s.Staging.Memory()
}

func (s *watchedStage) Begin(r []device.Range, e device.Events) {
	s.w.note("begin")
	s.w.begin()
	s.Staging.Begin(r, e)
	s.w.note("begun")
}

func (s *watchedStage) Stop() {
	s.w.note("stop")
	s.Staging.Stop() // it may have ended when this call returns
	s.w.stop()
	s.w.note("stopped")
}

func (s *watchedStage) Release() {
	s.w.note("release")
	s.Staging.Release()
}

// startOnCard begins an operation of rank 0 alone.
func (r *ring) startOnCard(w *watched, seq uint64) (*Op, chan error) {
	specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 100, true)
	op, err := r.eng[0].NewOp(w.take(specs[:1])[0])
	require.NoError(r.t, err)
	done := make(chan error, 1)
	go op.Start(Start{Seq: seq, Ring: r.ids, Self: r.ids[0], Native: true, Done: func(err error) {
		op.Finish(true)
		done <- err
	}})
	return op, done
}

// The platform is called with no lock of the engine held, Stop behind Begin, and
// nothing is released while it is called.
func TestDeviceCallsKeepTheirOrder(t *testing.T) {
	w := watch(t)
	in, goOn := make(chan bool), make(chan bool)
	w.begin = func() { in <- true; <-goOn }
	w.stop = w.begin
	r := newRing(t, shape{n: 2, native: true, knows: true})
	op, done := r.startOnCard(w, 1)
	<-in
	// Begin is under way: the operation can be aborted and others go on.
	op.Abort(errTest)
	require.Equal(t, "aborted", op.State().Phase)
	require.Equal(t, []string{"begin"}, w.heard())
	other, err := r.eng[0].NewOp(bytesSpec(9, 1, 2))
	require.NoError(t, err)
	ended := make(chan error, 1)
	other.Start(Start{Seq: 2, Ring: r.ids, Self: r.ids[0], Native: true, Done: func(err error) { ended <- err }})
	other.Abort(errTest)
	require.Error(t, verdict(t, ended))
	goOn <- true
	<-in // Stop is
	require.Equal(t, []string{"begin", "begun", "stop"}, w.heard())
	require.Equal(t, "aborted", op.State().Phase)
	require.Empty(t, done)
	goOn <- true
	require.ErrorIs(t, verdict(t, done), errTest)
	require.Equal(t, []string{"begin", "begun", "stop", "stopped", "release"}, w.heard())
}

// Aborts that meet the start at any moment: Begin is not called for an operation
// that has ended, and Release is always the last call.
func TestAbortMeetsBegin(t *testing.T) {
	w := watch(t)
	r := newRing(t, shape{n: 2, native: true, knows: true})
	for k := range 2000 {
		w.calls = nil
		op, done := r.startOnCard(w, uint64(k+1))
		go op.Abort(errTest)
		require.ErrorIs(t, verdict(t, done), errTest)
		calls := w.heard()
		require.Contains(t, [][]string{
			{"release"}, {"begin", "begun", "release"}, {"begin", "begun", "stop", "stopped", "release"},
		}, calls)
	}
}

// The memory of an operation is asked for with no lock of it held.
func TestDeviceMemoryWithoutLocks(t *testing.T) {
	w := watch(t)
	ops, over := make(chan *Op, 1), make(chan bool, 1)
	w.asked = func() {
		_ = (<-ops).State()
		over <- true
	}
	r := newRing(t, shape{n: 2, native: true, knows: true})
	op, done := r.startOnCard(w, 1)
	ops <- op
	select {
	case <-over:
	case <-time.After(patience):
		t.Fatal("hangs")
	}
	op.Abort(errTest)
	require.ErrorIs(t, verdict(t, done), errTest)
}

// A panic of the platform fails the operation and nothing else.
func TestDevicePanicsAtTheStart(t *testing.T) {
	w := watch(t)
	w.begin = func() { panic("driver") }
	r := newRing(t, shape{n: 2, native: true, knows: true})
	_, done := r.startOnCard(w, 1)
	require.ErrorIs(t, verdict(t, done), errs.Internal)
	require.Equal(t, []string{"begin", "release"}, w.heard())
	w.begin, w.stop = func() {}, func() { panic("driver") }
	w.calls = nil
	op, done := r.startOnCard(w, 2)
	require.Eventually(t, func() bool { return len(w.heard()) == 2 }, patience, time.Millisecond)
	op.Abort(errTest)
	require.ErrorIs(t, verdict(t, done), errTest)
}

// An operation that cannot send touches no device.
func TestDeviceWithoutConnection(t *testing.T) {
	w := watch(t)
	r := newRing(t, shape{n: 2, native: true, knows: true})
	r.eng[0].hub.Retain(func(wire.UUID) bool { return false }, nil)
	_, done := r.startOnCard(w, 1)
	err := verdict(t, done)
	require.ErrorIs(t, err, errs.RankConnectionLost)
	require.ErrorContains(t, err, r.ids[1].String())
	require.Equal(t, []string{"release"}, w.heard())
}
