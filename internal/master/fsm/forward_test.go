package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// forwarding has n members that finish forward.
func forwarding(t *testing.T, n int) (*world, []ClientID) {
	w := newWorld(t, Config{PhaseTimeout: 10 * time.Second})
	w.version = wire.CollectivesVersion
	cs := w.members(n, true)
	for _, c := range cs {
		w.m.conns[c].can.forward = true
	}
	return w, cs
}

func wanting(tag uint64) wire.C2MCollectiveCommsInitiate {
	p := initiate(tag)
	p.Forward = true
	return p
}

func holds(tag uint64) wire.C2MCollectiveCommsComplete {
	return wire.C2MCollectiveCommsComplete{Tag: tag, Holds: true}
}

// begin starts tag for cs with the given votes, and returns its number and whether it may be
// finished forward.
func (w *world) begin(cs []ClientID, vote func(i int) wire.C2MCollectiveCommsInitiate) (seq uint64, granted bool) {
	w.t.Helper()
	for i, c := range cs {
		w.send(c, vote(i))
	}
	for _, c := range cs {
		p := want[wire.M2CCollectiveCommsCommence](w, c)
		seq, granted = p.SeqNr, p.Forward
	}
	return seq, granted
}

// It is granted where all want it, with the same arguments, for a result of at most 4 MiB.
func TestForwardIsGranted(t *testing.T) {
	for what, c := range map[string]struct {
		change func(i int, p *wire.C2MCollectiveCommsInitiate)
		want   bool
	}{
		"all want it":              {func(int, *wire.C2MCollectiveCommsInitiate) {}, true},
		"4 MiB":                    {func(_ int, p *wire.C2MCollectiveCommsInitiate) { p.Count = wire.MaxForward / 4 }, true},
		"more":                     {func(_ int, p *wire.C2MCollectiveCommsInitiate) { p.Count = wire.MaxForward/4 + 1 }, false},
		"more than can be counted": {func(_ int, p *wire.C2MCollectiveCommsInitiate) { p.Count = 1 << 62 }, false},
		"one does not want it":     {func(i int, p *wire.C2MCollectiveCommsInitiate) { p.Forward = i != 1 }, false},
		"other counts":             {func(i int, p *wire.C2MCollectiveCommsInitiate) { p.Count += uint64(i / 2) }, false},
	} {
		w, cs := forwarding(t, 3)
		_, granted := w.begin(cs, func(i int) wire.C2MCollectiveCommsInitiate {
			p := wanting(1)
			c.change(i, &p)
			return p
		})
		require.Equal(t, c.want, granted, what)
	}
	w, cs := forwarding(t, 3)
	w.m.conns[cs[2]].can.forward = false
	_, granted := w.begin(cs, func(int) wire.C2MCollectiveCommsInitiate { return wanting(1) })
	require.False(t, granted, "a member that knows nothing of it")
}

// Who could not complete a collective gets the result of one that did, at most four at a time; nobody is
// released before all have it.
func TestResultIsPassedOn(t *testing.T) {
	w, cs := forwarding(t, 7)
	seq, granted := w.begin(cs, func(int) wire.C2MCollectiveCommsInitiate { return wanting(5) })
	require.True(t, granted)
	w.send(cs[0], holds(5))
	w.send(cs[1], complete(5, true))
	for _, c := range cs {
		require.True(t, want[wire.M2CCollectiveCommsAbort](w, c).Aborted)
	}
	for _, c := range cs[2:] {
		w.send(c, complete(5, true))
	}
	require.Equal(t, wire.M2CAskResult{Tag: 5, Seq: seq}, want[wire.M2CAskResult](w, cs[0]))
	w.quiet(cs...)
	data := make([]byte, 40)
	data[7] = 3
	w.send(cs[0], wire.C2MResult{Tag: 5, Seq: seq, Data: data})
	for _, c := range cs[1:5] {
		require.Equal(t, wire.M2CResult{Tag: 5, Seq: seq, Data: data}, want[wire.M2CResult](w, c))
	}
	w.quiet(cs...)
	for _, c := range cs[1:5] {
		w.send(c, holds(5))
	}
	for _, c := range cs[5:] {
		require.Equal(t, data, want[wire.M2CResult](w, c).Data)
		w.send(c, holds(5))
	}
	for _, c := range cs {
		require.Equal(t, wire.M2CCollectiveCommsComplete{Tag: 5, Held: true}, want[wire.M2CCollectiveCommsComplete](w, c))
	}
	w.quiet(cs...)
	require.False(t, w.m.freed)
	require.Zero(t, w.m.groups[0].rescues())
	w.commence(5, cs...)
}

// The holder that was asked is gone, or does not have it after all: another one is asked. Where there is none
// it is an abort as ever.
func TestHoldersAreAskedInTurn(t *testing.T) {
	for _, dies := range []bool{true, false} {
		w, cs := forwarding(t, 4)
		seq, _ := w.begin(cs, func(int) wire.C2MCollectiveCommsInitiate { return wanting(5) })
		w.send(cs[0], holds(5))
		w.send(cs[1], holds(5))
		w.send(cs[2], complete(5, true))
		w.send(cs[3], complete(5, true))
		for _, c := range cs {
			want[wire.M2CCollectiveCommsAbort](w, c)
		}
		for _, holder := range cs[:2] {
			require.IsType(t, wire.M2CAskResult{}, w.behindNews(holder))
			if dies {
				w.leave(holder)
				continue
			}
			w.send(holder, wire.C2MResult{Tag: 5, Seq: seq, Data: []byte{1}}) // of another size
		}
		rest := cs[2:]
		if !dies {
			rest = cs
		}
		for _, c := range rest {
			require.Equal(t, wire.M2CCollectiveCommsComplete{Tag: 5}, w.behindNews(c), "dies %v", dies)
		}
	}
}

// behindNews returns the next packet of c that does not say that somebody is gone.
func (w *world) behindNews(c ClientID) wire.Packet {
	for {
		p := w.pop(c)
		if _, news := p.(wire.M2CPeerDropped); !news {
			return p
		}
	}
}

// A result that nobody has asked for costs its sender the place.
func TestResultsOfStrangers(t *testing.T) {
	w, cs := forwarding(t, 3)
	seq, _ := w.begin(cs, func(int) wire.C2MCollectiveCommsInitiate { return wanting(5) })
	w.send(cs[0], wire.C2MResult{Tag: 5, Seq: seq, Data: make([]byte, 40)})
	w.isClosed(cs[0], "it was not asked for")
}

// Who is asked, or gets a result, and does not answer is dropped as one that holds up the end of a collective,
// counted from then on.
func TestSilentHolderIsDropped(t *testing.T) {
	w, cs := forwarding(t, 3)
	w.begin(cs, func(int) wire.C2MCollectiveCommsInitiate { return wanting(5) })
	w.send(cs[0], holds(5))
	alive := func(d time.Duration, cs ...ClientID) {
		for range int(d / time.Second) {
			for _, c := range cs {
				w.send(c, wire.C2MHeartbeat{})
			}
			w.after(time.Second)
		}
	}
	alive(8*time.Second, cs...)
	w.send(cs[1], complete(5, true))
	w.send(cs[2], complete(5, true))
	alive(8*time.Second, cs...)
	require.Empty(t, w.closed)
	alive(5*time.Second, cs...)
	w.isClosed(cs[0], "did not end collective 5")
	require.NotContains(t, w.closed, cs[1])
}

// Without a bound on phases there is one on passing results on, which other ones do not move on.
func TestRescuesEnd(t *testing.T) {
	w, cs := forwarding(t, 3)
	w.m.cfg.PhaseTimeout = 0
	lost := func(tag uint64, answers bool) {
		seq, _ := w.begin(cs, func(int) wire.C2MCollectiveCommsInitiate { return wanting(tag) })
		w.send(cs[0], holds(tag))
		w.send(cs[1], complete(tag, true))
		w.send(cs[2], holds(tag))
		for _, c := range cs {
			want[wire.M2CCollectiveCommsAbort](w, c)
		}
		want[wire.M2CAskResult](w, cs[0])
		if answers {
			w.send(cs[0], wire.C2MResult{Tag: tag, Seq: seq, Data: make([]byte, 40)})
			want[wire.M2CResult](w, cs[1])
			w.send(cs[1], holds(tag))
			for _, c := range cs {
				want[wire.M2CCollectiveCommsComplete](w, c)
			}
		}
	}
	lost(1, false)
	for second := range int(longestRescue / time.Second) {
		require.Empty(t, w.closed)
		if second == 60 {
			lost(2, true)
		}
		for _, c := range cs {
			w.send(c, wire.C2MHeartbeat{})
		}
		w.after(time.Second)
	}
	w.isClosed(cs[0], "did not pass the result of collective 1 on")
	require.IsType(t, wire.M2CAskResult{}, w.behindNews(cs[2]), "another one is asked")
}

// An operation that was aborted before its commence is not finished forward, and who aborted it hears so.
func TestGivenUpBeforeTheCommence(t *testing.T) {
	w, cs := forwarding(t, 2)
	w.m.conns[cs[0]].can.eager = true
	w.send(cs[0], wanting(5))
	w.send(cs[0], complete(5, true))
	require.Equal(t, wire.M2CGivenUp{Tag: 5}, want[wire.M2CGivenUp](w, cs[0]))
	w.send(cs[1], wanting(5))
	require.False(t, want[wire.M2CCollectiveCommsCommence](w, cs[1]).Forward)
	require.True(t, want[wire.M2CCollectiveCommsAbort](w, cs[1]).Aborted)
	w.send(cs[1], holds(5)) // it had it before it heard of that
	require.Equal(t, wire.M2CCollectiveCommsComplete{Tag: 5}, want[wire.M2CCollectiveCommsComplete](w, cs[1]))
}

// The results of so many are passed on at a time; the next one follows when one is through.
func TestRescuesAreBounded(t *testing.T) {
	w, cs := forwarding(t, 2)
	seqs := map[uint64]uint64{}
	for tag := range uint64(rescuesOfOne + 2) {
		seqs[tag], _ = w.begin(cs, func(int) wire.C2MCollectiveCommsInitiate { return wanting(tag) })
		w.send(cs[0], holds(tag))
		w.send(cs[1], complete(tag, true))
		for _, c := range cs {
			want[wire.M2CCollectiveCommsAbort](w, c)
		}
		if tag < rescuesOfOne {
			require.Equal(t, tag, want[wire.M2CAskResult](w, cs[0]).Tag)
		}
	}
	w.quiet(cs...)
	require.Equal(t, rescuesOfOne, w.m.groups[0].rescues())
	for tag := range uint64(rescuesOfOne + 2) {
		w.send(cs[0], wire.C2MResult{Tag: tag, Seq: seqs[tag], Data: make([]byte, 40)})
		require.Equal(t, tag, want[wire.M2CResult](w, cs[1]).Tag)
		w.send(cs[1], holds(tag))
		for _, c := range cs {
			require.True(t, want[wire.M2CCollectiveCommsComplete](w, c).Held)
		}
		if tag < 2 {
			require.Equal(t, tag+rescuesOfOne, want[wire.M2CAskResult](w, cs[0]).Tag)
		}
		w.quiet(cs...)
	}
	require.Zero(t, w.m.groups[0].rescues())
}

// One member has heard that all have the result, and settled; another one has not when its master ends. It hears
// it from the next one, and of the abort before it, in whatever order they come back.
func TestStandingResultIsRecovered(t *testing.T) {
	for _, first := range []bool{true, false} {
		for _, heard := range []bool{true, false} {
			w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
			settled := stood(two...)
			settled.Verdicts = []wire.ReportedVerdict{{Tag: 7, Seq: 5, Verdict: wire.Verdict{Code: wire.VerdictStood}}}
			waits := stood(two...)
			o := wire.ReportedOp{Vote: wanting(7), Step: wire.OpReported, Seq: 5, Done: holds(7), Heard: heard}
			if heard {
				o.Verdict = wire.Verdict{Aborted: true, Code: 8, Reason: "a peer is gone"}
			}
			waits.Ops = []wire.ReportedOp{o}
			var b ClientID
			if first {
				w.returns(two[0], settled)
				b = w.returns(two[1], waits)
			} else {
				b = w.returns(two[1], waits)
				w.returns(two[0], settled)
			}
			if !heard {
				require.True(t, want[wire.M2CCollectiveCommsAbort](w, b).Aborted)
			}
			require.Equal(t, wire.M2CCollectiveCommsComplete{Tag: 7, Held: true}, want[wire.M2CCollectiveCommsComplete](w, b), "first %v, heard %v", first, heard)
		}
	}
}
