package compat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/ports"
	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// kind says whose implementation a process runs.
type kind string

const (
	original kind = "original"
	ours     kind = "gopccl"
)

// callLimit bounds every single call. The longest is an optimization that waits
// for measurements of ten seconds each.
const callLimit = 150 * time.Second

// world is one master and its peers, every one a process of its own.
type world struct {
	t          testing.TB
	original   *pccl.Driver
	resumes    bool     // our peers go on with another master
	env        []string // of our processes that are started from now on
	tls        int      // port for our peers, which are in TLS; 0: they are not
	masterKind kind
	master     *pccl.Process
	port       int
	started    int
	peers      []*peer           // those that are in, in the order of joining
	rings      map[uint32][]ring // rings that the results since the last round leave possible, by group
	rng        *rand.Rand
	revision   map[uint32]uint64 // the revision that the next sync of a group expects
	tag        uint64
	began      time.Time // of the part of the script that runs
}

type peer struct {
	*pccl.Process
	kind  kind
	group uint32
}

// ring is a possible ring order of one group.
type ring []*peer

func newWorld(t testing.TB, master kind) *world { return worldOf(t, master, false) }

// worldOf makes a world in which everything that is ours is in TLS, or nothing.
func worldOf(t testing.TB, master kind, tls bool) *world {
	t.Helper()
	w := emptyWorld(t, master)
	// The port is free when it is chosen; where another process takes it first, the master says so.
	for range 10 {
		free, err := ports.Free(2)
		require.NoError(t, err)
		w.port = free[0]
		if tls {
			w.tls = free[1]
		}
		w.master = w.start(master, string(master)+" master")
		err = w.master.Master("127.0.0.1", w.port)
		if err == nil {
			return w
		}
		require.ErrorIs(t, err, errs.InvalidUsage)
	}
	t.Fatal("no port for the master")
	return nil
}

// emptyWorld makes a world without a master.
func emptyWorld(t testing.TB, master kind) *world {
	t.Helper()
	turns.compute()
	t.Cleanup(turns.done)
	return &world{
		t: t, original: pccl.Require(t), masterKind: master,
		rings: map[uint32][]ring{}, revision: map[uint32]uint64{},
		rng: rand.New(rand.NewPCG(1, uint64(len(t.Name())))), began: time.Now(),
	}
}

// lap logs how long a part of the script took.
func (w *world) lap(part string) {
	w.t.Logf("%s: %v", part, time.Since(w.began).Round(time.Millisecond))
	w.began = time.Now()
}

// start starts a process of the given kind; it is ended with the test.
func (w *world) start(k kind, name string) *pccl.Process {
	w.t.Helper()
	cmd := w.original.Command()
	if k == ours {
		cmd = exec.Command(os.Args[0])
		// A race detector would otherwise make every child wait for a second before it ends.
		cmd.Env = append(os.Environ(), driverEnv+"=1", "GORACE=atexit_sleep_ms=0")
		if w.tls != 0 {
			issued.Command(os.Args[0]) // makes the authority that they share
			cmd.Env = append(os.Environ(), driverEnv+"=1", "GORACE=atexit_sleep_ms=0", issued.Env+"=require", fmt.Sprintf("%s=%d", tlsEnv, w.tls))
		}
		if w.resumes {
			cmd.Env = append(cmd.Env, resumeEnv+"=1")
		}
		cmd.Env = append(cmd.Env, w.env...)
	}
	p, err := pccl.Start(name, cmd, callLimit)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		p.Close()
		if w.t.Failed() {
			w.t.Logf("log of %s:\n%s", name, p.Log())
		}
	})
	return p
}

// newPeer starts a peer that has not connected yet.
func (w *world) newPeer(k kind, group uint32, pool int) *peer {
	w.t.Helper()
	w.started++
	p := &peer{w.start(k, fmt.Sprintf("peer %d (%s)", w.started, k)), k, group}
	require.NoError(w.t, p.Comm("127.0.0.1", w.port, group, pool))
	return p
}

// all runs f on every peer at once and waits for all of them.
func all(peers []*peer, f func(i int, p *peer) error) error {
	failed := make([]error, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			if err := f(i, p); err != nil {
				failed[i] = fmt.Errorf("%s: %w", p.Name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

// connecting is held while an original peer opens its listeners: two that race
// for one port may wait for ever (quirk Q38).
var connecting sync.Mutex

// join lets newcomers in: they connect, the members see them waiting and update
// the topology (control spec, sections 6, 7 and 13.3).
func (w *world) join(newcomers ...*peer) {
	w.t.Helper()
	for _, p := range newcomers {
		w.joinOne(p)
	}
}

func (w *world) joinOne(p *peer) {
	w.t.Helper()
	connecting.Lock()
	locked := true
	defer func() {
		if locked {
			connecting.Unlock()
		}
	}()
	connected := make(chan error, 1)
	go func() { connected <- p.Connect() }()
	if len(w.peers) > 0 {
		// The question is a vote of its own, so this loop runs at the pace of the peers.
		for began := time.Now(); !w.pending(); {
			require.Less(w.t, time.Since(began), callLimit, "the members do not see the newcomer")
		}
		connecting.Unlock()
		locked = false
		require.NoError(w.t, all(w.peers, func(_ int, m *peer) error { return m.Update() }))
	}
	require.NoError(w.t, <-connected)
	w.peers = append(w.peers, p)
	w.roundDone()
	w.checkAttributes(w.peers...)
}

// pending asks all members whether somebody waits; they must agree.
func (w *world) pending() bool {
	w.t.Helper()
	answers := make([]bool, len(w.peers))
	require.NoError(w.t, all(w.peers, func(i int, p *peer) (err error) {
		answers[i], err = p.Pending()
		return err
	}))
	for _, a := range answers {
		require.Equal(w.t, answers[0], a)
	}
	return answers[0]
}

// roundDone notes that a P2P round was completed: the rings may be new.
func (w *world) roundDone() {
	w.t.Helper()
	for g := range w.rings {
		delete(w.rings, g)
	}
	for _, g := range w.groups() {
		for _, r := range permutations(w.members(g)) {
			if w.ringAsTold(r) {
				w.rings[g] = append(w.rings[g], r)
			}
		}
		require.NotEmpty(w.t, w.rings[g], "our peers disagree about the ring of group %d", g)
	}
}

// ringAsTold reports whether our peers in r know exactly this ring. The originals do not tell.
func (w *world) ringAsTold(r ring) bool {
	w.t.Helper()
	for i, p := range r {
		if p.kind != ours {
			continue
		}
		uuids, self, err := p.Ring()
		require.NoError(w.t, err)
		require.Len(w.t, uuids, len(r))
		if uuids[i] != self {
			return false
		}
		for k, q := range r {
			if q.kind == ours {
				theirs, other, err := q.Ring()
				require.NoError(w.t, err)
				if uuids[k] != other || !slices.Equal(uuids, theirs) {
					return false
				}
			}
		}
	}
	return true
}

func permutations(members []*peer) []ring {
	if len(members) < 2 {
		return []ring{slices.Clone(members)}
	}
	var out []ring
	for i := range members {
		rest := slices.Delete(slices.Clone(members), i, i+1)
		for _, p := range permutations(rest) {
			out = append(out, append(ring{members[i]}, p...))
		}
	}
	return out
}

// groups returns the groups that have members, ascending.
func (w *world) groups() []uint32 {
	var gs []uint32
	for _, p := range w.peers {
		if !slices.Contains(gs, p.group) {
			gs = append(gs, p.group)
		}
	}
	slices.Sort(gs)
	return gs
}

func (w *world) members(group uint32) []*peer {
	var ps []*peer
	for _, p := range w.peers {
		if p.group == group {
			ps = append(ps, p)
		}
	}
	return ps
}

// checkAttributes compares what peers that took part in the last round know of
// the world with what it is (control spec, sections 7.2 and 13.5).
func (w *world) checkAttributes(peers ...*peer) {
	w.t.Helper()
	largest := 0
	for _, g := range w.groups() {
		largest = max(largest, len(w.members(g)))
	}
	for _, p := range peers {
		for attr, want := range map[pccl.Attribute]int{
			pccl.GlobalWorldSize:  len(w.peers),
			pccl.LocalWorldSize:   len(w.members(p.group)),
			pccl.NumGroups:        len(w.groups()),
			pccl.LargestGroupSize: largest,
		} {
			got, err := p.Attr(attr)
			require.NoError(w.t, err, p.Name)
			require.Equal(w.t, want, got, "attribute %d of %s", attr, p.Name)
		}
	}
}

// gone removes a peer that left or died.
func (w *world) gone(p *peer) {
	w.peers = slices.DeleteFunc(w.peers, func(q *peer) bool { return q == p })
}

// leave lets p leave in order; the others agree on the smaller world.
func (w *world) leave(p *peer) {
	w.t.Helper()
	require.NoError(w.t, p.Destroy())
	require.NoError(w.t, p.Quit())
	w.gone(p)
	// The leaver's vote is missing until the master saw it leave, so this cannot come too early.
	require.NoError(w.t, all(w.peers, func(_ int, m *peer) error { return m.Update() }))
	w.roundDone()
	w.checkAttributes(w.peers...)
}

// nextTag returns a tag that is in use nowhere; few enough of them, because
// originals keep memory for every tag (quirk Q50).
func (w *world) nextTag() uint64 {
	w.tag = w.tag%64 + 1
	return w.tag
}

// close ends the run: the peers leave one after the other, the last one alone
// gets the too-few-peers result, and the master ends when it is told to.
func (w *world) close() {
	w.t.Helper()
	for len(w.peers) > 0 {
		p := w.peers[0]
		if alone := w.members(p.group); len(alone) == 1 {
			_, err := p.Reduce(pccl.Reduce{Tag: w.nextTag(), Op: sum, DType: f32, Data: binary.LittleEndian.AppendUint32(nil, 1)})
			require.ErrorIs(w.t, err, errs.TooFewPeers, p.Name)
		}
		w.leave(p)
	}
	require.NoError(w.t, w.master.StopMaster())
	require.NoError(w.t, w.master.Quit())
}
