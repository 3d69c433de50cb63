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
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// uid returns a uuid that sorts by n.
func uid(n int) (u wire.UUID) {
	binary.BigEndian.PutUint32(u[:], uint32(n))
	u[6], u[8] = 0x40, 0x80
	return u
}

func uids(ns ...int) (l []wire.UUID) {
	for _, n := range ns {
		l = append(l, uid(n))
	}
	return l
}

func addr(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 48150)
}

func endpoints(ns ...int) (l []wire.PeerEndpoint) {
	for _, n := range ns {
		l = append(l, wire.PeerEndpoint{Addr: addr(n), UUID: uid(n)})
	}
	return l
}

// tb is what the rig needs of *testing.T and *rapid.T.
type tb interface {
	require.TestingT
	Helper()
}

// rig drives one machine and checks at every step what must always hold:
// a call is answered once, an operation finished once and not while its data
// phase runs.
type rig struct {
	t      tb
	m      *Machine
	now    time.Duration
	call   CallID
	op     OpID
	native bool

	dones    map[CallID]Done
	finishes map[OpID]bool
	open     map[OpID]bool
	lastSent []wire.Packet // of the last step
	fx       []Effect      // of the last step
	watch    func()        // called after every step
}

func newRig(t tb, cfg Config) *rig {
	return &rig{
		t: t, m: New(cfg), dones: map[CallID]Done{},
		finishes: map[OpID]bool{}, open: map[OpID]bool{},
	}
}

func (r *rig) step(ev Event) []Effect {
	r.t.Helper()
	if d, ok := ev.(DataEnded); ok {
		delete(r.open, d.Op)
	}
	r.fx = slices.Clone(r.m.Step(r.now, ev)) // tests keep it, and step again while they read it
	r.lastSent = nil
	for _, e := range r.fx {
		switch e := e.(type) {
		case Send:
			require.Equal(r.t, wire.C2M, e.Packet.Proto())
			r.lastSent = append(r.lastSent, e.Packet)
		case Done:
			require.NotContains(r.t, r.dones, e.Call, "call answered twice")
			r.dones[e.Call] = e
			if e.Err != nil {
				var typed *errs.Error
				require.ErrorAs(r.t, e.Err, &typed)
				require.NotEmpty(r.t, typed.Op)
			}
		case StartData:
			require.False(r.t, r.open[e.Op])
			r.open[e.Op] = true
		case AbortData:
			require.True(r.t, r.open[e.Op])
		case Finish:
			require.NotContains(r.t, r.finishes, e.Op, "operation finished twice")
			require.False(r.t, r.open[e.Op], "finished while the data phase runs")
			r.finishes[e.Op] = e.Restore
		}
	}
	if r.watch != nil {
		r.watch()
	}
	return r.fx
}

func (r *rig) in(p wire.Packet) []Effect { r.t.Helper(); return r.step(PacketIn{Packet: p}) }

func (r *rig) newCall() CallID { r.call++; return r.call }

func has[E Effect](r *rig) (E, bool) {
	for _, e := range r.fx {
		if e, ok := e.(E); ok {
			return e, true
		}
	}
	var zero E
	return zero, false
}

func want[E Effect](r *rig) E {
	r.t.Helper()
	e, ok := has[E](r)
	require.True(r.t, ok, "no %T among %+v", e, r.fx)
	return e
}

func (r *rig) sent(ps ...wire.Packet) {
	r.t.Helper()
	require.Equal(r.t, ps, r.lastSent)
}

func (r *rig) silent() { r.t.Helper(); require.Empty(r.t, r.lastSent) }

// ok asserts that the call was answered without an error.
func (r *rig) ok(c CallID) Done {
	r.t.Helper()
	d, found := r.dones[c]
	require.True(r.t, found, "call %d is not answered", c)
	require.NoError(r.t, d.Err)
	return d
}

// failed asserts that the call was answered with an error of the code.
func (r *rig) failed(c CallID, codes ...errs.Code) *errs.Error {
	r.t.Helper()
	d, found := r.dones[c]
	require.True(r.t, found, "call %d is not answered", c)
	for _, code := range codes {
		require.ErrorIs(r.t, d.Err, code)
	}
	require.Equal(r.t, codes[0], errs.CodeOf(d.Err))
	var e *errs.Error
	require.ErrorAs(r.t, d.Err, &e)
	return e
}

func (r *rig) unanswered(c CallID) { r.t.Helper(); require.NotContains(r.t, r.dones, c) }

// register brings a fresh machine to the wait for its first round.
func (r *rig) register(native bool, granted wire.Ext) CallID {
	r.t.Helper()
	r.native = native
	c := r.newCall()
	r.step(CallConnect{Call: c})
	granted.Native = native
	r.in(wire.M2CSessionRegistrationResponse{Accepted: true, UUID: uid(1), Ext: granted})
	return c
}

// info is the M2C 2 that opens a round of the ring.
func (r *rig) info(ring []int) wire.M2CP2PConnectionInfo {
	p := wire.M2CP2PConnectionInfo{
		GlobalWorldSize: uint64(len(ring)), LocalWorldSize: uint64(len(ring)),
		NumDistinctGroup: 1, LargestGroupSize: uint64(len(ring)), Ext: wire.Ext{GroupNative: r.native},
	}
	if r.m.view.MasterCollectives {
		p.Ext.GroupCollectives, p.Ext.Members = true, uids(slices.Sorted(slices.Values(ring))...)
	}
	for _, n := range ring {
		if n != 1 {
			p.Peers = append(p.Peers, endpoints(n)...)
		}
	}
	return p
}

// round plays a successful round over the ring.
func (r *rig) round(ring ...int) {
	r.t.Helper()
	r.in(r.info(ring))
	r.step(Established{Round: want[Establish](r).Round})
	r.sent(wire.C2MP2PConnectionsEstablished{Success: true})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(ring...)})
}

// connected returns a rig with a live session over the ring.
func connected(t *testing.T, native bool, ring ...int) *rig {
	t.Helper()
	return connectedAs(t, Config{}, wire.Ext{Topology: native}, native, ring...)
}

// connectedAs returns one of such a peer, to which the master has granted that.
func connectedAs(t tb, cfg Config, granted wire.Ext, native bool, ring ...int) *rig {
	t.Helper()
	r := newRig(t, cfg)
	c := r.register(native, granted)
	r.round(ring...)
	r.ok(c)
	return r
}

// launch launches an operation with the tag.
func (r *rig) launch(tag uint64) OpID {
	r.t.Helper()
	c := r.newCall()
	r.op++
	op := r.op
	r.step(CallCollective{Call: c, Op: op, Tag: tag, Count: 8, DType: dtype.Float32, RedOp: dtype.Sum})
	r.ok(c)
	return op
}

func (r *rig) await(op OpID) CallID {
	r.t.Helper()
	c := r.newCall()
	r.step(CallAwait{Call: c, Op: op})
	return c
}

func (r *rig) commence(tag uint64) {
	r.t.Helper()
	r.in(wire.M2CCollectiveCommsCommence{Tag: tag, SeqNr: tag})
}

func (r *rig) abort(tag uint64, aborted bool) {
	r.t.Helper()
	r.in(wire.M2CCollectiveCommsAbort{Tag: tag, Aborted: aborted})
}

func (r *rig) complete(tag uint64) {
	r.t.Helper()
	r.in(wire.M2CCollectiveCommsComplete{Tag: tag})
}

// fail plays an operation that the master aborts.
func (r *rig) fail(op OpID, tag uint64) {
	r.t.Helper()
	r.commence(tag)
	r.abort(tag, true)
	r.step(DataEnded{Op: op, Err: fmt.Errorf("aborted")})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: tag, WasAborted: true})
	r.complete(tag)
}

// succeed plays an operation that succeeds.
func (r *rig) succeed(op OpID, tag uint64) {
	r.t.Helper()
	r.commence(tag)
	r.step(DataEnded{Op: op})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: tag})
	r.abort(tag, false)
	r.complete(tag)
}

func (r *rig) update() CallID {
	r.t.Helper()
	c := r.newCall()
	r.step(CallUpdate{Call: c})
	return c
}

func (r *rig) sync(entries ...string) CallID {
	r.t.Helper()
	c := r.newCall()
	ev := CallSync{Call: c, Revision: 5}
	for _, k := range entries {
		ev.Entries = append(ev.Entries, wire.StateEntry{Key: k, Hash: 7, NumElements: 9, DType: dtype.Float32})
	}
	r.step(ev)
	return c
}

func (r *rig) optimize() CallID {
	r.t.Helper()
	c := r.newCall()
	r.step(CallOptimize{Call: c})
	return c
}

var (
	vote0 = wire.C2MRequestEstablishP2PConnections{}
	vote1 = wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true}
)
