package fsm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/wire"
)

// world drives a machine and sorts its effects by client. Clients are small
// numbers; uuids count up, so the oldest client has the smallest one.
type world struct {
	name    string // in the certificates of those who connect from now on
	strict  bool   // those with one take nothing in plaintext
	t       testing.TB
	m       *Machine
	now     time.Duration
	uuid    func() wire.UUID
	inbox   map[ClientID][]wire.Packet
	closed  map[ClientID]string
	facts   []Fact
	solves  []Solve
	asked   []MakePlans
	stopped []uint64
	ids     map[ClientID]wire.UUID
	next    ClientID
	eager   bool               // whether newcomers can begin without a commence
	resume  bool               // ... and go on with another master
	answer  func(Effect) Event // of the authority, nil: none; a nil event: not yet
	version uint8              // of the collectives that newcomers announce
	down    float64            // what members say that they receive, in Mbit/s
	link    float64            // ... and that they send to the next one; 0: as much as to all
}

func counting() func() wire.UUID {
	n := uint64(0)
	return func() (u wire.UUID) {
		n++
		binary.BigEndian.PutUint64(u[:], n<<32)
		return u
	}
}

func newWorld(t testing.TB, cfg Config) *world {
	w := &world{
		t: t, uuid: counting(), inbox: map[ClientID][]wire.Packet{},
		closed: map[ClientID]string{}, ids: map[ClientID]wire.UUID{}, down: 500,
	}
	if cfg.NewUUID == nil {
		cfg.NewUUID = func() wire.UUID { return w.uuid() }
	}
	w.m = New(cfg)
	return w
}

func (w *world) step(ev Event) {
	effects := slices.Clone(w.m.Step(w.now, ev)) // what is answered here steps again
	w.carryOut(effects)
	for _, e := range effects {
		if w.answer == nil {
			return
		}
		if ev := w.answer(e); ev != nil {
			w.step(ev)
		}
	}
}

func (w *world) carryOut(effects []Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case Send:
			require.NotContains(w.t, w.closed, e.Client, "sent to a closed client")
			w.inbox[e.Client] = append(w.inbox[e.Client], e.Packet)
		case Close:
			w.closed[e.Client] = e.Reason
		case Log:
			w.facts = append(w.facts, e.Fact)
		case Solve:
			w.solves = append(w.solves, e)
		case StopSolve:
			w.stopped = append(w.stopped, e.Job)
		case MakePlans:
			w.asked = append(w.asked, e)
		}
	}
}

func (w *world) connectAt(addr string) ClientID {
	w.next++
	w.step(Connected{Client: w.next, Remote: netip.MustParseAddrPort(addr), Who: Identity{Name: w.name}})
	return w.next
}

func (w *world) send(c ClientID, p wire.Packet) { w.step(PacketIn{c, p}) }

func (w *world) leave(c ClientID) { w.step(Gone{Client: c}) }

// pop returns the next packet of c, nil if there is none.
func (w *world) pop(c ClientID) wire.Packet {
	if len(w.inbox[c]) == 0 {
		return nil
	}
	p := w.inbox[c][0]
	w.inbox[c] = w.inbox[c][1:]
	if r, ok := p.(wire.M2CSessionRegistrationResponse); ok {
		w.ids[c] = r.UUID
	}
	return p
}

// want takes the next packet of c and requires its type.
func want[P wire.Packet](w *world, c ClientID) P {
	w.t.Helper()
	got := w.pop(c)
	p, ok := got.(P)
	require.True(w.t, ok, "client %d got %T %+v (closed: %q)", c, got, got, w.closed[c])
	return p
}

func (w *world) quiet(cs ...ClientID) {
	w.t.Helper()
	for _, c := range cs {
		require.Empty(w.t, w.inbox[c], "client %d", c)
		require.NotContains(w.t, w.closed, c)
	}
}

func (w *world) isClosed(c ClientID, reason string) {
	w.t.Helper()
	require.Contains(w.t, w.closed, c)
	require.Contains(w.t, w.closed[c], reason)
}

// join registers a client without letting it in.
func (w *world) join(group uint32, native bool) ClientID {
	w.t.Helper()
	c := w.connectAt(fmt.Sprintf("127.0.0.1:%d", 40000+w.next))
	p := wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 1000 + uint16(c), BenchmarkPort: 3, PeerGroup: group}
	if native {
		p.Ext = wire.Ext{Native: true, HeartbeatInterval: time.Second, HeartbeatTimeout: 5 * time.Second, Early: wire.Early{Eager: w.eager}, Collectives: w.version, Secured: w.secured()}
		p.Ext.Resuming.Resume = w.resume
	}
	w.send(c, p)
	require.True(w.t, want[wire.M2CSessionRegistrationResponse](w, c).Accepted)
	return c
}

// secured says whether those who register take members without a certificate.
func (w *world) secured() wire.Secured { return wire.Secured{Plain: w.name != "" && !w.strict} }

// member registers a client and lets it in by a round of all.
func (w *world) member(group uint32, native bool) ClientID {
	w.t.Helper()
	old := w.accepted()
	c := w.join(group, native)
	for _, o := range old {
		w.send(o, acceptVote)
	}
	w.round(true)
	return c
}

func (w *world) accepted() (cs []ClientID) {
	for _, c := range w.m.Snapshot().Clients {
		if c.Phase == Accepted {
			cs = append(cs, c.ID)
		}
	}
	return cs
}

// waiting counts the clients that a later round lets in.
func (w *world) waiting() (n int) {
	for _, c := range w.m.clients {
		if c.phase != Accepted && !c.round.in {
			n++
		}
	}
	return n
}

// round lets every connecting client report and takes the verdicts.
func (w *world) round(ok bool) (rings map[ClientID][]wire.UUID) {
	w.t.Helper()
	rings = map[ClientID][]wire.UUID{}
	var cs []ClientID
	for _, c := range w.m.Snapshot().Clients {
		if c.State == Connecting {
			cs = append(cs, c.ID)
		}
	}
	require.NotEmpty(w.t, cs)
	for _, c := range cs {
		w.hearsRound(c)
		w.send(c, connected)
	}
	for _, c := range cs {
		p := want[wire.M2CP2PConnectionsEstablished](w, c)
		require.Equal(w.t, ok, p.Success)
		rings[c] = p.Ring
	}
	return rings
}

// hearsRound takes what tells c of a round: those in TLS hear who the others are first.
func (w *world) hearsRound(c ClientID) {
	w.t.Helper()
	if i := slices.IndexFunc(w.inbox[c], func(p wire.Packet) bool { _, is := p.(wire.M2CNames); return is }); i == 0 {
		require.NotEmpty(w.t, w.m.conns[c].listens.as.Name)
		w.inbox[c] = w.inbox[c][1:]
	}
	want[wire.M2CP2PConnectionInfo](w, c)
}

// members builds a world of n accepted clients of group 0.
func (w *world) members(n int, native bool) (cs []ClientID) {
	w.t.Helper()
	for range n {
		cs = append(cs, w.member(0, native))
	}
	w.facts = nil
	return cs
}

// letOut undoes that c was let in.
func (c *client) letOut() {
	c.phase = Registered
	c.group.countMember(c, -1)
}

func (w *world) state(c ClientID) State {
	for _, i := range w.m.Snapshot().Clients {
		if i.ID == c {
			return i.State
		}
	}
	w.t.Fatalf("client %d is not registered", c)
	return 0
}

func (w *world) factOf(kind string) Fact {
	w.t.Helper()
	for _, f := range w.facts {
		if f.Kind == kind {
			return f
		}
	}
	w.t.Fatalf("no fact %q in %+v", kind, w.facts)
	return Fact{}
}

// after lets time pass as a shell would: every deadline on the way is a tick.
func (w *world) after(d time.Duration) {
	end := w.now + d
	for {
		due, ok := w.m.Deadline()
		if !ok || due > end {
			break
		}
		w.now = max(w.now, due)
		w.step(Tick{})
	}
	w.now = end
}

var (
	acceptVote    = wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true}
	establishVote = wire.C2MRequestEstablishP2PConnections{}
	connected     = wire.C2MP2PConnectionsEstablished{Success: true}
)

func initiate(tag uint64) wire.C2MCollectiveCommsInitiate {
	return wire.C2MCollectiveCommsInitiate{Tag: tag, Count: 10, DType: dtype.Float32, Op: dtype.Sum}
}

func complete(tag uint64, aborted bool) wire.C2MCollectiveCommsComplete {
	return wire.C2MCollectiveCommsComplete{Tag: tag, WasAborted: aborted}
}

func entry(key string, hash uint64) wire.StateEntry {
	return wire.StateEntry{Key: key, Hash: hash, DType: dtype.Float32}
}

func syncVoteOf(rev uint64, s wire.Strategy, es ...wire.StateEntry) wire.C2MSyncSharedState {
	return wire.C2MSyncSharedState{Revision: rev, Strategy: s, Entries: es}
}
