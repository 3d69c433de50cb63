package sim

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// A run in TLS as the machines and their shells know it. Peers have names; several may have
// one certificate. Who connects to a member wants the name that the master has told, and the
// member wants that of who has connected. PCCL peers have no name, and come where the master
// says that they may.

// inTLS is whether worlds are in TLS, mixed whether some of their peers have no certificate
// yet.
var inTLS, mixed = issued.On(), false

// secured has the worlds of a test be in TLS.
func secured(t *testing.T) {
	t.Helper()
	was := inTLS
	inTLS = true
	t.Cleanup(func() { inTLS = was })
}

// greetBound is how long an acceptor waits for the master to name who has connected.
const greetBound = 5 * time.Second

// keys is what a world in TLS knows of certificates.
type keys struct {
	on      bool
	mixed   bool              // it accepts plaintext, too
	lists   []map[string]bool // who is revoked, by the number of a list; the first one is empty
	expired map[string]bool
	thieves map[mfsm.ClientID]bool // who claim the session of another name
	bare    int                    // ... without one of their own
	heir    string                 // the name of the peer that is started next; "": its own
	since   time.Duration          // when the list has changed; 0: never
	out     time.Duration          // when those on it had no connection any more; 0: they have
}

// papers are what a peer has of that.
type papers struct {
	name  string               // in its certificate; "": it has none
	names map[wire.UUID]string // of the members, as the master has told
	list  int                  // that is in force
}

func newKeys() keys {
	return keys{
		on: inTLS, mixed: mixed, lists: []map[string]bool{{}}, expired: map[string]bool{}, thieves: map[mfsm.ClientID]bool{},
	}
}

// configure adds what a master in TLS has in its configuration.
func (k *keys) configure(cfg *mfsm.Config) {
	if k.on {
		cfg.PCCLGroups, cfg.Revocations = []uint32{0, 1}, []string{strconv.Itoa(len(k.lists) - 1)}
		cfg.IdentityKey = []byte("of the credential that all masters have")
	}
}

// certify gives p the certificate that it comes with. Every fourth peer shares that of the
// one before, as processes of one machine do.
func (w *world) certify(p *peer) {
	name := w.keys.heir
	w.keys.heir = ""
	if !w.keys.on || !p.native || w.keys.mixed && name == "" && p.id%3 == 1 {
		return
	}
	if before := p.id - 1; name == "" && p.id%4 == 3 {
		name = w.peers[before].papers.name
	}
	if name == "" {
		name = fmt.Sprint("gpu-", p.id)
	}
	p.papers.name = name
}

// who is what the shell of a master knows of p.
func (p *peer) who() mfsm.Identity {
	switch {
	case !p.w.keys.on || p.w.keys.mixed && p.papers.name == "":
		return mfsm.Identity{}
	case p.papers.name == "":
		return mfsm.Identity{PCCL: true}
	}
	return mfsm.Identity{Name: p.papers.name, Groups: []uint32{p.group}}
}

// hears takes what the master tells of names and revocations.
func (p *peer) hears(e pfsm.Effect) {
	w := p.w
	switch e := e.(type) {
	case pfsm.Names:
		p.papers.names = map[wire.UUID]string{}
		for _, m := range e.Members {
			// One that has not heard its uuid yet is nobody here.
			if o := w.byUUID(m.UUID); o != nil && o.papers.name != m.Name {
				w.failf("peer %d is told that %s is %q", p.id, m.UUID.Short(), m.Name)
			}
			p.papers.names[m.UUID] = m.Name
		}
	case pfsm.Revocations:
		n, err := strconv.Atoi(e.DER)
		if err != nil || n >= len(w.keys.lists) {
			w.failf("peer %d is told the list %q", p.id, e.DER)
			return
		}
		if n <= p.papers.list {
			return
		}
		p.papers.list = n
		for _, o := range w.peers {
			if o != p && p.rejects(o) {
				w.breakLink(p, o)
				w.breakLink(o, p)
			}
		}
	}
}

// rejects reports whether p takes the certificate of o for none.
func (p *peer) rejects(o *peer) bool {
	k, name := &p.w.keys, o.papers.name
	return k.on && p.native && name != "" && (k.expired[name] || k.lists[p.papers.list][name])
}

// estranged reports whether one of two ends refuses the certificate of the other one.
func (w *world) estranged(a, b *peer) bool { return a.rejects(b) || b.rejects(a) }

// knows reports whether the master has told p the name of a peer.
func (p *peer) knows(u wire.UUID) bool {
	_, told := p.papers.names[u]
	return p.papers.name == "" || told
}

// mayTry checks that p knows which of those that it is to try have no certificate.
func (p *peer) mayTry(peers []wire.PeerEndpoint) {
	for _, e := range peers {
		if o := p.w.byUUID(e.UUID); o != nil && !o.dead && !o.over && o.papers.name == "" && !p.knows(e.UUID) {
			p.w.failf("peer %d is to try %s, and has not been told that it has no certificate", p.id, e.UUID.Short())
		}
	}
}

// mayConnect checks that the master has told p the names of those with whom it is to connect.
func (p *peer) mayConnect(to []wire.PeerEndpoint) {
	for _, e := range to {
		if !p.knows(e.UUID) {
			p.w.failf("peer %d is to connect with %s, of whom it has been told no name", p.id, e.UUID.Short())
		}
	}
}

// greets is what comes of the handshake between one that has connected and the other end,
// which may have to wait for the name of the first. A newer master may not know the other end.
func (w *world) greets(from *peer, e wire.PeerEndpoint, to *peer, began time.Duration) (goes, waits bool) {
	if !from.knows(e.UUID) {
		return false, false
	}
	if to.knows(from.uuid) {
		return true, false
	}
	// A newcomer that waits looks as slow itself, and one that the master tells no names for
	// so long as if it could not be reached.
	from.suspect = from.suspect || !from.m.View().Connected && w.now > began+2*time.Second
	to.suspect = to.suspect || !to.m.View().Connected && w.now >= began+greetBound
	return false, w.now < began+greetBound
}

// refuses ends a connection in the handshake if the certificate of p is of no use.
func (m *master) refuses(p *peer, ev mfsm.Event) bool {
	k, name := &m.w.keys, p.papers.name
	c, opens := ev.(mfsm.Connected)
	if !opens || !k.lists[m.list][name] && !k.expired[name] {
		return false
	}
	delete(m.conns, c.Client)
	m.w.tracef("the master refuses the certificate of peer %d", p.id)
	p.fromMaster(c.Client, func() { p.masterGone(errors.New("refused the certificate")) })
	return true
}

// outlaw takes the certificate of some peer away: it is revoked, or expires.
func (w *world) outlaw(f fault) {
	p := w.victim()
	if p == nil || p.papers.name == "" {
		return
	}
	name := p.papers.name
	masters := []*master{w.master}
	if w.heirs.former != nil {
		masters = append(masters, w.heirs.former)
	}
	if f.kind == revoke {
		w.tracef("FAULT: the certificate of %s is revoked", name)
		l := maps.Clone(w.keys.lists[len(w.keys.lists)-1])
		l[name] = true
		w.keys.lists = append(w.keys.lists, l)
		w.keys.since = max(1, w.now)
		soon := w.rng.between(0, beat)
		for _, m := range masters { // the lists of several masters are one
			m.after(soon, m.rereads)
		}
		return
	}
	w.tracef("FAULT: the certificate of %s expires", name)
	w.excused = true // members may refuse it earlier than the master drops it: of two it is not known whose fault that is
	w.keys.expired[name] = true
	for _, m := range masters {
		m.after(w.rng.between(0, beat), func() { m.expels(func(o string) bool { return o == name }) })
	}
	for _, o := range w.peers {
		w.after(w.rng.between(0, beat), o, func() {
			for _, p := range w.peers {
				if p != o && w.estranged(o, p) {
					w.breakLink(p, o)
					w.breakLink(o, p)
				}
			}
		})
	}
}

// rereads has the shell of m read the revocation list again.
func (m *master) rereads() {
	w := m.w
	if w.now < m.stops {
		m.after(m.stops-w.now, m.rereads)
		return
	}
	if m.list == len(w.keys.lists)-1 {
		return
	}
	m.list = len(w.keys.lists) - 1
	m.take(mfsm.Revocations{Lists: []string{strconv.Itoa(m.list)}})
	m.expels(func(name string) bool { return w.keys.lists[m.list][name] })
}

// expels has the machine of m drop those with certain names.
func (m *master) expels(whom func(name string) bool) {
	for _, c := range slices.Sorted(maps.Keys(m.conns)) {
		if p := m.conns[c]; p != nil && whom(p.papers.name) {
			m.take(mfsm.Revoked{Client: c, Why: "certificate revoked of peer " + p.papers.name})
		}
	}
}

// outlawed reports whether the certificate of p was revoked, or has expired.
func (p *peer) outlawed() bool {
	k := &p.w.keys
	return k.on && (k.lists[len(k.lists)-1][p.papers.name] || k.expired[p.papers.name])
}

// stolen has somebody with another name, or with none, claim the session of p, in front of p
// itself.
func (p *peer) stolen(hello wire.Packet) {
	w := p.w
	if !w.keys.on || !w.rng.chance(4) {
		return
	}
	w.lastClient++
	c, to := w.lastClient, p.line.to
	w.keys.thieves[c] = true
	who := mfsm.Identity{Name: "thief"}
	if w.keys.mixed && p.papers.name != "" && w.rng.chance(2) {
		who = mfsm.Identity{}
		w.keys.bare++
	}
	w.tracef("somebody of the name %q claims the session of peer %d", who.Name, p.id)
	to.take(mfsm.Connected{Client: c, Remote: netip.AddrPortFrom(ip(9999), 9), Who: who})
	to.take(mfsm.PacketIn{Client: c, Packet: hello})
}

// toThief takes what is said to one that claims the session of another.
func (m *master) toThief(e mfsm.Send) bool {
	if !m.w.keys.thieves[e.Client] {
		return false
	}
	if r, ok := e.Packet.(wire.M2CSessionRegistrationResponse); ok && r.Accepted {
		m.w.failf("a session goes on under another name: %s", show(r))
	}
	return true
}

// A run in TLS: members whose certificates are revoked, or expire, are among its faults.
func TestSimulationInTLS(t *testing.T) {
	secured(t)
	simulateInTLS(t, uint64(max(*seeds/4, 1)))
}

// simulateInTLS runs n seeds, or the one of the flag.
func simulateInTLS(t *testing.T, n uint64) {
	if replays(t, func(seed uint64) *world { return newWorld(seed, noBug) }, (*world).run) {
		return
	}
	if raceEnabled {
		n = min(n, 500)
	}
	struck, successes, failed := uint(0), 0, 0
	for seed := *first; seed < *first+n; seed++ {
		w := newWorld(seed, noBug)
		if failure := w.run(); failure != "" {
			t.Errorf("seed %d: %s", seed, failure)
			if failed++; failed == 10 {
				t.FailNow()
			}
		}
		struck |= w.struck
		successes += w.collector.successes
	}
	if n >= 1000 {
		require.Equal(t, allKinds(), struck, "some kind of fault was never injected")
		require.Greater(t, successes, int(n))
	}
}

// A run of which some peers have a certificate and others not yet. What the others do cannot
// be told from what PCCL peers do beside TLS, but that they come to the same port, try
// newcomers and are tried.
func TestSimulationOfAMigration(t *testing.T) {
	secured(t)
	mixed = true
	t.Cleanup(func() { mixed = false })
	simulateInTLS(t, uint64(max(*seeds/4, 1)))
}

// Revocation of one, while a run of some seconds goes on: it is out within a heartbeat of the
// change of the list, and each of the others loses an operation once at most.
func TestRevokedAtEveryStep(t *testing.T) {
	secured(t)
	const loops = 150
	for _, n := range []int{3, 4} {
		whole := quiet(7, n, true, loops)
		require.Empty(t, whole.run())
		require.Greater(t, whole.now, 2*beat)
		stride := 101
		if raceEnabled {
			stride = 1010
		}
		var waits []time.Duration
		for at := 1; at < whole.count/2; at += stride {
			w := quiet(7, n, true, loops)
			w.faults = []fault{{at: at, kind: revoke}}
			require.Empty(t, w.run(), "at event %d", at)
			for task, times := range w.collector.lost {
				require.LessOrEqual(t, times, 1, "at event %d: peer %d has lost tag %d of revision %d", at, task.peer, task.tag, task.revision)
			}
			took := w.keys.out - w.keys.since
			require.Positive(t, w.keys.out, "at event %d: somebody who is revoked has connections", at)
			require.Less(t, took, beat+50*time.Millisecond, // for packets, and the round that follows
				"at event %d", at)
			waits = append(waits, took)
		}
		slices.Sort(waits)
		t.Logf("%d peers, revoked at %d of %d events, out after %v (median), %v at most", n, len(waits), whole.count, waits[len(waits)/2], waits[len(waits)-1])
		require.Greater(t, waits[len(waits)-1], beat/2)
	}
}

// A master that dies when a member was revoked: the next one has the list, and the member
// never comes back.
func TestRevokedWhileTheMasterDies(t *testing.T) {
	secured(t)
	n := uint64(2000)
	if raceEnabled {
		n = 100
	}
	outlaws := 0
	for seed := uint64(1); seed <= n; seed++ {
		if *oneSeed != 0 && seed != *oneSeed {
			continue
		}
		w := mortalWorld(seed, noBug)
		w.log.tracing = *oneSeed != 0
		w.heirs.unmissed = true // those who are revoked are waited for as others that are gone
		w.faults = append(w.faults, fault{at: 1 + w.rng.n(200*w.plan.loops), kind: revoke})
		slices.SortFunc(w.faults, func(a, b fault) int { return a.at - b.at })
		if failure := w.run(); failure != "" {
			t.Errorf("seed %d: %s\n%s", seed, failure, strings.Join(w.log.lines, "\n"))
		}
		for _, p := range w.peers {
			if p.outlawed() {
				outlaws++
			}
		}
	}
	t.Logf("%d seeds, %d members were revoked", n, outlaws)
	require.Greater(t, outlaws, int(n)/3)
}

// A master that dies while some peers have no certificate yet: none of those goes on with the
// session of a peer that has one.
func TestMasterDiesInAMigration(t *testing.T) {
	secured(t)
	mixed = true
	t.Cleanup(func() { mixed = false })
	if replays(t, func(seed uint64) *world { return mortalWorld(seed, noBug) }, (*world).run) {
		return
	}
	n, bare := uint64(2000), 0
	if raceEnabled {
		n = 100
	}
	for seed := uint64(1); seed <= n; seed++ {
		w := mortalWorld(seed, noBug)
		if failure := w.run(); failure != "" {
			t.Errorf("seed %d: %s", seed, failure)
		}
		bare += w.keys.bare
	}
	t.Logf("%d seeds, %d sessions were claimed in plaintext", n, bare)
	require.Greater(t, bare, int(n)/10)
}

// endsOfOutlaws notes when the last connection with those who are revoked has ended.
func (w *world) endsOfOutlaws() {
	k := &w.keys
	if !k.on || k.since == 0 || k.out != 0 {
		return
	}
	seen := false
	for _, p := range w.peers {
		if !p.outlawed() || p.uuid == (wire.UUID{}) {
			continue
		}
		seen = true
		if !p.over && !p.dead && !p.line.cut {
			return
		}
		for _, o := range w.peers {
			if w.link(p, o).alive || w.link(o, p).alive || !o.dead && !o.over && slices.Contains(o.m.View().Ring, p.uuid) {
				return
			}
		}
	}
	if seen {
		k.out = w.now
	}
}
