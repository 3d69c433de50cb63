// Package failover kills the master of a small run after every event that it takes,
// with every set of peers that hear what it said last, and has another one take over:
// the real machines of master and peers, in memory, in virtual time. No call of a peer
// may fail, and no peer may be told something else than another one.
package failover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// patience bounds the virtual time of a run.
	patience = time.Minute
	// mostSteps bounds the deliveries of a run.
	mostSteps = 20000
)

// kill says when a master ends: after it has taken so many events. Its last words, and
// what was on the way before, reach the peers in hears alone; what was on the way to
// it is lost.
type kill struct {
	after int
	hears uint // bit i: peer i
	words int  // ... that many packets at most; 0: all
	late  int  // the peer that finds the next master a second after the others; -1: none
}

// run is one play of a scenario.
type run struct {
	plan  scenario
	now   time.Duration
	kills []kill // to come, in order

	master  *mfsm.Machine
	term    uint32
	taken   int // events of this master
	last    registry
	clients map[mfsm.ClientID]*peer
	nextID  mfsm.ClientID
	uuids   uint64
	answers []mfsm.Event // to the master, from its shell
	making  []mfsm.MakePlans

	peers []*peer
	turn  int            // of the peers
	seqs  map[uint64]use // numbers of collectives that were given out
	flows map[use]*data
	loud  bool // keep a trace
	trace []string
	wrong error
}

// use is the nth collective with a tag.
type use struct{ tag, nth uint64 }

// data is the data phase of a collective among the peers.
type data struct {
	begun int  // members
	bound int  // of them, those that are large and have not heard of their commence
	ended bool // all have begun, and none has a bound
}

// peer is a peer machine and the program on top of it.
type peer struct {
	r  *run
	id int
	m  *pfsm.Machine

	client   mfsm.ClientID // 0: no connection
	up, down []wire.Packet
	redial   time.Duration // when to look for a master, if looking
	looking  bool
	hello    wire.C2MRequestSessionRegistration
	greeting bool // waits for M2C 1 on a connection that was dialled again

	program []call
	at      int
	waits   pfsm.CallID // the call under way, 0: none
	calls   pfsm.CallID
	ops     map[uint64]pfsm.OpID // by tag, that are not awaited
	nextOp  pfsm.OpID
	uses    map[uint64]uint64
	useOf   map[pfsm.OpID]use
	running map[pfsm.OpID]bool // data phases
	bound   map[pfsm.OpID]bool // of them, those that wait for their commence
	answers []bool             // to queries
	events  []pfsm.Event
	over    bool
	probe   uint64      // that was prepared last
	names   []wire.UUID // of whom it has been told the names
	opening []*opening
	meshed  bool
}

var errStopped = errors.New("stopped")

// call is a step of a program: what it does, and with which tag or revision.
type call struct {
	what string
	n    uint64
}

// scenario is what the peers of a run do.
type scenario struct {
	name     string
	eager    bool
	switches bool
	far      bool // the peers are from each other, so that they have other plans than the ring
	programs [][]call
}

// ways are the round trips to peers.
func (s *scenario) ways(peers []wire.UUID) (list []wire.Way) {
	for _, u := range peers {
		if s.far {
			list = append(list, wire.Way{To: u, RTT: 80_000})
		}
	}
	return list
}

func newRun(plan scenario, loud bool, kills ...kill) *run {
	r := &run{plan: plan, kills: kills, loud: loud, seqs: map[uint64]use{}, flows: map[use]*data{}}
	r.startMaster()
	for i, program := range plan.programs {
		p := &peer{
			r: r, id: i, program: program, ops: map[uint64]pfsm.OpID{}, uses: map[uint64]uint64{}, useOf: map[pfsm.OpID]use{}, running: map[pfsm.OpID]bool{}, bound: map[pfsm.OpID]bool{},
		}
		cfg := pfsm.Config{
			P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, ReattachTimeout: 30 * time.Second,
			HeartbeatInterval: time.Second, HeartbeatTimeout: 8 * time.Second,
		}
		if plan.eager {
			cfg.EagerBytes = 1 << 20
		}
		cfg.Secure = inTLS
		p.m = pfsm.New(cfg)
		r.peers = append(r.peers, p)
		p.connect()
	}
	return r
}

func (r *run) tracef(format string, args ...any) {
	if r.loud {
		r.trace = append(r.trace, fmt.Sprintf("%v ", r.now)+fmt.Sprintf(format, args...))
	}
}

func (r *run) fail(format string, args ...any) {
	if r.wrong == nil {
		r.wrong = fmt.Errorf(format, args...)
		r.tracef("WRONG: %v", r.wrong)
	}
}

func (r *run) newUUID() (u wire.UUID) {
	r.uuids++
	binary.BigEndian.PutUint64(u[:], r.uuids<<32)
	return u
}

// connect opens a connection to the master.
func (p *peer) connect() {
	r := p.r
	r.nextID++
	p.client = r.nextID
	p.up, p.down = nil, nil
	r.clients[p.client] = p
	r.toMaster(mfsm.Connected{Client: p.client, Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(p.id + 1)}), 9), Who: p.who()})
}

// toMaster has the master take an event. It may end with it.
func (r *run) toMaster(ev mfsm.Event) {
	for _, e := range r.master.Step(r.now, ev) {
		switch e := e.(type) {
		case mfsm.Send:
			if p := r.clients[e.Client]; p != nil {
				r.tracef("  master to %d: %T %+v", p.id, e.Packet, e.Packet)
				p.down = append(p.down, e.Packet)
			}
		case mfsm.Close:
			if p := r.clients[e.Client]; p != nil {
				r.tracef("  master closes %d: %s", p.id, e.Reason)
				r.fail("the master closes peer %d: %s", p.id, e.Reason)
			}
		case mfsm.Log:
			r.tracef("  master: %s %s", e.Fact.Kind, e.Fact.Text)
		default:
			r.answerMaster(e)
		}
	}
	r.taken++
	if len(r.kills) > 0 && r.kills[0].after == r.taken {
		k := r.kills[0]
		r.kills = r.kills[1:]
		r.killMaster(k)
	}
}

// killMaster ends the master, and starts another one.
func (r *run) killMaster(k kill) {
	r.tracef("KILL after %d, heard by %03b, %d is late", k.after, k.hears, k.late)
	gone := r.clients
	r.startMaster()
	for i, p := range r.peers {
		if gone[p.client] != p {
			continue
		}
		p.client, p.up = 0, nil
		if k.hears&(1<<i) != 0 {
			for n := 0; len(p.down) > 0 && !p.over && (n < k.words || k.words == 0); n++ {
				p.take()
			}
		}
		p.down = nil
		if p.greeting {
			p.greeting = false
			p.step(pfsm.NotAttached{})
		} else {
			p.step(pfsm.MasterGone{})
		}
		if i == k.late {
			p.redial = max(p.redial, r.now+time.Second)
		}
	}
}

// take has the peer take the next packet of its master.
func (p *peer) take() {
	q := p.down[0]
	p.down = p.down[1:]
	if p.greeting {
		p.greeting = false
		if x, ok := q.(wire.M2CSessionRegistrationResponse); ok {
			p.step(pfsm.Attached{Packet: x})
			return
		}
		p.r.fail("peer %d is greeted with %T", p.id, q)
		return
	}
	p.step(pfsm.PacketIn{Packet: q})
}

// step has the peer take an event, and carries out what follows.
func (p *peer) step(ev pfsm.Event) {
	r := p.r
	if r.wrong != nil {
		return
	}
	r.tracef("peer %d: %T %+v", p.id, ev, ev)
	for _, e := range p.m.Step(r.now, ev) {
		switch e := e.(type) {
		case pfsm.Send:
			p.up = append(p.up, e.Packet)
		case pfsm.Reattach:
			p.looking, p.redial, p.hello = true, r.now+e.After, e.Hello
			p.client = 0
		case pfsm.Disconnect:
			p.over = true
			r.fail("the session of peer %d ends: %s", p.id, e.Reason)
		case pfsm.Done:
			p.done(e)
		case pfsm.Log:
			r.tracef("  peer %d: %s", p.id, e.Text)
		default:
			p.work(e)
		}
	}
}

// work does what the machine wants from its shell.
func (p *peer) work(e pfsm.Effect) {
	r := p.r
	later := func(ev pfsm.Event) { p.events = append(p.events, ev) }
	switch e := e.(type) {
	case pfsm.Establish:
		p.opens(e.Peers, func(f []wire.UUID) pfsm.Event { return pfsm.Established{Round: e.Round, Failed: f} })
	case pfsm.PrepareRing:
		p.opens(e.Peers, func(f []wire.UUID) pfsm.Event { return pfsm.RingPrepared{Change: e.Change, Failed: f} })
	case pfsm.PrepareMesh:
		p.opens(e.Peers, func(f []wire.UUID) pfsm.Event {
			return pfsm.MeshPrepared{Change: e.Change, Failed: f, Ways: r.plan.ways(e.Ways)}
		})
	case pfsm.MeshSettled:
		p.meshed = e.Direct
	case pfsm.Names:
		p.told(e)
	case pfsm.Preflight:
		later(pfsm.Preflighted{Number: e.Number})
	case pfsm.Fetch:
		later(pfsm.Fetched{Call: e.Call, Revision: p.program[p.at].n})
	case pfsm.Probe:
		for _, q := range e.Requests {
			later(pfsm.Measured{Call: e.Call, To: q.To, Mbps: 100})
		}
		later(pfsm.ProbesDone{Call: e.Call})
	case pfsm.PrepareProbe:
		p.probe = e.Round
		later(pfsm.ProbeReady{Round: e.Round})
	case pfsm.SendProbe:
		later(pfsm.Probed{Round: e.Round, Mbps: 100})
	case pfsm.StopProbe:
		later(pfsm.Probed{Round: p.probe, Err: errStopped})
	case pfsm.StartData:
		u := p.useOf[e.Op]
		p.running[e.Op] = true
		if !e.Eager {
			r.number(e.Seq, u)
		}
		if r.flows[u] == nil {
			r.flows[u] = &data{}
		}
		if r.flows[u].begun++; r.flows[u].begun > len(e.Ring) {
			r.fail("collective %v begins more often than it has members", u)
		}
		if p.bound[e.Op] = e.Ahead > 0; p.bound[e.Op] {
			r.flows[u].bound++
		}
		r.flows[u].whole(len(e.Ring))
	case pfsm.CommenceData:
		u := p.useOf[e.Op]
		r.number(e.Seq, u)
		if p.bound[e.Op] {
			delete(p.bound, e.Op)
			r.flows[u].bound--
		}
		r.flows[u].whole(len(p.m.View().Ring))
	case pfsm.AbortData:
		r.fail("a collective of peer %d is aborted: %s", p.id, e.Reason)
	}
}

// whole notes whether all of n members can have all of the data.
func (d *data) whole(n int) { d.ended = d.begun == n && d.bound == 0 }

// number notes the sequence number of a collective, which no other one has.
func (r *run) number(seq uint64, u use) {
	if v, used := r.seqs[seq]; used && v != u {
		r.fail("number %d is that of %v and of %v", seq, v, u)
	}
	for s, v := range r.seqs {
		if v == u && s != seq {
			r.fail("%v has the numbers %d and %d", u, s, seq)
		}
	}
	r.seqs[seq] = u
}

// done takes the answer of a call.
func (p *peer) done(e pfsm.Done) {
	if e.Err != nil {
		p.r.fail("call %q of peer %d fails: %v", p.program[p.at].what, p.id, e.Err)
		return
	}
	if p.waits != e.Call {
		return
	}
	p.waits = 0
	if p.program[p.at].what == "settle" && !p.settled() {
		return
	}
	if p.program[p.at].what == "pending" {
		p.answers = append(p.answers, e.Pending)
	}
	p.at++
}

// work of the program: its next call, false if it waits or is through.
func (p *peer) proceed() bool {
	if p.waits != 0 || p.at == len(p.program) || p.over {
		return false
	}
	if p.program[p.at].what == "planned" {
		if p.meshed && p.m.View().Direct.Most == 0 {
			return false
		}
		p.at++
		return true
	}
	if p.program[p.at].what == "settle" && p.settled() {
		p.at++
		return true
	}
	p.calls++
	c, id := p.program[p.at], p.calls
	p.waits = id
	switch c.what {
	case "connect":
		p.step(pfsm.CallConnect{Call: id})
	case "update", "settle":
		p.step(pfsm.CallUpdate{Call: id})
	case "pending":
		p.step(pfsm.CallPending{Call: id})
	case "optimize":
		p.step(pfsm.CallOptimize{Call: id})
	case "mesh":
		p.step(pfsm.CallMesh{Call: id})
	case "sync":
		hash := uint64(7)
		if p.id == 2 {
			hash = 8 // it fetches
		}
		p.step(pfsm.CallSync{Call: id, Revision: c.n, Entries: []wire.StateEntry{{Key: "w", Hash: hash, DType: dtype.Float32}}})
	case "reduce", "large", "barrier", "gather", "exchange":
		p.nextOp++
		p.ops[c.n] = p.nextOp
		p.uses[c.n]++
		p.useOf[p.nextOp] = use{c.n, p.uses[c.n]}
		ev := pfsm.CallCollective{Call: id, Op: p.nextOp, Tag: c.n, Count: 8, DType: dtype.Float32, RedOp: dtype.Sum}
		switch c.what {
		case "large":
			ev.Count, ev.Far = 4<<20, true
		case "barrier":
			ev.Vote, ev.Count = wire.Call{Kind: 8}, 0
		case "gather":
			ev.Vote, ev.Sends = wire.Call{Kind: 1, Digest: 1}, 32
		case "exchange":
			ev.Vote, ev.Sends = wire.Call{Kind: 7, Flags: wire.CallMesh, Digest: 1}, 64
		}
		p.step(ev)
	case "await":
		op := p.ops[c.n]
		delete(p.ops, c.n)
		p.step(pfsm.CallAwait{Call: id, Op: op})
	default:
		panic(c.what)
	}
	return true
}

// settled reports whether everybody is a member for the peer.
func (p *peer) settled() bool { return p.m.View().LocalWorldSize == len(p.r.peers) }

// formed reports whether everybody is a member for every peer.
func (r *run) formed() bool {
	return !slices.ContainsFunc(r.peers, func(p *peer) bool { return p.at < len(p.program) && p.at < 2 })
}

// play runs the scenario to its end.
func (r *run) play() error {
	for range mostSteps {
		if r.wrong != nil || r.once() {
			continue
		}
		if r.over() {
			break
		}
		if !r.wait() {
			r.fail("nothing moves any more")
		}
		if r.now > patience {
			r.fail("it takes longer than %v", patience)
		}
	}
	if r.wrong == nil && !r.over() {
		r.fail("it goes on for ever")
	}
	r.check()
	return r.wrong
}

// over reports whether all programs are through.
func (r *run) over() bool {
	return !slices.ContainsFunc(r.peers, func(p *peer) bool { return p.at < len(p.program) })
}

// once moves one thing on: false if nothing can move now.
func (r *run) once() bool {
	if len(r.answers) > 0 {
		ev := r.answers[0]
		r.answers = r.answers[1:]
		r.toMaster(ev)
		return true
	}
	r.turn++
	if len(r.making) > 0 && r.turn%16 == 0 {
		e := r.making[0]
		r.making = r.making[1:]
		r.toMaster(mfsm.PlansMade{Job: e.Job, Direct: e.Basis.Make(nil)})
		return true
	}
	for i := range r.peers {
		p := r.peers[(r.turn+i)%len(r.peers)]
		switch {
		case len(p.down) > 0:
			p.take()
			return true
		case len(p.up) > 0 && p.client != 0 && !p.greeting:
			q := p.up[0]
			p.up = p.up[1:]
			r.tracef("%d to master: %T %+v", p.id, q, q)
			r.toMaster(mfsm.PacketIn{Client: p.client, Packet: q})
			return true
		case len(p.events) > 0:
			ev := p.events[0]
			p.events = p.events[1:]
			p.step(ev)
			return true
		case p.looking && r.now >= p.redial:
			p.looking, p.greeting = false, true
			hello := p.hello
			p.connect()
			if id := p.client; id != 0 && p.greeting {
				r.tracef("%d to master: %+v", p.id, hello)
				r.toMaster(mfsm.PacketIn{Client: id, Packet: hello})
			}
			return true
		case p.opened(), p.proceed(), p.moveData():
			return true
		}
	}
	return len(r.making) > 0
}

// moveData ends a data phase that all have begun.
func (p *peer) moveData() bool {
	for op := pfsm.OpID(1); op <= p.nextOp; op++ {
		if p.running[op] && p.r.flows[p.useOf[op]].ended {
			delete(p.running, op)
			p.step(pfsm.DataEnded{Op: op})
			return true
		}
	}
	return false
}

// wait lets time pass until something is due.
func (r *run) wait() bool {
	due, any := r.master.Deadline()
	sooner := func(t time.Duration) {
		if !any || t < due {
			due, any = t, true
		}
	}
	for _, p := range r.peers {
		if t, ok := p.m.Deadline(); ok {
			sooner(t)
		}
		if p.looking {
			sooner(p.redial)
		}
	}
	if !any {
		return false
	}
	r.now = max(r.now, due)
	if t, ok := r.master.Deadline(); ok && t <= r.now {
		r.toMaster(mfsm.Tick{})
	}
	for _, p := range r.peers {
		if t, ok := p.m.Deadline(); ok && t <= r.now {
			p.step(pfsm.Tick{})
		}
	}
	return true
}

// check compares what the peers were told.
func (r *run) check() {
	if r.wrong != nil {
		return
	}
	first := r.peers[0].m.View()
	for _, p := range r.peers {
		v := p.m.View()
		if !slices.Equal(v.Ring, first.Ring) || len(v.Ring) != len(r.peers) || v.Ring[v.Rank] != v.UUID || v.GlobalWorldSize != len(r.peers) {
			r.fail("peer %d has the ring %v and world %d, peer 0 %v", p.id, v.Ring, v.GlobalWorldSize, first.Ring)
		}
		if v.Direct != first.Direct {
			r.fail("peer %d has the plans %+v, peer 0 %+v", p.id, v.Direct, first.Direct)
		}
		if !slices.Equal(p.answers, r.peers[0].answers) {
			r.fail("answers of peer %d are %v, of peer 0 %v", p.id, p.answers, r.peers[0].answers)
		}
	}
	if int(r.uuids) != len(r.peers) && r.term == 0 {
		r.fail("%d uuids for %d peers", r.uuids, len(r.peers))
	}
}
