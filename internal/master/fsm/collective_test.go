package fsm

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// commence starts tag for cs and returns its sequence number.
func (w *world) commence(tag uint64, cs ...ClientID) (seq uint64) {
	w.t.Helper()
	for _, c := range cs {
		w.send(c, initiate(tag))
	}
	for _, c := range cs {
		p := want[wire.M2CCollectiveCommsCommence](w, c)
		require.Equal(w.t, tag, p.Tag)
		seq = p.SeqNr
	}
	return seq
}

func (w *world) finish(tag uint64, aborted bool, cs ...ClientID) {
	w.t.Helper()
	for _, c := range cs {
		p := want[wire.M2CCollectiveCommsAbort](w, c)
		require.Equal(w.t, tag, p.Tag)
		require.Equal(w.t, aborted, p.Aborted)
	}
	w.released(tag, cs...)
}

func (w *world) released(tag uint64, cs ...ClientID) {
	w.t.Helper()
	for _, c := range cs {
		require.Equal(w.t, tag, want[wire.M2CCollectiveCommsComplete](w, c).Tag)
	}
	w.quiet(cs...)
}

// Sequence numbers count up over all groups and tags; a tag may be used again
// after M2C 10.
func TestSequence_Section11(t *testing.T) {
	w := newWorld(t, Config{})
	a := []ClientID{w.member(0, false), w.member(0, false)}
	b := w.member(1, false)
	seq := uint64(0)
	for range 3 {
		require.Equal(t, seq, w.commence(9, a...))
		require.Equal(t, seq+1, w.commence(9, b))
		require.Equal(t, seq+2, w.commence(4, a...))
		seq += 3
		for _, tag := range []uint64{9, 4} {
			for _, c := range a {
				w.send(c, complete(tag, false))
			}
			for _, c := range a {
				require.False(t, want[wire.M2CCollectiveCommsAbort](w, c).Aborted)
				want[wire.M2CCollectiveCommsComplete](w, c)
			}
		}
		w.send(b, complete(9, false))
		w.finish(9, false, b)
	}
}

// The reporter of a failure gets the abort, too; once, however many report.
func TestAbort_Section11(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, false)
	w.commence(1, cs...)
	w.commence(2, cs...)
	w.send(cs[0], complete(1, true))
	for _, c := range cs {
		require.Equal(t, wire.M2CCollectiveCommsAbort{Tag: 1, Aborted: true}, want[wire.M2CCollectiveCommsAbort](w, c)) // S2-14
	}
	w.quiet(cs...)
	w.send(cs[1], complete(1, true))
	w.quiet(cs...)
	w.send(cs[2], complete(1, false))
	w.released(1, cs...)
	// The other operation is untouched.
	for _, c := range cs {
		w.send(c, complete(2, false))
	}
	w.finish(2, false, cs...)
	for _, c := range cs {
		require.Equal(t, Idle, w.state(c))
	}
}

// Many tags in flight, in any order of votes.
func TestManyTags_Section11(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, false)
	const n = 100
	for tag := range uint64(n) {
		w.send(cs[0], initiate(tag))
		w.send(cs[1], initiate(n-1-tag))
	}
	for _, c := range cs {
		for range n {
			want[wire.M2CCollectiveCommsCommence](w, c)
		}
		w.quiet(c)
		for tag := range uint64(n) {
			w.send(c, complete(tag, false))
		}
	}
	for _, c := range cs {
		require.Len(t, w.inbox[c], 2*n)
	}
	require.Empty(t, w.m.groups[0].tags.list, "tags of finished operations stay")
}

// A client cannot open operations without bound.
func TestTagsAreBounded(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, false)
	for tag := range uint64(maxOps) {
		w.send(cs[0], initiate(tag))
	}
	w.quiet(cs...)
	w.send(cs[0], initiate(maxOps))
	w.isClosed(cs[0], "collectives at once")
	require.Empty(t, w.m.groups[0].tags.list)
}

// Quirk Q47: differing arguments are logged by name; gopccl peers among
// themselves get a typed verdict instead of garbage.
func TestMismatch_Q47(t *testing.T) {
	for name, tc := range map[string]struct {
		other  wire.C2MCollectiveCommsInitiate
		native bool
	}{
		"count native": {wire.C2MCollectiveCommsInitiate{Tag: 1, Count: 11, DType: dtype.Float32, Op: dtype.Sum}, true},
		"dtype native": {wire.C2MCollectiveCommsInitiate{Tag: 1, Count: 10, DType: dtype.Float64, Op: dtype.Sum}, true},
		"op native":    {wire.C2MCollectiveCommsInitiate{Tag: 1, Count: 10, DType: dtype.Float32, Op: dtype.Max}, true},
		"form native":  {wire.C2MCollectiveCommsInitiate{Tag: 1, Count: 10, DType: dtype.Float32, Op: dtype.Sum, Form: wire.FormOf("zeropoint", dtype.Uint8)}, true},
		"op mixed":     {wire.C2MCollectiveCommsInitiate{Tag: 1, Count: 10, DType: dtype.Float32, Op: dtype.Max}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			cs := []ClientID{w.member(0, true), w.member(0, tc.native)}
			first := initiate(1)
			first.Form = wire.FormOf("zeropoint", dtype.Int8)
			w.send(cs[0], first)
			w.send(cs[1], tc.other)
			f := w.factOf("mismatch")
			require.Contains(t, f.Text, "sent as int8 by zeropoint")
			require.Contains(t, f.Text, "collective 1")
			require.Contains(t, f.Text, w.ids[cs[0]].Short())
			require.Contains(t, f.Text, w.ids[cs[1]].Short())
			for _, c := range cs {
				want[wire.M2CCollectiveCommsCommence](w, c)
				if tc.native {
					p := want[wire.M2CCollectiveCommsAbort](w, c)
					require.True(t, p.Aborted)
					require.EqualValues(t, errs.Mismatch, p.ReasonCode)
					require.Equal(t, f.Text, p.Reason)
				}
				w.send(c, complete(1, tc.native))
			}
			if !tc.native {
				w.finish(1, false, cs...)
			} else {
				w.released(1, cs...)
			}
		})
	}
}

// A peer that does not say how its data travels agrees with all that do and that
// agree among themselves, whatever the order.
func TestWireFormsThatAreNotTold(t *testing.T) {
	for _, differs := range []bool{false, true} {
		for at := range 3 {
			w := newWorld(t, Config{})
			cs := w.members(3, true)
			for i, c := range cs {
				p := initiate(1)
				if i != at {
					p.Form = wire.FormOf("minmax", dtype.Uint8)
				}
				if differs && i == (at+1)%3 {
					p.Form = wire.FormOf("minmax", dtype.Uint16)
				}
				w.send(c, p)
			}
			want[wire.M2CCollectiveCommsCommence](w, cs[0])
			require.Equal(t, differs, slices.ContainsFunc(w.facts, func(f Fact) bool { return f.Kind == "mismatch" }))
		}
	}
}

// Section 12: initiate vote, others outstanding: the leaver is forgotten.
func TestLeaverHadVoted_Section12(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, false)
	w.send(cs[2], initiate(1))
	w.send(cs[0], initiate(1))
	w.leave(cs[2])
	w.quiet(cs[:2]...)
	w.send(cs[1], initiate(1))
	for _, c := range cs[:2] {
		want[wire.M2CCollectiveCommsCommence](w, c)
	}
	w.quiet(cs[:2]...)
}

// Section 12: several operations in different states when a member leaves.
func TestLeaverAmongManyTags_Section12(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, false)
	w.commence(1, cs...) // performed by all
	w.commence(2, cs...) // completed by the two others
	w.send(cs[0], complete(2, false))
	w.send(cs[1], complete(2, false))
	w.send(cs[0], initiate(3)) // open vote, leaver missing
	w.send(cs[1], initiate(3))
	w.send(cs[0], initiate(4)) // open vote, another one missing
	w.leave(cs[2])
	for i, c := range cs[:2] {
		require.Equal(t, wire.M2CCollectiveCommsAbort{Tag: 1, Aborted: true}, want[wire.M2CCollectiveCommsAbort](w, c))
		require.Equal(t, wire.M2CCollectiveCommsAbort{Tag: 2}, want[wire.M2CCollectiveCommsAbort](w, c))
		require.EqualValues(t, 2, want[wire.M2CCollectiveCommsComplete](w, c).Tag)
		require.EqualValues(t, 3, want[wire.M2CCollectiveCommsCommence](w, c).Tag)
		require.Equal(t, wire.M2CCollectiveCommsAbort{Tag: 3, Aborted: true}, want[wire.M2CCollectiveCommsAbort](w, c)) // S2-14
		w.quiet(c)
		require.Equal(t, Collective, w.state(c))
		w.send(c, complete(1, true))
		w.send(c, complete(3, true))
		if i == 1 {
			w.send(c, initiate(4))
		}
	}
	for _, c := range cs[:2] {
		require.EqualValues(t, 1, want[wire.M2CCollectiveCommsComplete](w, c).Tag)
		require.EqualValues(t, 3, want[wire.M2CCollectiveCommsComplete](w, c).Tag)
		require.EqualValues(t, 4, want[wire.M2CCollectiveCommsCommence](w, c).Tag)
	}
}

// Section 12: the abort of a leaver reaches those that had completed as well,
// and no other group.
func TestAbortOfLeaver_Section12(t *testing.T) {
	w := newWorld(t, Config{})
	a := []ClientID{w.member(0, true), w.member(0, true), w.member(0, false)}
	b := w.member(1, true)
	w.commence(1, a...)
	w.commence(1, b)
	w.send(a[0], complete(1, false))
	w.step(Gone{Client: a[2], Reason: "reset by the peer"})
	for _, c := range a[:2] {
		d := want[wire.M2CPeerDropped](w, c)
		require.Equal(t, wire.M2CPeerDropped{UUID: w.ids[a[2]], Addr: addr("127.0.0.1:40002"), Reason: "reset by the peer"}, d)
		p := want[wire.M2CCollectiveCommsAbort](w, c)
		require.True(t, p.Aborted)
		require.Contains(t, p.Reason, "reset by the peer")
		require.EqualValues(t, errs.RankConnectionLost, p.ReasonCode)
	}
	w.quiet(b)
	w.send(a[1], complete(1, true))
	w.released(1, a[:2]...)
}

// A gopccl peer that is dropped is told why, in the last packet before the end. A
// PCCL peer would die of a packet that it does not know.
func TestDroppedPeerIsToldWhy(t *testing.T) {
	w := newWorld(t, Config{})
	a := []ClientID{w.member(0, true), w.member(0, false)}
	for _, c := range a {
		w.send(c, wire.C2MCollectiveCommsComplete{Tag: 9})
		w.isClosed(c, "is not allowed")
	}
	d := want[wire.M2CPeerDropped](w, a[0])
	require.Equal(t, w.ids[a[0]], d.UUID)
	require.Contains(t, d.Reason, "is not allowed in state PEER_ACCEPTED/IDLE")
	require.Empty(t, append(w.inbox[a[0]], w.inbox[a[1]]...))
}

// Optimize, section 10: missing edges only, of the own group; measured values
// are kept; new peers are measured.
func TestMissingEdges_Section10(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, false)
	other := w.member(1, false)
	all := append(cs, other)
	measure := func(expect ...int) {
		t.Helper()
		for _, c := range all {
			w.send(c, wire.C2MOptimizeTopology{})
		}
		for i, c := range all {
			p := want[wire.M2COptimizeTopologyResponse](w, c)
			require.Len(t, p.Requests, expect[i]) // S1-15
			for _, r := range p.Requests {
				require.Equal(t, w.ids[c], r.From)
				require.NotEqual(t, w.ids[c], r.To)
				require.NotEqual(t, w.ids[other], r.To)
				require.EqualValues(t, 3, r.Addr.Port())
				w.send(c, wire.C2MReportPeerBandwidth{To: r.To, Mbps: 100})
			}
			w.quiet(c)
			w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
		}
		for _, c := range all {
			require.Equal(t, wire.M2COptimizeTopologyComplete{Success: true}, want[wire.M2COptimizeTopologyComplete](w, c))
		}
	}
	measure(2, 2, 2, 0)
	measure(0, 0, 0, 0)
	n := w.member(0, false)
	all = append(all, n)
	measure(1, 1, 1, 0, 3)
	w.leave(n)
	all = all[:4]
	measure(0, 0, 0, 0)
	// An edge that could not be measured is not asked for again.
	n = w.member(0, false)
	all = append(all, n)
	for _, c := range all {
		w.send(c, wire.C2MOptimizeTopology{})
	}
	for _, c := range all {
		want[wire.M2COptimizeTopologyResponse](w, c)
		w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
	}
	for _, c := range all {
		want[wire.M2COptimizeTopologyComplete](w, c)
	}
	measure(0, 0, 0, 0, 0)
}

// A tag whose performers have all left carries nothing over to the next use of
// it, for which a vote was in already: its verdict is sent (quirk Q15).
func TestTagOfThoseWhoLeft_Q15(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, true)
	late := w.m.conns[cs[2]]
	late.letOut() // it took no part in the first use
	w.send(cs[0], initiate(1))
	w.send(cs[1], initiate(1))
	w.m.admit(late)
	for _, c := range cs[:2] {
		want[wire.M2CCollectiveCommsCommence](w, c)
	}
	w.send(cs[0], complete(1, true))
	require.True(t, want[wire.M2CCollectiveCommsAbort](w, cs[1]).Aborted)
	w.send(cs[2], initiate(1))
	w.leave(cs[0])
	w.leave(cs[1])
	for range 2 {
		want[wire.M2CPeerDropped](w, cs[2])
	}
	w.send(cs[2], complete(1, false))
	var got []wire.ID
	for p := w.pop(cs[2]); p != nil; p = w.pop(cs[2]) {
		switch p := p.(type) {
		case wire.M2CCollectiveCommsCommence:
			if p.Tag == 1 {
				got = append(got, p.ID())
			}
		case wire.M2CCollectiveCommsAbort:
			if p.Tag == 1 {
				got = append(got, p.ID())
			}
		case wire.M2CCollectiveCommsComplete:
			got = append(got, p.ID())
		}
	}
	require.Equal(t, []wire.ID{9, 11, 10}, got)
}

// A peer that registers and goes again disturbs no collective: it takes part in none.
func TestStrangerLeavesDuringCollective(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, true)
	w.commence(1, cs...)
	stranger := w.join(0, true)
	w.leave(stranger)
	w.quiet(cs...)
	for _, c := range cs {
		w.send(c, complete(1, false))
	}
	w.finish(1, false, cs...)
}
