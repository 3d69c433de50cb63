package fsm

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/wire"
)

// chooser draws small numbers: from rapid, or from the bytes of a fuzzer.
type chooser interface{ below(n int) int }

type rapidChooser struct{ t *rapid.T }

func (c rapidChooser) below(n int) int { return rapid.IntRange(0, n-1).Draw(c.t, "n") }

type byteChooser struct{ b []byte }

func (c *byteChooser) below(n int) int {
	if len(c.b) == 0 {
		return 0
	}
	v := int(c.b[0])
	c.b = c.b[1:]
	return v % n
}

// chaos drives two machines with the same random events and watches what the
// first one says.
type chaos struct {
	t       require.TestingT
	c       chooser
	m, twin *Machine
	now     time.Duration
	next    ClientID
	alive   []ClientID
	native  map[ClientID]bool
	ids     map[ClientID]wire.UUID
	solves  []Solve
	seen    map[ClientID]*watch
	tries   []attempt
}

// watch is what one client knows.
type watch struct {
	round, failed bool            // M2C 2 without M2C 3; reported failure in it
	ops           map[uint64]byte // 'v' voted, 'p' commenced, 'a' verdict known
	done          map[uint64]bool // M2C 11 was sent by the client
}

func newChaos(t require.TestingT, c chooser, cfg Config) *chaos {
	a, b := cfg, cfg
	a.NewUUID, b.NewUUID = counting(), counting()
	return &chaos{
		t: t, c: c, m: New(a), twin: New(b), native: map[ClientID]bool{},
		ids: map[ClientID]wire.UUID{}, seen: map[ClientID]*watch{},
	}
}

func (h *chaos) step(ev Event) {
	out := h.m.Step(h.now, ev)
	// The same events give the same effects.
	if other := h.twin.Step(h.now, ev); !reflect.DeepEqual(out, other) && fmt.Sprint(out) != fmt.Sprint(other) {
		require.Equal(h.t, out, other)
	}
	for _, e := range out {
		switch e := e.(type) {
		case Send:
			h.sent(e)
		case Close:
			h.drop(e.Client)
		case Solve:
			h.solves = append(h.solves, e)
		}
	}
}

func (h *chaos) drop(c ClientID) {
	for i, a := range h.alive {
		if a == c {
			h.alive = slices.Delete(h.alive, i, i+1)
			break
		}
	}
	delete(h.seen, c)
}

// sent checks what may be sent to whom, and when (control spec, sections 7, 11).
func (h *chaos) sent(e Send) {
	w := h.seen[e.Client]
	require.NotNil(h.t, w, "%T to a client that is gone", e.Packet)
	if !h.native[e.Client] {
		plain := wire.AppendBody(nil, e.Packet)
		require.Less(h.t, int(e.Packet.ID()), 64, "a capability packet to a PCCL peer")
		p, err := wire.Decode(wire.M2C, e.Packet.ID(), plain)
		require.NoError(h.t, err)
		require.Equal(h.t, plain, wire.AppendBody(nil, p))
		require.NotContains(h.t, string(plain), "gopccl", "an extension to a PCCL peer")
	}
	switch p := e.Packet.(type) {
	case wire.M2CPreflight:
		h.tries = append(h.tries, attempt{e.Client, p})
	case wire.M2CSessionRegistrationResponse:
		if p.Accepted {
			h.ids[e.Client] = p.UUID
		}
	case wire.M2CP2PConnectionInfo:
		require.False(h.t, w.round, "M2C 2 twice")
		w.round, w.failed = true, false
	case wire.M2CP2PConnectionsEstablished:
		require.True(h.t, w.round, "M2C 3 without M2C 2")
		require.False(h.t, p.Success && w.failed, "success to a peer that reported failure (quirk Q55)")
		require.Contains(h.t, p.Ring, h.ids[e.Client])
		w.round = false
	case wire.M2CCollectiveCommsCommence:
		require.EqualValues(h.t, 'v', w.ops[p.Tag], "M2C 9 for tag %d", p.Tag)
		w.ops[p.Tag] = 'p'
	case wire.M2CCollectiveCommsAbort:
		require.EqualValues(h.t, 'p', w.ops[p.Tag], "M2C 11 for tag %d", p.Tag)
		w.ops[p.Tag] = 'a'
	case wire.M2CCollectiveCommsComplete:
		require.EqualValues(h.t, 'a', w.ops[p.Tag], "M2C 10 for tag %d", p.Tag)
		require.True(h.t, w.done[p.Tag], "M2C 10 before the client's M2C 11")
		delete(w.ops, p.Tag)
		delete(w.done, p.Tag)
	}
}

func (h *chaos) connect(addr string) ClientID {
	h.next++
	h.alive = append(h.alive, h.next)
	h.seen[h.next] = &watch{ops: map[uint64]byte{}, done: map[uint64]bool{}}
	h.step(Connected{Client: h.next, Remote: netip.MustParseAddrPort(addr)})
	return h.next
}

func (h *chaos) register(native bool, group uint32) ClientID {
	c := h.connect(fmt.Sprintf("127.0.0.1:%d", 1000+h.next))
	h.native[c] = native
	p := wire.C2MRequestSessionRegistration{P2PPort: uint16(h.c.below(40)), SharedStatePort: 2, BenchmarkPort: 3, PeerGroup: group}
	if native {
		p.Ext = wire.Ext{Native: true, HeartbeatInterval: time.Second, HeartbeatTimeout: time.Second, Topology: h.c.below(2) == 0, Preflight: h.c.below(2) == 0}
	}
	h.send(c, p)
	return c
}

// send sends and keeps the books that sent checks.
func (h *chaos) send(c ClientID, p wire.Packet) {
	if w := h.seen[c]; w != nil {
		switch p := p.(type) {
		case wire.C2MP2PConnectionsEstablished:
			w.failed = w.round && !p.Success
		case wire.C2MCollectiveCommsInitiate:
			if w.ops[p.Tag] == 0 {
				w.ops[p.Tag] = 'v'
			}
		case wire.C2MCollectiveCommsComplete:
			w.done[p.Tag] = true
		}
	}
	h.step(PacketIn{c, p})
}

func (h *chaos) info(c ClientID) (ClientInfo, bool) {
	for _, i := range h.m.Snapshot().Clients {
		if i.ID == c {
			return i, true
		}
	}
	return ClientInfo{}, false
}

func (h *chaos) entries() (es []wire.StateEntry) {
	for i := range 1 + h.c.below(3) {
		e := entry(string(rune('a'+i)), uint64(h.c.below(3)))
		if h.c.below(16) == 0 {
			e.Key = "odd"
		}
		es = append(es, e)
	}
	return es
}

func (h *chaos) names() (us []wire.UUID) {
	for range h.c.below(3) {
		if len(h.alive) > 0 {
			us = append(us, h.ids[h.alive[h.c.below(len(h.alive))]])
		}
	}
	return us
}

// plausible draws a packet that client c may send in its state.
func (h *chaos) plausible(c ClientID, i ClientInfo, next uint64) wire.Packet {
	switch i.State {
	case Connecting:
		if h.c.below(8) == 0 {
			return wire.C2MP2PConnectionsEstablished{FailedPeers: h.names()}
		}
		return connected
	case Optimizing:
		if h.native[c] && h.c.below(2) == 0 {
			return wire.C2MProbeState{
				Round: h.m.numbers.probes + uint64(h.c.below(4)/3), State: wire.ProbeState(h.c.below(7)),
				Mbps: []float64{10, 20, math.NaN(), -1}[h.c.below(4)], Late: uint32(h.c.below(5)),
			}
		}
		if us := h.names(); len(us) > 0 {
			return wire.C2MReportPeerBandwidth{To: us[0], Mbps: []float64{10, 20, math.NaN(), -1}[h.c.below(4)]}
		}
		return wire.C2MOptimizeTopologyWorkComplete{}
	case Distribute, Request:
		return wire.C2MDistSharedStateComplete{Ext: wire.Ext{Failed: h.native[c] && h.c.below(4) == 0}}
	}
	if i.Phase == Registered {
		return wire.C2MReportPeerBandwidth{Mbps: 1}
	}
	if i.State == Idle || i.State == ConnectFailed || i.State == Collective {
		for _, o := range i.Collectives {
			if o.State == Perform && h.c.below(2) == 0 {
				return complete(o.Tag, h.c.below(6) == 0)
			}
		}
	}
	if !i.Pending && h.c.below(12) == 0 {
		return wire.C2MCheckPeersPending{}
	}
	switch i.State {
	case ConnectFailed:
		return wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: h.c.below(2) == 0}
	case Idle:
		switch h.c.below(8) {
		case 0, 1:
			return wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: h.c.below(4) > 0}
		case 2:
			return wire.C2MOptimizeTopology{}
		case 3:
			v := syncVoteOf(next+uint64(h.c.below(2)), wire.Strategy(h.c.below(4)), h.entries()...)
			v.Ext.Torn = h.c.below(8) == 0
			return v
		}
		fallthrough
	case Collective:
		p := initiate(uint64(h.c.below(4)))
		for _, o := range i.Collectives {
			if o.Tag == p.Tag {
				return nil
			}
		}
		if h.c.below(16) == 0 {
			p.DType = dtype.Int8
		}
		return p
	}
	return nil
}

// wild draws any packet.
func (h *chaos) wild() wire.Packet {
	p := everyPacket[h.c.below(len(everyPacket))]
	switch q := p.(type) {
	case wire.C2MSyncSharedState:
		return syncVoteOf(uint64(h.c.below(4)), wire.Strategy(h.c.below(5)), h.entries()...)
	case wire.C2MP2PConnectionsEstablished:
		q.FailedPeers = h.names()
		return q
	}
	return p
}

// attempt is a preflight that was asked for.
type attempt struct {
	by ClientID
	p  wire.M2CPreflight
}

// answerTry answers the oldest preflight.
func (h *chaos) answerTry(failed bool) {
	a := h.tries[0]
	h.tries = h.tries[1:]
	if h.seen[a.by] == nil {
		return // it is gone
	}
	done := wire.C2MPreflightDone{Number: a.p.Number}
	for _, e := range a.p.Peers {
		if failed {
			done.FailedPeers = append(done.FailedPeers, e.UUID)
		}
	}
	h.send(a.by, done)
}

// event does one random thing.
func (h *chaos) event() {
	kind := h.c.below(100)
	switch {
	case len(h.alive) < 3 || kind < 4 && len(h.alive) < 8:
		h.register(h.c.below(3) > 0, uint32(h.c.below(2)))
	case kind < 5:
		h.connect("10.0.0.1:1")
	case kind < 8:
		c := h.alive[h.c.below(len(h.alive))]
		h.drop(c)
		h.step(Gone{Client: c})
	case kind < 9:
		h.step(Malformed{h.alive[h.c.below(len(h.alive))], errors.New("junk")})
	case kind < 10:
		h.send(h.alive[h.c.below(len(h.alive))], h.wild())
	case kind < 13:
		h.now += time.Duration(h.c.below(8000)) * time.Millisecond
		h.step(Tick{})
	case kind < 20 && len(h.solves) > 0:
		s := h.solves[0]
		h.solves = h.solves[1:]
		ring := append([]wire.UUID(nil), s.Members...)
		k := h.c.below(len(ring))
		ring[0], ring[k] = ring[k], ring[0]
		h.step(Solved{Job: s.Job, Ring: ring})
	case kind < 30 && len(h.tries) > 0:
		h.answerTry(h.c.below(3) == 0)
	default:
		c := h.alive[h.c.below(len(h.alive))]
		i, ok := h.info(c)
		if !ok {
			h.native[c] = false // also of one that was refused as something else
			h.send(c, wire.C2MRequestSessionRegistration{P2PPort: 1})
			return
		}
		next := uint64(0)
		for _, g := range h.m.Snapshot().Groups {
			if g.ID == i.Group {
				next = g.NextRevision
			}
		}
		if p := h.plausible(c, i, next); p != nil {
			h.send(c, p)
		}
	}
}

var chaosConfig = Config{
	HeartbeatInterval: 2 * time.Second, HeartbeatTimeout: 8 * time.Second, RegisterTimeout: 10 * time.Second,
	RoundTimeout: 30 * time.Second, VoteTimeout: 40 * time.Second, WarnVoteAfter: 5 * time.Second, Solver: true,
}

// Random events never break the machine, two machines never differ, every
// packet is one its receiver waits for; each member of an operation gets
// exactly one M2C 9, one M2C 11 and one M2C 10.
func TestRandomEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := chaosConfig
		if rapid.Bool().Draw(t, "no bounds") {
			cfg = Config{Solver: true, PCCLRevisionRule: rapid.Bool().Draw(t, "pccl rule")}
		}
		h := newChaos(t, rapidChooser{t}, cfg)
		for range rapid.IntRange(1, 300).Draw(t, "events") {
			h.event() // S1-09, S1-10, S2-14
		}
	})
}

func FuzzMachine(f *testing.F) {
	f.Add([]byte("a run of some length that reaches a few states of the machine, and then some"))
	f.Add([]byte{200, 1, 0, 200, 1, 0, 200, 1, 1, 90, 0, 90, 1, 90, 2, 90, 3, 6, 0, 90, 1, 90, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &byteChooser{b: b}
		h := newChaos(t, c, chaosConfig)
		for len(c.b) > 0 {
			h.event()
		}
	})
}

// No peer waits for a message that will never be sent: whatever happened before,
// peers that do their part (and vote for a round when they have nothing to do)
// are all free after a few turns.
func TestEverybodyGetsThrough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newChaos(t, rapidChooser{t}, Config{Solver: true})
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			h.event()
		}
		// One gopccl peer must be there: PCCL's own deadlocks stay.
		for _, c := range slices.Clone(h.alive) {
			if !h.native[c] {
				h.drop(c)
				h.step(Gone{Client: c})
			}
		}
		h.register(true, 0)
		for turn := 0; ; turn++ {
			require.Less(t, turn, 60, "somebody waits for ever: %+v", h.m.Snapshot()) // S1-37, S2-12
			if h.settled() {
				return
			}
			h.turn()
		}
	})
}

// launch lets c start what others of its group have started: peers that call
// the same collectives in different orders.
func (h *chaos) launch(c ClientID) {
	for _, i := range h.m.Snapshot().Clients {
		for _, o := range i.Collectives {
			mine, ok := h.info(c)
			if !ok || mine.State != Collective || mine.Group != i.Group || o.State != VoteInit {
				continue
			}
			if !slices.ContainsFunc(mine.Collectives, func(m OpInfo) bool { return m.Tag == o.Tag }) {
				h.send(c, initiate(o.Tag))
			}
		}
	}
}

// settled reports whether all registered clients are accepted and idle.
func (h *chaos) settled() bool {
	for _, i := range h.m.Snapshot().Clients {
		if i.Phase != Accepted || i.State != Idle {
			return false
		}
	}
	return true
}

// turn lets every client do what its state asks of it.
func (h *chaos) turn() {
	h.now += time.Minute // what newcomers have cost is paid back some time
	for _, s := range h.solves {
		h.step(Solved{Job: s.Job})
	}
	h.solves = nil
	for len(h.tries) > 0 {
		h.answerTry(false)
	}
	for _, i := range h.m.Snapshot().Clients {
		c := i.ID
		if now, ok := h.info(c); !ok || now.State != i.State {
			continue // the turn of another one moved it
		}
		switch i.State {
		case Connecting:
			h.send(c, connected)
		case Optimizing:
			h.send(c, wire.C2MOptimizeTopologyWorkComplete{})
		case Distribute, Request:
			h.send(c, wire.C2MDistSharedStateComplete{})
		case Collective:
			for _, o := range i.Collectives {
				if o.State == Perform {
					h.send(c, complete(o.Tag, true))
				}
			}
			h.launch(c)
		case Idle, ConnectFailed:
			if i.Phase == Accepted {
				h.send(c, acceptVote)
			}
		}
	}
}
