package peer

import "github.com/gopccl/gopccl/internal/peer/fsm"

// Launch is AllReduceAsync for those who wait in a way of their own: it gives
// the session a turn on the caller's goroutine and returns also if the launch
// has to wait, as it does while work goes on that nobody waits for (an operation
// that was given up, a round that repairs the ring). Handle.Taken tells when the
// session has decided; what it would have refused, Refused and Wait return.
// Errors: errs.InvalidArgument for what can never work, errs.Closed.
func (s *Session) Launch(r Reduce) (*Handle, error) {
	f, _, err := s.post(r)
	if err != nil {
		return nil, err
	}
	f.handle.push()
	return &f.handle, nil
}

// push has what was posted picked up now, here if the machine is free.
func (h *Handle) push() {
	h.s.hand()
	if h.s.box.free() {
		h.s.turn()
	}
}

// Taken is closed when the session has taken the operation, or refused it, or
// has ended. It is for handles of Launch and Post.
func (h *Handle) Taken() <-chan struct{} { return h.launch.done }

// Refused says why the session did not take the operation, nil if it did; to be
// called behind Taken. It returns when the buffers are the caller's again.
func (h *Handle) Refused() error {
	<-h.launch.done
	if err := h.launch.err; err != nil {
		if crash := h.s.crashed.Load(); crash != nil {
			<-h.op.verdict // until then its buffers may be touched
			return faulty(opName, crash)
		}
		return err
	}
	return nil
}

// Withdraw takes a launch back that the session has not taken yet: Refused then
// returns errs.Canceled. It has no effect on an operation that was taken, which
// goes on.
func (h *Handle) Withdraw() { h.s.box.post(fsm.CallCancel{Call: h.call}) }
