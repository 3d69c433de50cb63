package peer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/buf"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/invariants"
	"github.com/gopccl/gopccl/core/peer/fsm"
	"github.com/gopccl/gopccl/core/probe"
	"github.com/gopccl/gopccl/core/reduce"
	"github.com/gopccl/gopccl/core/sharedstate"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/core/wire"
)

// Session is one peer's membership in a run, from Connect to Close. All
// methods are safe from any goroutine; calls that the protocol does not let
// overlap are refused with errs.Busy or errs.PendingAsyncOps.
type Session struct {
	opt    Options
	log    *slog.Logger
	began  time.Time
	m      *fsm.Machine
	armed  time.Duration // when the loop's timer goes off
	master *masterConn
	engine *reduce.Engine
	state  *sharedstate.Server
	bench  *probe.Server
	accept *acceptor
	listen listeners
	nics   []netip.Addr // of this machine, one for each network
	number uint64       // by which neighbours know this session at another address

	box    mailbox
	posts  postbox
	rota   rota
	picked []posting     // spare of pickUp
	batch  []fsm.Event   // spare of progress
	quit   chan struct{} // closed by Close after the machine has answered
	done   chan struct{} // closed when the loop has ended

	preparing preparing // the connections of a ring to come

	meter        meter
	startSending chan time.Time // of the scheduled probe; of the loop

	ids  atomic.Uint64
	view atomic.Pointer[fsm.View]

	mu    invariants.Mutex
	calls map[fsm.CallID]*call
	ops   map[fsm.OpID]*operation
	left  bool // the machine has made its last step: nobody answers

	ctx    context.Context // of all work done for effects; ends with the session
	cancel context.CancelFunc
	work   sync.WaitGroup

	dog     watcher
	crashed atomic.Pointer[errs.Error] // a panic; nothing is done any more

	closeOnce sync.Once
}

// call is one pending API call.
type call struct {
	done   chan struct{}
	then   func() // called behind done, if there is one; must not block
	err    error
	result any
	sync   *syncWork          // of a CallSync
	stop   context.CancelFunc // of a running Fetch or Probe
	id     fsm.OpID           // of a CallReduce
	op     *operation         // of a CallReduce
}

// end tells whoever waits that err and result are set.
func (c *call) end() {
	close(c.done)
	if c.then != nil {
		c.then()
	}
}

// finish ends a call that was never made.
func (c *call) finish(err error) {
	c.err = err
	c.end()
}

// closed is the error of a call on a session that is over.
func closed() error {
	return errs.New(errs.Closed, opName, nil).Do("connect again with a new communicator")
}

// Connect dials the master, registers and waits until the accepted peers let
// this one in. A peer alone is let in at once. ctx bounds the whole call; its
// end while others are waited for leaves the run. An option that makes no sense
// is errs.InvalidArgument, before anything is dialled.
func Connect(ctx context.Context, opt Options) (*Session, error) {
	opt = opt.withDefaults()
	kernels, passed, err := backend.Select(opt.Backend)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "connect", err)
	}
	opt.Logger.Debug("reduce backend", "name", kernels.Name(), "passed_over", passed)
	listenAt, err := opt.check()
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "connect", err)
	}
	if err := device.Configure(opt.deviceSettings()); err != nil {
		return nil, errs.New(errs.InvalidArgument, "connect", err)
	}
	mc, err := dialMaster(ctx, opt)
	if err != nil {
		return nil, errs.New(errs.MasterConnectionFailed, "connect", err).With(opt.Master).
			Do("check that a master listens there")
	}
	s := &Session{
		opt: opt, log: opt.Logger.With(trace.Subsystem, trace.SubSession), began: time.Now(), master: mc,
		box: newMailbox(), quit: make(chan struct{}), done: make(chan struct{}),
		calls: map[fsm.CallID]*call{}, ops: map[fsm.OpID]*operation{},
	}
	s.posts.mu.Rank(rankPosts, "postbox.mu")
	s.mu.Rank(rankSession, "Session.mu")
	s.box.mu.Rank(rankSession, "mailbox.mu")
	s.rota = rota{frequency: opt.AppendFrequency, batch: opt.AppendBatch, progress: s.progress, pick: s.pickUp}
	network := "tcp"
	if remote, ok := mc.conn.RemoteAddr().(*net.TCPAddr); ok && remote.IP.To4() != nil {
		network = "tcp4"
	}
	if s.listen, err = listenAll(ctx, network, listenAt, opt.PortBase, opt.Ports); err != nil {
		mc.close()
		return nil, errs.New(errs.InvalidArgument, "connect", err).At("listen").
			Do("listen on an address of this machine and of the master's family, with free ports from the port base on")
	}
	if s.nics, err = localAddresses(ctx, network, opt.Addresses); err != nil {
		mc.close()
		s.listen.close()
		return nil, errs.New(errs.InvalidArgument, "connect", err).At("choose addresses").
			Do("name addresses or interfaces of this machine, of the family that the master is reached by")
	}
	for s.number == 0 {
		s.number = rand.Uint64()
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	threads, cpus := opt.threads()
	s.engine = reduce.NewEngine(reduce.Config{
		Backend: kernels, FrameBytes: opt.FrameBytes, Flows: opt.Flows, Pool: buf.NewPool(0), Logger: opt.Logger.With(trace.Subsystem, trace.SubData), Trace: opt.Trace,
		Threads: threads, Affinity: cpus,
	})
	s.meter.use = s.engine.LinkUse
	s.state = sharedstate.NewServer(sharedstate.ServerConfig{Log: opt.Logger.With(trace.Subsystem, trace.SubState)})
	s.bench = probe.NewServer(probe.ServerConfig{Log: opt.Logger.With(trace.Subsystem, trace.SubProbe)})
	s.accept = &acceptor{ln: s.listen.p2p, serve: s.greet}
	statePort, p2pPort, benchPort := s.listen.announced(opt.AnnouncePorts)
	host, _ := opt.announceHost() // checked
	s.m = fsm.New(fsm.Config{
		Group: opt.Group, Host: host,
		P2PPort: p2pPort, SharedStatePort: statePort, BenchmarkPort: benchPort,
		HeartbeatInterval: opt.HeartbeatInterval, HeartbeatTimeout: opt.HeartbeatTimeout,
		RegisterTimeout: registerTime, MaxWithPCCL: maxWithPCCL, EagerBytes: max(0, opt.EagerBytes),
	})
	v := s.m.View()
	s.view.Store(&v)
	s.spawn(s.accept.run)
	s.spawn(func() { s.state.Serve(s.listen.state) })
	s.spawn(func() { s.bench.Serve(s.listen.bench) })
	s.spawn(s.readMaster)
	s.dog.after = opt.WarnStuckAfter
	live.add(s)
	go s.loop()
	if _, err := s.call(ctx, "connect", 0, nil, func(id fsm.CallID) fsm.Event { return fsm.CallConnect{Call: id} }); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Session) spawn(f func()) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		defer errs.Catch("session", s.crash)
		f()
	}()
}

func (s *Session) carryOut(effects []fsm.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case fsm.Send:
			s.master.queue(e.Packet)
		case fsm.Establish:
			s.publishView()
			before := s.stopPreparing()
			s.spawn(func() {
				<-before
				s.establish(e)
			})
		case fsm.PrepareRing:
			s.prepareRing(e)
		case fsm.StopPrepare:
			s.stopPreparing()
		case fsm.SwitchRing:
			s.engine.Admit(e.Neighbours...)
			s.publishView()
		case fsm.Release:
			s.engine.Retain(func(u wire.UUID) bool { return slices.Contains(e.Keep, u) }, nil)
		case fsm.StartData:
			if op := s.begin(e.Op); op != nil {
				s.meter.begin(e.Ring, e.Self, time.Now())
				done := func(err error) {
					if u, ok := s.meter.end(time.Now()); ok && err == nil {
						s.box.post(u)
					}
					s.dataEnded(e.Op, err)
				}
				if e.Eager {
					op.data.StartEager(e.Epoch, e.Ring, e.Self, done)
				} else {
					op.data.Listen(e.Epoch)
					op.data.Start(e.Seq, e.Ring, e.Self, e.Native, done)
				}
			}
		case fsm.SkipData:
			s.engine.Skip(e.Seq)
		case fsm.CommenceData:
			if op := s.operation(e.Op); op != nil {
				op.data.Commence(e.Seq)
			} else { // it was given up
				s.engine.Skip(e.Seq)
			}
		case fsm.SpoilData:
			s.engine.Spoil(e.Tag, e.Epoch)
		case fsm.AbortData:
			s.operation(e.Op).data.Abort(errors.New(e.Reason))
		case fsm.Finish:
			s.finish(e)
		case fsm.Serve:
			// The window is shut by the caller's goroutine, which may wait for readers.
			if c := s.pending(e.Call); e.On && c != nil {
				s.state.Open(c.sync.revision, c.sync.tensors, c.sync.legacy)
			}
		case fsm.Fetch:
			s.startFetch(e)
		case fsm.StopFetch:
			s.stopWork(e.Call)
		case fsm.Probe:
			s.startProbe(e)
		case fsm.StopProbe:
			s.stopWork(e.Call)
		case fsm.PrepareProbe:
			s.prepareProbe(e)
		case fsm.SendProbe:
			s.startSending <- time.Now().Add(e.Delay)
		case fsm.Done:
			s.publishView()
			s.answer(e)
		case fsm.Disconnect:
			s.disconnect(e.Reason)
		case fsm.Log:
			level := slog.LevelInfo
			if e.Warn {
				level = slog.LevelWarn
			}
			s.log.Log(s.ctx, level, e.Text, "peer", e.Peer.Short(), "self", s.m.View().UUID.Short())
		}
	}
}

// publishView makes the machine's view visible to Attributes and to launches.
func (s *Session) publishView() {
	v := s.m.View()
	s.view.Store(&v)
}

// View returns the last published view of the session.
func (s *Session) View() fsm.View { return *s.view.Load() }

func (s *Session) disconnect(reason string) {
	s.log.Info("left the run", "reason", reason)
	s.master.flush()
	s.cancel()
	s.master.close()
	s.accept.close()
	s.engine.Retain(none, none)
	s.publishView()
}

func none(wire.UUID) bool { return false }

// call posts an event and waits for its Done. cancelOp is the operation that a
// cancellation aborts, 0 for a phase-changing call. The machine answers every
// call, cancelled ones at once.
func (s *Session) call(ctx context.Context, name string, cancelOp fsm.OpID, w *syncWork, ev func(fsm.CallID) fsm.Event) (any, error) {
	if err := ctx.Err(); err != nil && cancelOp == 0 {
		return nil, errs.New(errs.Canceled, name, err)
	}
	id := fsm.CallID(s.ids.Add(1))
	c := &call{done: make(chan struct{}), sync: w}
	s.hand()
	s.mu.Lock()
	s.calls[id] = c
	s.mu.Unlock()
	if err := s.crashed.Load(); err != nil {
		return nil, faulty(name, err)
	}
	s.handle(ev(id))
	return s.wait(ctx, name, id, c, cancelOp)
}

// wait waits for the Done of c.
func (s *Session) wait(ctx context.Context, name string, id fsm.CallID, c *call, cancelOp fsm.OpID) (any, error) {
	canceled := ctx.Done()
	for {
		select {
		case <-c.done:
			if err := s.crashed.Load(); err != nil && c.err != nil {
				return nil, faulty(name, err)
			}
			if c.err != nil && ctx.Err() != nil && errors.Is(c.err, errs.Canceled) {
				return nil, errs.New(errs.Canceled, name, ctx.Err()).At("waiting for the other peers")
			}
			return c.result, c.err
		case <-canceled:
			canceled = nil
			s.box.post(fsm.CallCancel{Call: id, Op: cancelOp})
		case <-s.done:
			select {
			case <-c.done:
				continue
			default:
			}
			s.mu.Lock()
			delete(s.calls, id)
			s.mu.Unlock()
			return nil, errs.New(errs.Closed, name, nil).Do("connect again with a new communicator")
		}
	}
}

func (s *Session) pending(id fsm.CallID) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[id]
}

func (s *Session) answer(d fsm.Done) {
	s.mu.Lock()
	c := s.calls[d.Call]
	delete(s.calls, d.Call)
	s.mu.Unlock()
	if c != nil {
		c.err, c.result = d.Err, d.Result
		if c.op != nil && d.Err != nil {
			s.refuse(c.id, c.op, d.Err)
		}
		c.end()
	}
}

func (s *Session) stopWork(id fsm.CallID) {
	if c := s.pending(id); c != nil && c.stop != nil {
		c.stop()
	}
}

// UpdateTopology votes to let waiting peers in and returns when the round has
// succeeded; every accepted peer of every group must call it. Cancelling ctx
// leaves the run, since a vote cannot be taken back.
func (s *Session) UpdateTopology(ctx context.Context) error {
	_, err := s.call(ctx, "update topology", 0, nil, func(id fsm.CallID) fsm.Event { return fsm.CallUpdate{Call: id} })
	return err
}

// PeersPending asks whether an UpdateTopology is worth it: peers wait to be let
// in, or the master has found a better ring. All accepted peers must
// ask, and all get the same answer; it may overlap with all-reduces. Calls of
// one peer that overlap share one query, so that peers whose goroutines ask in
// another pattern would wait for each other: ask from one goroutine of each peer.
func (s *Session) PeersPending(ctx context.Context) (bool, error) {
	r, err := s.call(ctx, "peers pending", 0, nil, func(id fsm.CallID) fsm.Event { return fsm.CallPending{Call: id} })
	b, _ := r.(bool)
	return b, err
}

// OptimizeTopology measures the bandwidths that the master misses and adopts
// the ring it finds; every accepted peer must call it. Cancelling ctx leaves the run.
func (s *Session) OptimizeTopology(ctx context.Context) error {
	_, err := s.call(ctx, "optimize topology", 0, nil, func(id fsm.CallID) fsm.Event { return fsm.CallOptimize{Call: id} })
	return err
}

// Close leaves the run: running operations are aborted for all peers, their
// buffers restored, every pending call answered, every connection and
// goroutine ended. It is idempotent and may be called from any goroutine.
func (s *Session) Close() error {
	s.closeOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.opt.HandshakeTimeout)
		defer cancel()
		s.call(ctx, "close", 0, nil, func(id fsm.CallID) fsm.Event { return fsm.CallClose{Call: id} })
		close(s.quit)
		<-s.done
		s.cancel()
		s.master.close()
		s.accept.close()
		s.listen.close()
		s.state.Close()
		s.bench.Close()
		s.engine.Close()
		s.work.Wait()
		live.remove(s)
	})
	return nil
}

// addrs drops the addresses that cannot be dialled.
func addrs(in []netip.AddrPort) (out []netip.AddrPort) {
	for _, a := range in {
		if a.IsValid() && a.Port() != 0 && !a.Addr().IsUnspecified() {
			out = append(out, a)
		}
	}
	return out
}
