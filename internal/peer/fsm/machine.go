package fsm

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// flow is the phase-changing call in progress. A background flow answers no
// call: it is the round that others expect after the caller gave up.
type flow struct {
	kind       kind
	call       CallID
	background bool
	step       step

	voted     bool        // C2M 2 is out, or was
	accept    bool        // flavour of C2M 2
	failed    bool        // this peer reported failure in the round
	unreached []wire.UUID // ... because of these
	far       bool        // a neighbour is far away
	decision  uint64      // of the round or the election
	cause     error

	sync    CallSync
	query   uint64 // questions after waiting peers that were asked before it
	verdict wire.M2CSyncSharedState
	result  SyncResult

	asked    []wire.BandwidthRequest
	reported []bool

	// Of probes that the master schedules.
	scheduled bool
	through   bool           // M2C 68 came
	working   uint64         // the round that is being worked on, 0: none
	target    wire.UUID      // ... which measures the link to it
	sending   bool           // its SendProbe was emitted
	next      *wire.M2CProbe // came while the one before was worked on
}

// occupied reports whether work of the shell is under way whose end answers
// the call.
func (f *flow) occupied() bool {
	return f.step == stepFetching || f.step == stepProbing && (!f.scheduled || f.working != 0)
}

// endFlow returns the phase-changing call, which is through.
func (m *Machine) endFlow() *flow {
	f := m.flow
	f.to(stepNone)
	m.flow = nil
	return f
}

// Machine is one peer's session. It is not safe for concurrent use.
type Machine struct {
	cfg    Config
	now    time.Duration
	status status
	ended  error // why the session is over, wraps a code
	view   View
	out    []Effect

	flow     *flow
	ops      []*operation // in launch order: unsettled, or settled and not yet awaited
	canceled []OpID       // canceled before they were awaited
	question
	repairs
	postponed
	closing
	leaving    CallID      // a CallLeave that waits for the master, 0: none
	dropReason string      // why the master drops this peer
	dropped    []wire.UUID // members of the ring that the master has named as gone

	peers []wire.PeerEndpoint // the last list the master sent, in any M2C 2
	ways  []wire.PeerEndpoint // others that the plans in force need
	round uint64

	preflights int          // under way
	prep       *preparation // of the ring to come
	unneeded   bool         // connections of rings before this one are there still
	mesh       mesh

	epoch     uint64 // of the group if all members can begin eagerly, 0 otherwise
	nextEpoch uint64 // of the round that runs
	lent      uint64 // bytes of eager operations without a commence
	// failedTags are those of the operations that have failed in this epoch: what
	// is left of them may still come, and their successors take nothing early.
	failedTags map[uint64]bool

	live   liveness
	resume resumption
}

// repairs are rounds that are still to be run.
type repairs struct {
	roundDue   bool       // an operation failed and no round was completed since
	unrepaired *operation // has failed, and its await is answered with the round that is due
	owed       bool       // a round is due that no await runs
}

// postponed are calls that wait for what goes on in the background.
type postponed struct {
	deferred []Event
	draining bool // the first is taken up
}

// closing are the calls that close the session.
type closing struct {
	closers []CallID
	closeBy time.Duration // they wait until then at most, 0: for nothing
}

// question is the one whether newcomers wait.
type question struct {
	asking   bool     // C2M 4 is out
	answered bool     // ... was answered when no call waited for it; the next call gets
	answer   bool     // this
	query    uint64   // number of the last one
	pending  []CallID // calls that share its answer
}

// New returns the machine of a peer whose TCP connection to the master stands
// and over which nothing was sent.
func New(cfg Config) *Machine {
	if cfg.MaxWithPCCL <= 0 {
		cfg.MaxWithPCCL = 16
	}
	return &Machine{cfg: cfg, view: View{facts: facts{Rank: -1}}, failedTags: map[uint64]bool{}}
}

// Step takes one event in and returns what is to be done, in order. now is the
// time since any fixed point and never goes back. What it returns is valid until
// the next Step; the slices in the effects are the caller's, but for rings, which
// are shared and never changed.
func (m *Machine) Step(now time.Duration, ev Event) []Effect {
	clear(m.out)
	m.out = m.out[:0]
	m.observe(now)
	m.handle(ev)
	m.closeNow()
	m.draining = true
	for len(m.deferred) > 0 && !m.blocked(m.deferred[0]) {
		next := m.deferred[0]
		m.deferred = m.deferred[1:]
		m.handle(next)
	}
	m.draining = false
	m.answerClosers()
	return m.out
}

// View returns what attributes show.
func (m *Machine) View() View { return m.view }

// Shows reports whether v is what attributes show.
func (m *Machine) Shows(v *View) bool { return m.view.Same(v) }

func (m *Machine) emit(e Effect) { m.out = append(m.out, e) }

// send tells the master. Without one it is the next report that does.
func (m *Machine) send(p wire.Packet) {
	if m.status != statusDetached {
		m.emit(Send{Packet: p})
	}
}

func (m *Machine) done(call CallID, err error) { m.emit(Done{Call: call, Err: err}) }

func (m *Machine) log(warn bool, peer wire.UUID, text string) {
	m.emit(Log{Warn: warn, Peer: peer, Text: text})
}

// native reports whether all in the group, the master included, are gopccl.
func (m *Machine) native() bool { return m.view.Native && m.view.MasterNative }

func (m *Machine) handle(ev Event) {
	switch ev := ev.(type) {
	case CallConnect:
		m.connect(ev)
	case CallUpdate, CallOptimize, CallSync:
		m.changePhase(ev)
	case AskSync:
		m.askSync(ev)
	case CallPending:
		m.askPending(ev)
	case CallCollective:
		m.launch(ev)
	case CallAwait:
		m.await(ev)
	case CallCancel:
		m.cancel(ev)
	case CallMesh:
		m.askMesh(ev)
	case CallLeave:
		m.leave(ev)
	case CallClose:
		m.close(ev)
	case PacketIn:
		m.packet(ev.Packet)
	case MasterGone:
		m.masterGone(ev.Err)
	case Alive:
		m.live.heard = m.now
	case Attached:
		m.attached(ev)
	case LinkEnded:
		m.linkEnded(ev.Peer, ev.Incoming)
	case NotAttached:
		m.notAttached(nil)
	case Established:
		m.established(ev)
	case DataEnded:
		m.dataEnded(ev)
	case Fetched:
		m.fetched(ev)
	case Measured:
		m.measured(ev)
	case ProbesDone:
		m.probesDone(ev)
	case ProbeReady:
		m.probeReady(ev)
	case Probed:
		m.probed(ev)
	case RingPrepared:
		m.ringPrepared(ev)
	case MeshPrepared:
		m.meshPrepared(ev)
	case Preflighted:
		m.preflighted(ev)
	case LinkUsed:
		if m.status == statusLive && m.view.Connected && m.view.MasterTopology {
			m.send(wire.C2MLinkReport{To: ev.To, Mbps: ev.Mbps, Busy: ev.Busy})
		}
	case RatesSeen:
		if m.status == statusLive && m.view.Connected && m.view.MasterRates {
			m.send(ev.Rates)
		}
	case Tick:
		m.tick()
	}
}

// packet hands a packet of the master to its rule.
func (m *Machine) packet(p wire.Packet) {
	if m.status == statusOver || m.status == statusDetached {
		return
	}
	if m.status == statusFresh || p == nil || p.Proto() != wire.M2C {
		m.illegal(p)
		return
	}
	m.live.heard = m.now
	at := stepNone
	if m.flow != nil {
		at = m.flow.step
	}
	if _, alive := p.(wire.M2CHeartbeat); alive {
		return
	}
	if at == stepRegister && !at.waitsFor(p.ID()) {
		m.illegal(p)
		return
	}
	switch p := p.(type) {
	case wire.M2CPeerDropped, wire.M2CNames:
		m.news(p)
		return
	case wire.M2CRevocations:
		if !m.cfg.Secure {
			m.illegal(p)
			return
		}
		m.emit(Revocations{DER: p.DER})
		return
	case wire.M2CPeersPendingResponse:
		m.pendingAnswer(p)
		return
	case wire.M2CCollectiveCommsCommence:
		m.commence(p)
		return
	case wire.M2CCollectiveCommsAbort:
		m.verdict(p)
		return
	case wire.M2CCollectiveCommsComplete:
		m.complete(p)
		return
	case wire.M2CProbe, wire.M2CProbeGo, wire.M2CProbesDone:
		if !m.scheduledPacket(p) {
			m.illegal(p)
		}
		return
	case wire.M2CPrepareRing, wire.M2CSwitchRing, wire.M2CPrepareMesh, wire.M2CMesh, wire.M2CPreflight,
		wire.M2CPrepareLeave, wire.M2CRingWithout, wire.M2CLeaveAnswer, wire.M2CResumed, wire.M2CReportAgain, wire.M2CLeaving,
		wire.M2CAskResult, wire.M2CResult, wire.M2CGivenUp:
		if !m.beside(p) {
			m.illegal(p)
		}
		return
	case wire.M2CP2PConnectionInfo:
		if at != stepInfo {
			// PCCL's master sends two when the last accepted client leaves
			// (quirk Q8). The peers that it lists still count as sent.
			if m.rememberPeers(p) {
				m.log(true, wire.UUID{}, "connection info outside a round ignored")
			}
			return
		}
	}
	if !at.waitsFor(p.ID()) {
		m.illegal(p)
		return
	}
	switch p := p.(type) {
	case wire.M2CSessionRegistrationResponse:
		m.registered(p)
	case wire.M2CP2PConnectionInfo:
		m.roundOpened(p)
	case wire.M2CP2PConnectionsEstablished:
		m.roundEnded(p)
	case wire.M2COptimizeTopologyResponse:
		m.probe(p)
	case wire.M2COptimizeTopologyComplete:
		m.optimized(p)
	case wire.M2CSyncSharedState:
		m.elected(p)
	case wire.M2CSyncSharedStateComplete:
		m.synced(p)
	default:
		m.illegal(p)
	}
}

// beside takes a packet about what is changed, or passed on, beside whatever runs; false if it
// is not allowed now.
func (m *Machine) beside(p wire.Packet) bool {
	switch p := p.(type) {
	case wire.M2CPrepareRing:
		return m.prepareRing(p, wire.UUID{}, 0)
	case wire.M2CSwitchRing:
		return m.switchRing(p)
	case wire.M2CPrepareMesh:
		return m.prepareMesh(p)
	case wire.M2CMesh:
		return m.takeMesh(p)
	case wire.M2CPreflight:
		return m.preflight(p)
	case wire.M2CPrepareLeave:
		return m.prepareLeave(p)
	case wire.M2CRingWithout:
		return m.ringWithout(p)
	case wire.M2CLeaveAnswer:
		return m.leaveAnswer(p)
	case wire.M2CResumed:
		return m.resumed()
	case wire.M2CReportAgain:
		return m.reportAgain()
	case wire.M2CLeaving:
		return m.masterLeaves(p)
	case wire.M2CAskResult:
		return m.askResult(p)
	case wire.M2CResult:
		return m.takeResult(p)
	case wire.M2CGivenUp:
		return m.givenUp(p)
	}
	return false
}

// news takes what the master tells about members.
func (m *Machine) news(p wire.Packet) {
	switch p := p.(type) {
	case wire.M2CPeerDropped:
		m.peerDropped(p)
	case wire.M2CNames:
		m.emit(Names{Members: p.Members})
	}
}

// peerDropped remembers who left, for the errors of operations in flight.
func (m *Machine) peerDropped(p wire.M2CPeerDropped) {
	if p.UUID == m.view.UUID {
		m.dropReason = p.Reason // the end of the connection follows
		return
	}
	m.view.LastDropped = lostPeer{p.UUID, p.Addr}.String()
	if slices.Contains(m.view.Ring, p.UUID) && !slices.Contains(m.dropped, p.UUID) {
		m.dropped = append(m.dropped, p.UUID)
	}
	text := "peer dropped"
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	m.log(true, p.UUID, text)
	if p.Group != m.cfg.Group {
		return
	}
	m.emit(PeerLeft{Peer: p.UUID})
	for _, op := range m.ops {
		if op.state != opSettled {
			op.lost = append(op.lost, lostPeer{p.UUID, p.Addr})
		}
	}
}
