package fsm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// returning is a master whose n peers, in groups of so many, come back with a collective
// under way.
type returning struct {
	m     *Machine
	peers []wire.UUID
	size  int
	out   int // packets that the peers got
}

func newReturning(n, size int) *returning {
	r := &returning{size: size}
	var reg Registry
	for i := range n {
		var u wire.UUID
		binary.BigEndian.PutUint64(u[:], uint64(i+1))
		r.peers = append(r.peers, u)
	}
	for g := range n / size {
		reg.Groups = append(reg.Groups, GroupRecord{ID: uint32(g), Round: 9, NextRevision: 3, Members: r.peers[g*size : (g+1)*size]})
	}
	r.m = New(Config{
		NewUUID: counting(), Term: 1, Authority: true, Resume: true, Registry: reg,
		HeartbeatInterval: time.Second, HeartbeatTimeout: 8 * time.Second,
	})
	r.m.unchecked = true
	r.step(Tick{})
	return r
}

func (r *returning) step(ev Event) {
	for _, e := range slices.Clone(r.m.Step(0, ev)) { // what is answered here steps again
		switch e := e.(type) {
		case Send:
			r.out++
		case Commit:
			r.step(Committed{e.Number})
		case Confirm:
			r.step(Confirmed(e))
		}
	}
}

// comes has peer i come back and report.
func (r *returning) comes(i int) {
	c := ClientID(i + 1)
	g := i / r.size
	ring := r.peers[g*r.size : (g+1)*r.size]
	r.step(Connected{Client: c, Remote: netip.MustParseAddrPort("10.0.0.1:5")})
	r.step(PacketIn{c, wire.C2MRequestSessionRegistration{PeerGroup: uint32(g), P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: wire.Ext{
		Native: true, HeartbeatInterval: time.Second, HeartbeatTimeout: 5 * time.Second, Early: wire.Early{Eager: true},
		Resuming: wire.Resuming{Resume: true, Identity: wire.Identity{UUID: r.peers[i]}},
	}}})
	s := stood(ring...)
	s.Round.World, s.Round.Groups = uint64(len(r.peers)), uint64(len(r.peers)/r.size)
	s.Ops = []wire.ReportedOp{opOf(wire.OpVoted, 0)}
	r.step(PacketIn{c, s})
}

// BenchmarkRecovery is a restarted master to which 1,000 peers come back.
func BenchmarkRecovery(b *testing.B) {
	for _, size := range []int{1000, 4} {
		b.Run(fmt.Sprintf("group=%d", size), func(b *testing.B) {
			for b.Loop() {
				r := newReturning(1000, size)
				begin := time.Now()
				for i := range 999 {
					r.comes(i)
				}
				b.ReportMetric(float64(time.Since(begin).Microseconds())/1e3, "ms/reports")
				begin = time.Now()
				r.comes(999)
				require.True(b, !r.m.recovery.on)
				b.ReportMetric(float64(time.Since(begin).Microseconds())/1e3, "ms/decision")
			}
		})
	}
}

// The master of 1,000 peers decides with the last report, without time passing, and what it
// does then grows with the number of peers, not with its square. BenchmarkRecovery says how
// long that takes.
func TestRecoveryOfAThousandPeers(t *testing.T) {
	for _, size := range []int{1000, 4} {
		r := newReturning(1000, size)
		for i := range 999 {
			r.comes(i)
		}
		require.True(t, r.m.recovery.on)
		require.Less(t, r.out, 3*1000, "packets before the decision")
		before := r.out
		r.comes(999)
		require.False(t, r.m.recovery.on)
		require.GreaterOrEqual(t, r.out-before, 1000, "all collectives are commenced")
		require.Less(t, r.out-before, 5*1000, "packets of the decision")
	}
}
