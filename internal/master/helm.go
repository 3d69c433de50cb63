package master

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/lead"
	"github.com/gopccl/gopccl/internal/master/fsm"
)

const (
	opRun = "run master"
	// standby is how long connections wait at the start where another master may lead, before
	// they are closed, and askLeader how often it is looked for. A peer whose master was killed
	// comes to the next one, which may lead, only after that.
	standby   = 100 * time.Millisecond
	askLeader = 10 * time.Millisecond
	// maxEarly bounds what an operator can say to a master that does not lead.
	maxEarly = 1024
)

// helm is what this master leads with: the authority says whether, and keeps what the
// next master has to know. A goroutine of its own asks it, since it may wait for a disk
// or for others.
type helm struct {
	authority lead.Authority // nil: this master leads
	lost      <-chan error   // of the lead; nil: never
	key       []byte         // is kept beside the registry
	leads     chan struct{}  // closed when the machine is there

	mu    sync.Mutex
	queue []fsm.Effect // what the machine has asked
	ready chan struct{}
}

// newAuthority returns what the options say, nil if one master leads for ever.
func newAuthority(o Options) lead.Authority {
	if o.State != "" {
		return lead.NewFile(o.State)
	}
	return o.Authority
}

// ask has the authority do e.
func (h *helm) ask(e fsm.Effect) {
	h.mu.Lock()
	h.queue = append(h.queue, e)
	h.mu.Unlock()
	select {
	case h.ready <- struct{}{}:
	default:
	}
}

func (h *helm) take() []fsm.Effect {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.queue
	h.queue = nil
	return q
}

// consult carries out what the machine asks of the authority, in order, until ctx ends.
// A master of which the next one would not know what it has decided, or which no longer
// leads, ends.
func (s *Server) consult(ctx context.Context) {
	for {
		select {
		case <-s.helm.ready:
		case <-ctx.Done():
			return
		}
		for _, e := range s.helm.take() {
			var answer fsm.Event
			var err error
			switch e := e.(type) {
			case fsm.Commit:
				kept := lead.Kept{Key: s.helm.key, Registry: e.Registry}
				answer, err = fsm.Committed{Number: e.Number}, s.helm.authority.Commit(ctx, kept.Encode())
			case fsm.Confirm:
				answer, err = fsm.Confirmed(e), s.helm.authority.Confirm(ctx)
			case fsm.Outdated:
				err = s.helm.outdated(e)
			}
			if err != nil {
				s.yield(err)
				return
			}
			if !s.post(ctx, answer, false) {
				return
			}
		}
	}
}

// raiser is an authority that can be told of a later term, which it did not know.
type raiser interface {
	Raise(term uint32) error
}

// outdated has the next master come after the one that a peer has followed, and says why
// this one has to end.
func (h *helm) outdated(e fsm.Outdated) error {
	err, hint := errors.New(e.Why), "bring the latest copy of what the masters keep"
	if r, can := h.authority.(raiser); can {
		if failed := r.Raise(e.Term); failed != nil {
			return failed
		}
		hint = "start it again: it will come after that one"
	}
	return errs.New(errs.NotLeading, opRun, err).WithHint(hint)
}

// handOver has it written how far the groups have come, when this master ends in good
// order.
func (s *Server) handOver() error {
	s.machine.mu.Lock()
	kept := lead.Kept{Key: s.helm.key, Registry: s.machine.fsm.Registry()}
	s.machine.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	return s.helm.authority.Commit(ctx, kept.Encode())
}

// yield makes Serve return err.
func (s *Server) yield(err error) {
	select {
	case s.fault <- notLeading(err):
	default:
	}
}

// notLeading says that this master has to end, and why.
func notLeading(cause error) error {
	var known *errs.Error
	if errors.As(cause, &known) {
		return cause
	}
	if cause == nil {
		cause = errors.New("it has lost the lead")
	}
	return errs.New(errs.NotLeading, opRun, cause).WithHint("another master leads now: start this one again, so that it can follow that one")
}

// embark returns when this master leads, and when it is to end.
func (s *Server) embark(ctx context.Context, failed <-chan error) error {
	if s.leads() {
		return nil
	}
	cfg := s.opt.machine(s.solver != nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	led := make(chan error, 1)
	s.run(func() { led <- s.takeLead(ctx, &cfg) })
	for {
		select {
		case err := <-led:
			if err != nil && ctx.Err() != nil {
				return nil // it was told to end
			}
			if err == nil {
				s.launch(cfg)
			}
			return err
		case ask := <-s.asks:
			ask <- Status{}
		case ev := <-s.says:
			if len(s.machine.early) < maxEarly {
				s.machine.early = append(s.machine.early, ev)
			}
		case err := <-failed:
			return err
		case err := <-s.fault:
			return err
		case <-ctx.Done():
			return nil
		case <-s.stop:
			return nil
		}
	}
}

// takeLead waits for the lead, and completes the configuration of the machine with what
// the master before has left.
func (s *Server) takeLead(ctx context.Context, cfg *fsm.Config) error {
	term, b, lost, err := s.helm.authority.Lead(ctx)
	if err != nil {
		return notLeading(err)
	}
	kept, err := lead.Decode(b)
	if err != nil {
		return errs.New(errs.CorruptFile, opRun, err).WithHint("restore what the master keeps from a copy, or begin without it")
	}
	if kept.Key == nil {
		// Before it is used: who is given a proof made with it will show that to the next.
		kept.Key = make([]byte, lead.KeySize)
		rand.Read(kept.Key)
		if err := s.helm.authority.Commit(ctx, kept.Encode()); err != nil {
			return notLeading(err)
		}
	}
	s.helm.lost, s.helm.key = lost, kept.Key
	cfg.Term, cfg.Authority, cfg.Registry, cfg.IdentityKey = term, true, kept.Registry, kept.Key
	s.log.Info("leads", "kind", "leads", "term", term, "groups", len(kept.Registry.Groups))
	return nil
}

// launch begins to serve with a machine.
func (s *Server) launch(cfg fsm.Config) {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	cfg.Revocations = s.door.guard.Listed()
	s.machine.fsm = fsm.New(cfg)
	close(s.helm.leads)
}

// leads reports whether this master has had the lead.
func (s *Server) leads() bool {
	select {
	case <-s.helm.leads:
		return true
	default:
		return false
	}
}

// awaitLead lets those who connect wait at the start. A master with a directory of its own has
// the lead when that is written, or ends: it takes as long as the disk does. Among several it
// is to be seen who leads.
func (s *Server) awaitLead(ctx context.Context) {
	var over, look <-chan time.Time
	if s.opt.State == "" {
		t, l := time.NewTimer(standby), time.NewTicker(askLeader)
		defer t.Stop()
		defer l.Stop()
		over, look = t.C, l.C
	}
	for {
		select {
		case <-s.helm.leads:
			return
		case <-over:
			return
		case <-ctx.Done():
			return
		case <-look:
			if s.leader().IsValid() {
				return
			}
		}
	}
}

// ownKey returns a key that a master with the same credential has, too; nil where there
// is none.
func (o *Options) ownKey() []byte {
	c := o.Security.Credential
	if c == nil && o.Security.On() && o.Security.File != "" {
		c, _ = secure.LoadCredential(o.Security.File, secure.LoadOptions{}) // the guard has read it
	}
	if c == nil {
		return nil
	}
	secret, err := x509.MarshalPKCS8PrivateKey(c.Signer())
	if err != nil {
		return nil // a key that does not leave its device
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "gopccl identity of sessions", lead.KeySize)
	if err != nil {
		return nil
	}
	return key
}
