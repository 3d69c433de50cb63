package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/enroll"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// Server is a master. Its methods are safe for concurrent use.
type Server struct {
	opt    Options
	solver topo.Solver
	log    *slog.Logger
	lines  *trace.Lines // what waits for the log's handler
	facts  *trace.Queue // ... and for OnFact

	begun atomic.Bool
	addr  atomic.Pointer[net.Addr]
	kick  chan struct{} // the loop's timer is to be armed anew
	asks  chan chan Status
	says  chan fsm.Event // of an operator
	stop  chan struct{}  // closed by Close
	once  sync.Once
	ended chan struct{} // closed when Serve returns
	fault chan error    // a panic; Serve returns it

	start   time.Time
	waiting atomic.Int32 // goroutines that want the machine

	machine machine
	live    crowd
	members budget // of clients that were let in
	others  budget // of all other connections
	refused refusals
	door    door
	helm    helm
	press   press
	wg      sync.WaitGroup
}

// door is what a connection has to pass before its first packet is read.
type door struct {
	guard   *guard.Guard // nil: in plaintext
	pccl    net.Listener // where PCCL peers come, in plaintext; nil: where all others do
	lastID  atomic.Uint64
	desk    *enroll.Desk // nil: nobody joins with a token
	strange guard.Complaints
}

// machine is the state machine, and what its steps need.
type machine struct {
	mu        sync.Mutex   // guards all of it
	fsm       *fsm.Machine // nil: this master does not lead yet
	early     []fsm.Event  // of an operator, that have to wait for it
	conns     map[fsm.ClientID]*conn
	dirty     []*conn                       // have something to send
	held      int                           // events since the last flush
	armed     time.Duration                 // when the loop's timer goes off
	over      bool                          // no step any more
	searches  map[uint64]context.CancelFunc // solver jobs in the background
	plannings map[uint32]*planning          // by group
}

// crowd is every connection that is open.
type crowd struct {
	mu    sync.Mutex // guards conns
	conns map[*conn]struct{}
}

func (c *crowd) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns)
}

// budget is the memory that connections of one standing may take together.
type budget struct {
	queued ledger    // bytes that wait for them
	intake allowance // large packets that are being read
}

// refusals are the connections that got no place, and that are not logged yet.
type refusals struct {
	said time.Time // when one was logged last
	more int
}

// New checks the options. Errors: *errs.Error with code InvalidConfig.
func New(opt Options) (*Server, error) {
	opt, solver, err := opt.complete()
	if err != nil {
		return nil, err
	}
	g, err := guard.New(opt.Security, secure.Master)
	if err != nil {
		return nil, err
	}
	desk, err := openDesk(opt.Enroll, g)
	if err != nil {
		return nil, err
	}
	log, lines := trace.Detach(opt.Logger)
	s := &Server{
		opt: opt, solver: solver, log: log.With(trace.Subsystem, trace.SubMaster), lines: lines,
		kick: make(chan struct{}, 1), asks: make(chan chan Status), says: make(chan fsm.Event),
		stop: make(chan struct{}), ended: make(chan struct{}), fault: make(chan error, 1),
		machine: machine{conns: map[fsm.ClientID]*conn{}, searches: map[uint64]context.CancelFunc{}, plannings: map[uint32]*planning{}},
		live:    crowd{conns: map[*conn]struct{}{}}, door: door{guard: g, desk: desk},
		helm:  helm{authority: newAuthority(opt), leads: make(chan struct{}), ready: make(chan struct{}, 1)},
		press: newPress(),
	}
	if s.helm.authority == nil {
		s.launch(s.opt.machine(solver != nil))
	}
	s.facts = trace.NewQueue(maxFacts, func(n uint64) {
		s.log.Warn("facts were dropped: OnFact is too slow", "kind", "log", "facts", n)
	}, s.crash)
	s.members.queued.limit, s.others.queued.limit = max(mostForMembers, int64(opt.MaxQueue)), mostForOthers
	s.members.intake.all, s.others.intake.all = mostFromMembers, mostFromOthers
	return s, nil
}

const (
	// maxFacts is how many facts may wait for OnFact.
	maxFacts = 4096
	// flushTime bounds the wait of a master that ends for its log and OnFact.
	flushTime = time.Second
)

// ListenAndServe listens on addr (HOST:PORT) and serves.
func (s *Server) ListenAndServe(ctx context.Context, addr string) error {
	ln, err := platform.Listen(ctx, "tcp", addr)
	if err != nil {
		return errs.New(errs.InvalidUsage, opRun, err).WithPeer(addr).WithHint("free the port or choose another address")
	}
	return s.Serve(ctx, ln)
}

// TakePCCL has Serve take PCCL peers on ln, in plaintext, beside those that come to its own
// listener, and close it. It comes before Serve.
func (s *Server) TakePCCL(ln net.Listener) { s.door.pccl = ln }

// Serve accepts connections of ln until ctx ends or Close is called (nil), or
// ln fails for good, or the master may lead no longer (errs.NotLeading, or the error of
// its authority). It closes ln and every connection, and returns when all
// its goroutines have ended. A Server serves once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if !s.begun.CompareAndSwap(false, true) {
		ln.Close()
		return errs.New(errs.InvalidUsage, opRun, errors.New("a master serves once"))
	}
	defer close(s.ended)
	defer func() {
		s.facts.Close(flushTime)
		s.lines.Close(flushTime)
	}()
	addr := ln.Addr()
	s.addr.Store(&addr)
	s.start = time.Now()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 2)
	s.run(func() {
		s.awaitLead(ctx)
		if err := s.accept(ctx, ln, false); err != nil {
			failed <- err
		}
	})
	if pccl := s.door.pccl; pccl != nil {
		s.run(func() {
			s.awaitLead(ctx)
			if err := s.accept(ctx, pccl, true); err != nil {
				failed <- err
			}
		})
	}
	s.run(func() {
		s.door.guard.Watch(ctx, s.opt.HeartbeatInterval, func(news *guard.News, err error) { s.heed(ctx, news, err) })
	})
	s.run(func() {
		enroll.Keep(ctx, s.door.guard, enroll.AtDesk(s.door.desk), func(news *guard.News, err error) { s.renewed(ctx, news, err) })
	})
	s.run(func() { s.door.guard.Remind(ctx, s.remind) })
	err := s.embark(ctx, failed)
	if err == nil && s.leads() {
		if s.helm.authority != nil {
			s.run(func() { s.consult(ctx) })
		}
		err = s.loop(ctx, failed)
	}
	cancel()
	ln.Close()
	if s.door.pccl != nil {
		s.door.pccl.Close()
	}
	s.live.mu.Lock()
	for c := range s.live.conns {
		c.nc.Close()
	}
	s.live.mu.Unlock()
	s.wg.Wait()
	if s.helm.authority != nil {
		if err == nil && s.leads() {
			err = s.handOver()
		}
		err = errs.Then(err, s.helm.authority.Resign())
	}
	return err
}

// run has f done by a goroutine that Serve waits for.
func (s *Server) run(f func()) {
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer errs.Catch(opRun, s.crash)
		f()
	}()
}

// Addr returns where the server listens, nil before Serve.
func (s *Server) Addr() net.Addr {
	if a := s.addr.Load(); a != nil {
		return *a
	}
	return nil
}

// Snapshot returns the state of the world, the zero Status if Serve does not run.
func (s *Server) Snapshot() Status {
	if !s.begun.Load() {
		return Status{}
	}
	ask := make(chan Status, 1)
	select {
	case s.asks <- ask:
		return <-ask
	case <-s.ended:
		return Status{}
	}
}

// Topology returns what the master knows of the links of every group, and the
// rings in force; nil if Serve does not run.
func (s *Server) Topology() []wire.GroupTopology {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	if s.machine.over || s.machine.fsm == nil {
		return nil
	}
	return s.machine.fsm.Topology()
}

// ResetSharedState gives up the shared state that a group expects: its next
// synchronisation elects the highest revision that its members have, as the
// first one does. It is for a group that has lost its state; the log says which
// revision was given up. Error: errs.Closed if Serve does not run.
func (s *Server) ResetSharedState(group uint32) error { return s.say(fsm.ResetState{Group: group}) }

// SetBeginAnew changes Options.BeginAnew. Error: errs.Closed if Serve does not run.
func (s *Server) SetBeginAnew(on bool) error { return s.say(fsm.LostState{BeginAnew: on}) }

// SetDropLost changes Options.DropLost. Error: errs.Closed if Serve does not run.
func (s *Server) SetDropLost(on bool) error { return s.say(fsm.LostMembers{Drop: on}) }

// ReloadSecurity reads the files of Options.Security at once, if there are some.
// Errors: *errs.Error; what was there before stays in force then.
func (s *Server) ReloadSecurity() error {
	news, err := s.door.guard.Reload()
	if news != nil {
		s.revoke(news, func(ev fsm.Event) { _ = s.say(ev) }) // one that has ended has no clients
	}
	return err
}

func (s *Server) say(ev fsm.Event) error {
	if s.begun.Load() {
		select {
		case s.says <- ev:
			return nil
		case <-s.ended:
		}
	}
	return errs.New(errs.Closed, "change master", errors.New("the master does not serve"))
}

// Close ends Serve and waits for it.
func (s *Server) Close() error {
	s.once.Do(func() { close(s.stop) })
	if s.begun.Load() {
		<-s.ended
	}
	return nil
}

// most is how many events may pile up before what they cause is sent.
const most = 256

// post steps the machine with an event, on the caller's goroutine: waking
// another one for it would cost more than the step. false if the server ended.
// In a crowd only the last one sends, so that a pile of events costs one write
// for each client and not one for each packet; so it is with more, which says
// that the caller brings another event at once.
func (s *Server) post(ctx context.Context, ev fsm.Event, more bool) bool {
	s.waiting.Add(1)
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	crowd := s.waiting.Add(-1) > 0 || more
	if s.machine.over {
		return false
	}
	s.step(ctx, ev)
	if s.machine.held++; !crowd || s.machine.held >= most {
		s.flush()
	}
	if due, ok := s.machine.fsm.Deadline(); ok && due < s.machine.armed {
		s.machine.armed = due
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
	return true
}

// tick lets the machine look at the clock and returns how long it may sleep.
func (s *Server) tick(ctx context.Context) time.Duration {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	s.step(ctx, fsm.Tick{})
	s.flush()
	now, wait := time.Since(s.start), time.Hour
	if due, ok := s.machine.fsm.Deadline(); ok {
		wait = max(0, due-now)
	}
	s.machine.armed = now + wait
	return wait
}

func (s *Server) snapshot() Status {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	return s.machine.fsm.Snapshot()
}

// loop is there for the ticks of the machine and for the end.
func (s *Server) loop(ctx context.Context, failed <-chan error) error {
	defer func() {
		s.machine.mu.Lock()
		s.machine.over = true
		s.machine.mu.Unlock()
	}()
	timer := time.NewTimer(s.tick(ctx))
	defer timer.Stop()
	for _, ev := range s.machine.early {
		s.post(ctx, ev, false)
	}
	for {
		select {
		case err := <-s.helm.lost:
			return notLeading(err)
		case <-s.kick:
			timer.Reset(s.tick(ctx))
		case <-timer.C:
			timer.Reset(s.tick(ctx))
		case ask := <-s.asks:
			ask <- s.snapshot()
		case ev := <-s.says:
			s.post(ctx, ev, false)
		case err := <-failed:
			return err
		case err := <-s.fault:
			return err
		case <-ctx.Done():
			s.post(ctx, fsm.Ending{}, false)
			return nil
		case <-s.stop:
			s.post(ctx, fsm.Ending{}, false)
			return nil
		}
	}
}

// crash makes Serve return err: a machine that panicked cannot be trusted with a run.
func (s *Server) crash(err *errs.Error) {
	s.log.Error("panic in the master", "error", err, "stack", errs.StackOf(err))
	select {
	case s.fault <- err:
	default:
	}
}

func (s *Server) step(ctx context.Context, ev fsm.Event) {
	defer errs.Catch(opRun, s.crash)
	if c, ok := ev.(accepted); ok {
		s.machine.conns[c.conn.id] = c.conn
		ev = c.Connected
	}
	for _, e := range s.machine.fsm.Step(time.Since(s.start), ev) {
		switch e := e.(type) {
		case fsm.Send:
			s.send(e)
		case fsm.Close:
			if c := s.machine.conns[e.Client]; c != nil {
				delete(s.machine.conns, e.Client)
				c.out.finish(c.nc)
				c.deafen()
			}
		case fsm.Admit:
			if c := s.machine.conns[e.Client]; c != nil {
				c.standing.Store(member)
				c.out.move(&s.members.queued)
			}
		case fsm.Solve:
			s.solve(ctx, e)
		case fsm.StopSolve:
			if stop := s.machine.searches[e.Job]; stop != nil {
				stop()
			}
		case fsm.MakePlans:
			s.makePlans(ctx, e.Group, planJob{e.Job, e.Basis.Make})
		case fsm.Commit, fsm.Confirm, fsm.Outdated:
			s.helm.ask(e)
		case fsm.Log:
			s.fact(e.Fact)
		}
	}
	if g, ok := ev.(fsm.Gone); ok {
		delete(s.machine.conns, g.Client)
	}
}

// send appends to the client's queue. A client that does not read fast enough
// is given up: the others must not wait for it, nor pay for it.
func (s *Server) send(e fsm.Send) {
	c := s.machine.conns[e.Client]
	if c == nil {
		return
	}
	if r, ok := e.Packet.(wire.M2CSessionRegistrationResponse); ok && r.Accepted {
		c.standing.CompareAndSwap(stranger, waiting)
	}
	if !c.out.add(e.Packet, s.opt.MaxQueue) {
		c.fail(fmt.Sprintf("does not read: more than %d bytes wait for it", s.opt.MaxQueue))
		return
	}
	if !c.dirty {
		c.dirty = true
		s.machine.dirty = append(s.machine.dirty, c)
	}
	if _, book := c.out.held(); book.bytes.Load() > book.limit {
		s.flush() // of what one step has for all nothing was tried yet
		s.shed(book)
	}
}

// shed gives up clients that do not read, those for whom most waits first, until
// the bytes that wait for all of them are within their limit. Those that wait for one
// alone have a limit of their own.
func (s *Server) shed(book *ledger) {
	for book.bytes.Load() > book.limit {
		var out *conn
		most, others := 0, 0
		for _, c := range s.machine.conns {
			n, b := c.out.held()
			if b != book || n == 0 {
				continue
			}
			others++
			if n > most || n == most && c.id > out.id {
				out, most = c, n
			}
		}
		if others < 2 {
			return
		}
		out.fail(fmt.Sprintf("does not read: %d bytes wait for it, and too many for all clients together", most))
		out.out.discard()
	}
}

// flush sends what the last events have for the clients, in one write for each
// if the connection takes it at once, and leaves the rest to their writers.
func (s *Server) flush() {
	s.machine.held = 0
	for i, c := range s.machine.dirty {
		c.dirty = false
		if !c.out.push(c.try) {
			c.out.wake()
		}
		s.machine.dirty[i] = nil
	}
	s.machine.dirty = s.machine.dirty[:0]
}

var levels = map[string]slog.Level{"round": slog.LevelDebug, "registered": slog.LevelDebug, "probes": slog.LevelDebug, "sync": slog.LevelDebug}

func (s *Server) fact(f fsm.Fact) {
	if s.opt.OnFact != nil {
		s.facts.Put(func() { s.opt.OnFact(f) })
	}
	level := levels[f.Kind]
	if f.Warn {
		level = slog.LevelWarn
	}
	if !s.log.Enabled(context.Background(), level) {
		return
	}
	attrs := []slog.Attr{slog.String("kind", f.Kind)}
	if f.Remote.IsValid() {
		attrs = append(attrs, slog.String("remote", f.Remote.String()))
	}
	if f.Peer != (wire.UUID{}) {
		attrs = append(attrs, slog.String("peer", f.Peer.String()), slog.Uint64("group", uint64(f.Group)))
	}
	attrs = append(attrs, slog.Int("world", f.World))
	s.log.LogAttrs(context.Background(), level, f.Text, attrs...)
}

// unlessEnding returns err if the listener was closed by somebody else.
func (s *Server) unlessEnding(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.stop:
		return nil
	default:
		return errs.New(errs.InvalidUsage, opRun, err)
	}
}

func remoteOf(nc net.Conn) netip.AddrPort {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		ap := a.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
}
