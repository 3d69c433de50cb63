package peer

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/bounds"
	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/collective"
	"github.com/gopccl/gopccl/internal/enroll"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/mesh"
	"github.com/gopccl/gopccl/internal/message"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/probe"
	"github.com/gopccl/gopccl/internal/reduce"
	"github.com/gopccl/gopccl/internal/sharedstate"
	"github.com/gopccl/gopccl/internal/sockets"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// Session is one peer's membership in a run, from Connect to Close. All
// methods are safe from any goroutine; calls that the protocol does not let
// overlap are refused with errs.Busy or errs.PendingAsyncOps.
type Session struct {
	turns
	book

	opt    Options
	log    *slog.Logger
	lines  *trace.Lines // what waits for the caller's log handler
	events *trace.Queue // ... and for its listener; nil: there is none
	began  time.Time
	master control
	dataPath
	sharing *sharedstate.Server
	hasher  digest.Hasher // of shared states
	bench   *probe.Server
	entry   entry
	mesh    *mesh.Mesh
	names   *names
	meter   meter
	dog     watcher

	ids     atomic.Uint64 // of calls and operations
	view    atomic.Pointer[fsm.View]
	fetched atomic.Uint64 // bytes of shared state
	syncing atomic.Bool   // a SyncSharedState is running

	ctx     context.Context // of all work done for effects; ends with the session
	cancel  context.CancelFunc
	work    sync.WaitGroup
	crashed atomic.Pointer[errs.Error] // a panic; nothing is done any more

	quit      chan struct{} // closed by Close after the machine has answered
	done      chan struct{} // closed when the loop has ended
	closeOnce sync.Once
	closed    chan struct{} // closed when nothing of the session is left
}

// dataPath are the rooms that move data.
type dataPath struct {
	engine *reduce.Engine
	blocks *collective.Engine // for other collectives, on the same hub
	posted *message.Engine    // for messages, on the same hub
	hub    *link.Hub          // the engine's
	pool   *buf.Pool          // the engine's, too
	// roundTrip returns the shortest one to a peer so far.
	roundTrip func(wire.UUID) (time.Duration, bool)
	rate      func(wire.UUID) float64 // of tests: what a measurement gives
}

// entry is where other peers connect to: what is behind the listeners, and in front of
// mesh, sharing and bench.
type entry struct {
	listen  mesh.Listeners
	port    *sockets.Port
	closing atomic.Bool // Close has begun: listeners end on purpose
}

// turns are the machine, the events that come to it, and its holder's tools for a turn.
type turns struct {
	m            *fsm.Machine
	armed        time.Duration // when the loop's timer goes off
	box          mailbox
	posts        postbox
	rota         rota
	picked       []*Operation   // spare of pickUp
	batch        []fsm.Event    // spare of progress
	after        []func()       // calls of Notify's functions that are due
	preparing    preparing      // the connections of a ring to come
	meshing      preparing      // those between all members
	dialling     chan struct{}  // room for one that makes pools beside what runs
	startSending chan time.Time // of the scheduled probe
}

// book is who waits for the machine.
type book struct {
	mu      invariants.Mutex
	calls   map[fsm.CallID]*call
	ops     map[fsm.OpID]*Operation   // that the machine knows, until they are settled
	opCalls map[fsm.CallID]*Operation // launches and awaits that were not answered
	left    bool                      // the machine has made its last step: no call is answered
	kept    results
}

// call is one pending API call but those of operations.
type call struct {
	done   chan struct{}
	err    error
	answer fsm.Done
	sync   *syncWork          // of a CallSync
	stop   context.CancelFunc // of a running Fetch or Probe
}

// end ends a call that the machine does not answer.
func (c *call) end(err error) {
	c.err = err
	close(c.done)
}

// closed is the error of a call on a session that is over.
func closed() *errs.Error {
	return errs.New(errs.Closed, opName, nil).WithHint("connect again with a new communicator")
}

// Connect dials the master, registers and waits until the accepted peers let
// this one in. A peer alone is let in at once. ctx bounds the whole call; its
// end while others are waited for leaves the run. An option that makes no sense
// is errs.InvalidArgument, before anything is dialled.
func Connect(ctx context.Context, opt Options) (*Session, error) {
	return seek(ctx, opt.withDefaults())
}

// connect is Connect to the masters in first, or else to those of the options, from the
// one with that number on. The session is over if there is an error.
func connect(ctx context.Context, opt Options, first []string, turn int) (*Session, error) {
	devices := opt.deviceSettings()
	s := newSession(opt)
	s.master.first, s.master.turn = first, turn
	err := s.open(ctx, devices)
	if err == nil {
		s.start()
		_, err = s.call(ctx, "connect", nil, func(id fsm.CallID) fsm.Event { return fsm.CallConnect{Call: id} })
	}
	if err != nil {
		s.unwind()
	}
	return s, err
}

// newSession returns a session that has opened and started nothing. opt has its
// defaults.
func newSession(opt Options) *Session {
	var lines *trace.Lines
	opt.Logger, lines = trace.Detach(opt.Logger)
	who := &names{}
	opt.Logger = slog.New(caller{opt.Logger.Handler(), who})
	s := &Session{
		names: who,
		opt:   opt, log: opt.Logger.With(trace.Subsystem, trace.SubSession), lines: lines, began: time.Now(),
		turns: turns{box: newMailbox(), dialling: make(chan struct{}, 1)}, book: book{calls: map[fsm.CallID]*call{}, ops: map[fsm.OpID]*Operation{}, opCalls: map[fsm.CallID]*Operation{}, kept: results{}},
		quit: make(chan struct{}), done: make(chan struct{}), closed: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if opt.Trace != nil {
		s.events = trace.NewQueue(maxEvents, func(n uint64) {
			s.log.Warn("calls of the trace listener were dropped: it is too slow", "calls", n)
		}, s.crash)
		s.opt.Trace = who.listener(opt.Trace.Queued(s.events))
	}
	s.posts.mu.Rank(rankPosts, "postbox.mu")
	s.mu.Rank(rankSession, "book.mu")
	s.box.mu.Rank(rankSession, "mailbox.mu")
	s.rota = rota{frequency: opt.Post.Frequency, batch: opt.Post.Batch, progress: s.progress, pick: s.pickUp}
	s.dog.after = opt.WarnStuckAfter
	return s
}

// open checks the options, opens the sockets and makes the rooms that work on them.
// If it fails, unwind closes what it has opened.
func (s *Session) open(ctx context.Context, devices device.Settings) error {
	opt := s.opt
	refused := func(err error) *errs.Error { return errs.New(errs.InvalidArgument, "connect", err) }
	kernels, passed, err := backend.Select(opt.Backend)
	if err != nil {
		return refused(err)
	}
	opt.Logger.Debug("reduce backend", "name", kernels.Name(), "passed_over", passed)
	if err := s.selectHasher(); err != nil {
		return err
	}
	listenAt, err := opt.checkHere()
	if err != nil {
		return err
	}
	if err := device.Configure(devices); err != nil {
		return refused(err)
	}
	if err := s.believe(); err != nil {
		return err
	}
	s.master.masters, _ = bounds.Endpoints(opt.Master, maxMasters) // checked
	if opt.registerTime == 0 {
		// Where there are others, one that stands still does not hold a newcomer up for longer.
		if opt.registerTime = registerTime; len(s.master.masters) > 1 {
			opt.registerTime = max(recoveryTime, opt.HeartbeatTimeout+4*time.Second)
		}
	}
	s.master.turn %= len(s.master.masters)
	if err := s.dial(ctx); err != nil {
		return err
	}
	network := "tcp"
	if remote, ok := s.master.conn().conn.RemoteAddr().(*net.TCPAddr); ok && remote.IP.To4() != nil {
		network = "tcp4"
	}
	if s.entry.listen, err = mesh.Listen(ctx, network, listenAt, opt.PortBase, opt.Ports); err != nil {
		return refused(err).WithPhase("listen").
			WithHint("listen on an address of this machine and of the master's family, with free ports from the port base on")
	}
	nics, err := mesh.LocalAddresses(ctx, network, opt.Addresses)
	if err != nil {
		return refused(err).WithPhase("choose addresses").
			WithHint("name addresses or interfaces of this machine, of the family that the master is reached by")
	}
	threads, cpus := opt.threads()
	tuning := platform.Options{UserTimeout: opt.UserTimeout, Congestion: opt.Congestion}
	watched := func() bool { return s.master.conn().native.Load() }
	s.pool = buf.NewPool(0)
	s.engine = reduce.NewEngine(reduce.Config{Backend: kernels, Flows: opt.Flows, Link: link.Config{
		FrameBytes: opt.FrameBytes, Pool: s.pool, Logger: opt.Logger.With(trace.Subsystem, trace.SubData), Trace: opt.Trace,
		Threads: threads, Affinity: cpus, Grow: func(peer wire.UUID, n int) { s.mesh.Grow(peer, n) },
		Ended: s.connectionEnded, Tuning: tuning, Watched: watched,
	}})
	s.hub = s.engine.Hub()
	s.posted = message.NewEngine(s.hub) // its mark is part of that of collectives, which are asked first
	s.rate = opt.Rate
	if s.roundTrip = opt.RoundTrip; s.roundTrip == nil {
		s.roundTrip = s.hub.RoundTrip
	}
	s.blocks = collective.NewEngine(s.hub, collective.Config{Backend: kernels, Flows: opt.Flows})
	s.meter.use = s.hub.LinkUse
	s.sharing = sharedstate.NewServer(sharedstate.ServerConfig{Log: opt.Logger.With(trace.Subsystem, trace.SubState), Security: s.names.server(secure.State)})
	s.bench = probe.NewServer(probe.ServerConfig{Log: opt.Logger.With(trace.Subsystem, trace.SubProbe), Security: s.names.server(secure.Bench)})
	s.entry.port = s.names.port(s.log)
	s.mesh = mesh.New(s.ctx, mesh.Config{
		Pools: s.hub, Between: s.between, Self: func() wire.UUID { return s.View().UUID }, Listener: s.entry.port.For(wire.P2P, s.entry.listen.Data()), Addresses: nics, PoolSize: opt.PoolSize,
		Secure: s.names.mesh(), Complain: s.names.complain, Dial: opt.Dial, DialTimeout: opt.DialTimeout, HandshakeTimeout: opt.HandshakeTimeout,
		Tuning: tuning, Watched: watched, Log: s.log, Crash: s.crash,
	})
	statePort, p2pPort, benchPort := s.entry.listen.Announced(opt.Announce.Ports)
	host, _ := opt.announceHost() // checked
	s.m = fsm.New(fsm.Config{
		Group: opt.Group, Host: host,
		P2PPort: p2pPort, SharedStatePort: statePort, BenchmarkPort: benchPort,
		HeartbeatInterval: opt.HeartbeatInterval, HeartbeatTimeout: opt.HeartbeatTimeout,
		Secure: s.names.guard != nil, Plain: s.names.plain, Masters: len(s.master.masters), ReattachTimeout: max(0, opt.ReattachTimeout), RegisterTimeout: opt.registerTime, MaxWithPCCL: maxWithPCCL, EagerBytes: max(0, opt.EagerBytes),
	})
	s.publishView()
	return nil
}

// believe reads the credential, if there is one.
func (s *Session) believe() error {
	g, err := guard.New(s.opt.Security, secure.Peer)
	if err != nil {
		return err
	}
	n := s.names
	n.guard, n.group, n.bound, n.lists = g, s.opt.Group, s.opt.HandshakeTimeout, make(chan string, guard.MostHeld)
	n.open, n.plain = g.Allows(), g.Allows() || slices.Contains(s.opt.Security.PCCLGroups, s.opt.Group)
	return nil
}

// selectHasher takes the hasher of the options. Its error is *errs.Error.
func (s *Session) selectHasher() error {
	h, passed, err := digest.Select(s.opt.Hash.Hasher)
	for _, p := range passed {
		if errors.Is(p, digest.ErrWrong) {
			s.log.Warn("a hasher is wrong and not used", "error", p)
		}
	}
	if err != nil {
		return err
	}
	s.hasher = h
	s.log.Debug("hasher", "name", h.Name(), "passed_over", passed)
	return nil
}

// start begins what a session does until Close.
func (s *Session) start() {
	s.spawn(s.mesh.Run)
	s.spawn(func() { s.sharing.Serve(s.entry.port.For(wire.C2S, nil)) })
	s.spawn(func() { s.bench.Serve(s.entry.port.For(wire.C2B, nil)) })
	for _, ln := range s.entry.listen {
		s.spawn(func() {
			s.entry.port.Serve(ln)
			if s.ctx.Err() == nil && !s.entry.closing.Load() { // the session goes on
				s.log.Error("a port was closed: other peers can no longer reach this one there", "port", ln.Addr())
			}
		})
	}
	s.spawn(func() { s.names.guard.Watch(s.ctx, s.opt.HeartbeatInterval, s.revoke) })
	s.spawn(s.heedLists)
	s.spawn(func() {
		s.names.guard.Remind(s.ctx, func() {
			s.log.Warn("security.mode is allow: this peer takes connections in plaintext, too; set it to require when all members have a credential")
		})
	})
	s.spawn(func() { enroll.Keep(s.ctx, s.names.guard, enroll.AtMaster(s.dialRenewal), s.revoke) })
	s.converse(s.master.conn(), bufio.NewReaderSize(s.master.conn(), 64<<10))
	live.add(s)
	go s.loop()
}

// unwind ends a session that Connect does not return: one that was started as
// Close does, and of another one what was opened.
func (s *Session) unwind() {
	if s.m != nil {
		s.Close()
		return
	}
	s.cancel()
	if mc := s.master.conn(); mc != nil {
		mc.close()
	}
	s.entry.listen.Close()
	s.lines.Close(flushTime)
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
			if beat, ok := e.Packet.(wire.C2MHeartbeat); ok {
				beat.Reports, beat.Moved = true, s.moved()
				e.Packet = beat
			}
			s.master.conn().queue(e.Packet)
		case fsm.Establish:
			s.publishView()
			// Before others dial here because of the same round.
			s.expectEpoch(e.Epoch)
			s.posted.Expect(e.Epoch, s.View().Members)
			s.hub.Trust(uuids(e.Peers)...)
			s.hub.BeginRound()
			ring, members := s.preparing.end(), s.meshing.end()
			s.spawn(func() {
				<-ring
				<-members
				s.establish(e)
			})
		case fsm.Names, fsm.Revocations:
			s.names.hear(e)
		case fsm.PrepareRing:
			s.prepareRing(e)
		case fsm.Preflight:
			s.preflight(e)
		case fsm.StopPrepare:
			s.preparing.end()
		case fsm.PrepareMesh:
			s.prepareMesh(e)
		case fsm.StopMesh:
			s.meshing.end()
		case fsm.PeerLeft:
			s.posted.Lost(e.Peer, errLeft)
		case fsm.MeshSettled:
			s.publishView()
		case fsm.SwitchRing:
			s.switchRing(e)
		case fsm.Release:
			keep := func(u wire.UUID) bool { return slices.Contains(e.Keep, u) }
			s.hub.Forget(keep)
			s.hub.Retain(keep, nil)
		case fsm.RoundOver:
			s.roundOver(e.Epoch)
		case fsm.StartData:
			s.startData(e)
		case fsm.SkipData:
			s.skip(e.Seq)
		case fsm.CommenceData:
			s.commence(e)
		case fsm.SpoilData:
			s.engine.Spoil(e.Tag, e.Epoch)
			s.blocks.Spoil(e.Tag, e.Epoch)
		case fsm.ExpectEpoch:
			s.expectEpoch(e.Epoch)
		case fsm.RenewData:
			s.renew(e.Op)
		case fsm.AbortData:
			s.operation(e.Op).phase().Abort(errors.New(e.Reason))
		case fsm.Finish:
			s.settle(e)
		case fsm.GiveResult:
			s.giveResult(e)
		case fsm.DropResult:
			s.dropResult(e.Op)
		case fsm.Serve:
			if c := s.pending(e.Call); c != nil {
				win := s.sharing.Open(c.sync.revision, c.sync.tensors, c.sync.legacy)
				c.sync.mu.Lock()
				c.sync.win = win
				c.sync.mu.Unlock()
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
		case fsm.Reattach, fsm.Reattached, fsm.Disconnect:
			s.changeMaster(e)
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
	if shown := s.view.Load(); shown != nil && s.m.Shows(shown) {
		return // most calls change nothing
	}
	v := s.m.View()
	s.view.Store(&v)
}

// View is what the machine knows of the run.
type View = fsm.View

// View returns the last published view of the session.
func (s *Session) View() View { return *s.view.Load() }

func (s *Session) disconnect(reason string) {
	s.posted.Stop(errs.New(errs.Closed, "message", errors.New(reason)).WithHint("connect again with a new communicator"))
	s.log.Info("left the run", "reason", reason)
	s.cancel()
	s.master.conn().drain()
	s.mesh.Close()
	s.hub.Retain(none, none)
	s.publishView()
}

func none(wire.UUID) bool { return false }

// call posts an event and waits for its Done. The machine answers every call,
// cancelled ones at once.
func (s *Session) call(ctx context.Context, name string, w *syncWork, ev func(fsm.CallID) fsm.Event) (fsm.Done, error) {
	if err := ctx.Err(); err != nil {
		return fsm.Done{}, errs.New(errs.Canceled, name, err)
	}
	id := fsm.CallID(s.ids.Add(1))
	c := &call{done: make(chan struct{}), sync: w}
	s.flushPosts()
	s.mu.Lock()
	s.calls[id] = c
	s.mu.Unlock()
	if err := s.crashed.Load(); err != nil {
		return fsm.Done{}, faulty(name, err)
	}
	s.handle(ev(id))
	canceled := ctx.Done()
	for {
		select {
		case <-c.done:
			return c.answer, s.explain(ctx, name, c.err)
		case <-canceled:
			canceled = nil
			s.box.post(fsm.CallCancel{Call: id})
		case <-s.done:
			select {
			case <-c.done:
				continue
			default:
			}
			s.mu.Lock()
			delete(s.calls, id)
			s.mu.Unlock()
			return fsm.Done{}, errs.New(errs.Closed, name, nil).WithHint("connect again with a new communicator")
		}
	}
}

// explain returns the error of a call of the program: that of a crash comes before
// what the call was told.
func (s *Session) explain(ctx context.Context, name string, err error) error {
	if crash := s.crashed.Load(); crash != nil && err != nil {
		return faulty(name, crash)
	}
	return s.names.named(canceledBy(ctx, name, err))
}

// canceledBy names the end of the program's context as the cause of a cancellation.
func canceledBy(ctx context.Context, name string, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, errs.Canceled) {
		return errs.New(errs.Canceled, name, ctx.Err()).WithPhase("waiting for the other peers")
	}
	return err
}

func (s *Session) pending(id fsm.CallID) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[id]
}

// answer gives the machine's answer to who waits for it.
func (s *Session) answer(d fsm.Done) {
	s.mu.Lock()
	c, op := s.calls[d.Call], s.opCalls[d.Call]
	delete(s.calls, d.Call)
	delete(s.opCalls, d.Call)
	s.mu.Unlock()
	switch {
	case op != nil:
		s.after = append(s.after, op.answered(d.Call, d.Err)...)
	case c != nil:
		c.answer = d
		c.end(d.Err)
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
	_, err := s.call(ctx, "update topology", nil, func(id fsm.CallID) fsm.Event { return fsm.CallUpdate{Call: id} })
	return err
}

// PeersPending asks whether an UpdateTopology is worth it: peers wait to be let
// in, or the master has found a better ring. All accepted peers must
// ask, and all get the same answer; it may overlap with all-reduces. Calls of
// one peer that overlap share one query, so that peers whose goroutines ask in
// another pattern would wait for each other: ask from one goroutine of each peer.
// The vote of a call whose ctx has ended stands: the next call gets its answer,
// unless a round, or a later all-reduce or synchronisation, shows that the others
// have gone on.
func (s *Session) PeersPending(ctx context.Context) (bool, error) {
	d, err := s.call(ctx, "peers pending", nil, func(id fsm.CallID) fsm.Event { return fsm.CallPending{Call: id} })
	return d.Pending, err
}

// OptimizeTopology measures the bandwidths that the master misses and adopts
// the ring it finds; every accepted peer must call it. Cancelling ctx leaves the run.
func (s *Session) OptimizeTopology(ctx context.Context) error {
	_, err := s.call(ctx, "optimize topology", nil, func(id fsm.CallID) fsm.Event { return fsm.CallOptimize{Call: id} })
	return err
}
