package fsm

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// gathered builds a world of n members that know all plans and have no mesh yet.
func gathered(t *testing.T, n int, version uint8) (*world, []ClientID) {
	w := newWorld(t, Config{Switch: true})
	var cs []ClientID
	for range n {
		old := w.accepted()
		c := w.connectAt("127.0.0.1:4000")
		x := wire.Ext{Native: true, Switch: true, Early: wire.Early{Eager: true}, Collectives: 1, Plans: version}
		w.send(c, wire.C2MRequestSessionRegistration{P2PPort: 1, Ext: x})
		require.Equal(t, x.Plans, want[wire.M2CSessionRegistrationResponse](w, c).Ext.Plans)
		for _, o := range old {
			w.send(o, acceptVote)
		}
		w.round(true)
		cs = append(cs, c)
	}
	return w, cs
}

// untried is gathered, and takes what members so far from each other are told when they are
// connected.
func untried(t *testing.T, n int, version uint8, rtt time.Duration) (*world, []ClientID) {
	w, cs := gathered(t, n, version)
	w.meshed(cs, rtt)
	if rtt > 10*time.Millisecond {
		first := ""
		if version >= wire.PlansVersion {
			first = plan.TrialName
		}
		require.Equal(t, first, w.planOf(w.switched(cs), n))
	}
	w.facts = nil
	return w, cs
}

// learning is untried, behind a trial in which nobody has shown anything.
func learning(t *testing.T, n int, version uint8, rtt time.Duration) (*world, []ClientID) {
	w, cs := untried(t, n, version, rtt)
	if version >= wire.PlansVersion && rtt > 10*time.Millisecond {
		w.reduced(cs, plan.LeastTrial, time.Second)
		require.Empty(t, w.planOf(w.switched(cs), n))
		w.facts = nil
	}
	return w, cs
}

const largeOp = 16 << 20

// waysGive has the master know what each way between members of g gives, in Mbit/s, by their places in
// the roster; 0: it does not know that one.
func (w *world) waysGive(g *group, mbps func(from, to int) float64) {
	for i, u := range g.roster {
		for k, o := range g.roster {
			if r := mbps(i, k); i != k && r > 0 {
				w.m.learn(w.m.uuids[u], o, r, 0)
			}
		}
	}
}

func alike(mbps float64) func(from, to int) float64 {
	return func(int, int) float64 { return mbps }
}

// reduced has cs do an all-reduce of so many bytes, at the end of which they say what
// they can send, in Mbit/s; none: nothing.
func (w *world) reduced(cs []ClientID, bytes uint64, took time.Duration, mbps ...float64) {
	w.t.Helper()
	p := initiate(1)
	p.Count = bytes / 4
	w.all(cs, p)
	w.commenced(cs, 1)
	w.after(took)
	for i, c := range cs {
		if len(mbps) > 0 {
			w.send(c, wire.C2MRates{Up: mbps[i], Down: w.down, Pairs: []wire.PathRate{{To: w.ids[cs[(i+1)%len(cs)]], Mbps: cmp.Or(w.link, mbps[i])}}})
		}
		w.send(c, complete(1, false))
	}
	w.verdict(cs, 1, false)
	for _, c := range cs {
		want[wire.M2CCollectiveCommsComplete](w, c)
	}
}

// twice has cs do two of them, so that the ring can be compared.
func (w *world) twice(cs []ClientID, bytes uint64, took time.Duration, mbps ...float64) {
	w.t.Helper()
	w.reduced(cs, bytes, took, mbps...)
	w.quiet(cs...)
	w.reduced(cs, bytes, took, mbps...)
}

// planOf returns the plan of large all-reduces, "" for the ring.
func (w *world) planOf(d wire.Direct, n int) string {
	w.t.Helper()
	if d.Schemes == "" {
		return ""
	}
	o, err := plan.ParseOptions([]byte(d.Schemes), n)
	require.NoError(w.t, err)
	if at := o.For(largeOp); at != nil {
		return at.Scheme.Name
	}
	return ""
}

// Nobody measures anything: members show in a large all-reduce what they can send, and
// from then on the fast ones do more. Plans change when that moves by enough, not at once
// again, and not if other plans bring little.
func TestPlansFollowWhatIsShown(t *testing.T) {
	w, cs := learning(t, 4, wire.PlansVersion, 40*time.Millisecond)
	w.reduced(cs, 1<<19, time.Second, 20, 100, 200, 400)
	w.quiet(cs...) // nothing large is under way
	w.twice(cs, largeOp, 10*time.Second, 20, 100, 200, 400)
	d := w.switched(cs)
	require.Equal(t, "shares", w.planOf(d, 4))
	require.Contains(t, w.factOf("plan").Text, "shares")

	w.reduced(cs, largeOp, 5*time.Second, 21, 110, 190, 400)
	w.quiet(cs...)
	w.reduced(cs, largeOp, 5*time.Second)
	w.quiet(cs...)

	// One becomes much slower. The plan is slower than the ring was, until that is timed
	// again.
	for len(w.inbox[cs[0]]) == 0 {
		w.reduced(cs, largeOp, 20*time.Second, 20, 100, 200, 10)
	}
	require.Empty(t, w.planOf(w.switched(cs), 4))
	for len(w.inbox[cs[0]]) == 0 {
		w.reduced(cs, largeOp, 35*time.Second, 20, 100, 200, 10)
	}
	next := w.switched(cs)
	require.Equal(t, "shares", w.planOf(next, 4))
	require.NotEqual(t, d, next)

	// A round of the same members changes nothing of it; a newcomer does.
	w.infos(cs)
	w.meshed(cs, 40*time.Millisecond)
	require.Equal(t, next.Schemes, w.switched(cs).Schemes)
	w.leave(cs[3])
	w.drain(cs[:3])
	w.infos(cs[:3])
	require.Empty(t, w.m.groups[0].learned.last.List)
}

// The first large all-reduce is a trial, in which members show what they can: a ring shows
// little of that. It comes back if the ring turns out to be slower.
func TestTrial(t *testing.T) {
	for name, took := range map[string]time.Duration{"faster": 3 * time.Second, "faster by far": time.Second, "hopeless": 13 * time.Second} {
		t.Run(name, func(t *testing.T) {
			w, cs := untried(t, 4, wire.PlansVersion, 40*time.Millisecond)
			w.reduced(cs, largeOp, took, 20, 20, 20, 20)
			require.Empty(t, w.planOf(w.switched(cs), 4))
			w.reduced(cs, largeOp, 5*time.Second, 20, 20, 20, 20)
			if took > time.Second {
				w.quiet(cs...) // the ring may have had windows to open
				w.reduced(cs, largeOp, 5*time.Second, 20, 20, 20, 20)
			}
			if took < 5*time.Second {
				require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
			}
			for range 5 {
				w.reduced(cs, largeOp, min(took, 5*time.Second), 20, 20, 20, 20)
				w.quiet(cs...)
			}
		})
	}
	const sec = time.Second
	for name, took := range map[string][]time.Duration{
		"its first fills windows":     {6 * sec, 4 * sec},
		"its first overflows a queue": {12 * sec, 4 * sec},
		"its first two do":            {12 * sec, 7 * sec, 4 * sec},
		"slower three times":          {12 * sec, 7 * sec, 6 * sec},
		"slower twice by much":        {12 * sec, 9 * sec},
	} {
		t.Run(name, func(t *testing.T) {
			w, cs := untried(t, 4, wire.PlansVersion, 40*time.Millisecond)
			w.reduced(cs, largeOp, took[0], 20, 20, 20, 20)
			require.Empty(t, w.planOf(w.switched(cs), 4))
			w.twice(cs, largeOp, 5*time.Second, 20, 20, 20, 20)
			require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4), "it may be windows")
			for i, d := range took[1:] {
				if i > 0 {
					w.quiet(cs...) // the trial goes on
				}
				w.reduced(cs, largeOp, d, 20, 20, 20, 20)
			}
			last, least := plan.TrialName, slices.Min(took)
			if least > 5*time.Second {
				last = w.planOf(w.switched(cs), 4)
				require.Empty(t, last)
			}
			for range 5 {
				w.reduced(cs, largeOp, min(least, 5*time.Second), 20, 20, 20, 20)
				w.quiet(cs...)
			}
			require.Equal(t, last, w.planOf(w.m.groups[0].mesh.direct, 4))
		})
	}
	t.Run("shows more", func(t *testing.T) {
		w, cs := untried(t, 4, wire.PlansVersion, 40*time.Millisecond)
		w.reduced(cs, largeOp, 13*time.Second, 20, 300, 300, 300)
		require.Equal(t, "shares", w.planOf(w.switched(cs), 4))
	})
	t.Run("faster than what it shows would be", func(t *testing.T) {
		w, cs := untried(t, 4, wire.PlansVersion, 40*time.Millisecond)
		for range 3 {
			w.reduced(cs, largeOp, 4*time.Second, 20, 50, 60, 55) // of which shares would take 6 s, and a ring 13
			w.quiet(cs...)
		}
	})
	t.Run("behind an all-reduce that came before the mesh", func(t *testing.T) {
		w, cs := gathered(t, 4, wire.PlansVersion)
		w.reduced(cs, largeOp, 9*time.Second, 20, 20, 20, 20)
		w.meshed(cs, 40*time.Millisecond)
		require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
		// What is much faster than the ring was at first is not kept waiting for its second time.
		w.reduced(cs, largeOp, 5*time.Second, 60, 300, 300, 300)
		require.Equal(t, "shares", w.planOf(w.switched(cs), 4))
	})
	t.Run("near, or too large", func(t *testing.T) {
		w, cs := untried(t, 4, wire.PlansVersion, 200*time.Microsecond)
		w.twice(cs, largeOp, time.Second)
		w.quiet(cs...)
		w, cs = untried(t, 4, wire.PlansVersion, 40*time.Millisecond)
		w.reduced(cs, plan.MostTrial+4, time.Second)
		w.quiet(cs...)
		require.Zero(t, w.m.groups[0].learned.trials)
	})
	t.Run("older", func(t *testing.T) {
		w, cs := learning(t, 4, wire.SchemePlans, 40*time.Millisecond)
		for _, c := range cs {
			w.send(c, wire.C2MRates{Up: 20, Down: 20})
			require.Empty(t, w.m.conns[c].ways.gave)
		}
	})
}

// A plan of what a trial has shown gives way to the trial's where that was faster.
func TestBackFromWhatATrialShows(t *testing.T) {
	w, cs := untried(t, 4, wire.PlansVersion, 40*time.Millisecond)
	w.reduced(cs, largeOp, 9*time.Second, 20, 20, 20, 20)
	require.Empty(t, w.planOf(w.switched(cs), 4))
	w.reduced(cs, largeOp, 13*time.Second, 20, 20, 20, 20)
	require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
	w.reduced(cs, largeOp, 9*time.Second, 20, 20, 20, 20)
	w.quiet(cs...)
	w.reduced(cs, largeOp, 9*time.Second, 60, 300, 300, 300)
	require.Equal(t, "shares", w.planOf(w.switched(cs), 4))
	w.reduced(cs, largeOp, 10*time.Second, 60, 300, 300, 300)
	w.quiet(cs...) // it had connections to open
	w.reduced(cs, largeOp, 10*time.Second, 60, 300, 300, 300)
	require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
	w.reduced(cs, largeOp, 9*time.Second, 60, 300, 300, 300)
	w.quiet(cs...)
}

// A ring of which each link gave all that it has says little of what hosts give over all of their ways. A
// trial behind it does so at once.
func TestTrialBesideAFullRing(t *testing.T) {
	full := func(t *testing.T) (*world, []ClientID) {
		w, cs := gathered(t, 4, wire.PlansVersion)
		g := w.m.groups[0]
		for i, u := range g.ring {
			w.m.learn(w.m.uuids[u], g.ring[(i+1)%4], 50, 0)
		}
		return w, cs
	}
	t.Run("faster", func(t *testing.T) {
		w, cs := full(t)
		w.twice(cs, largeOp, 5*time.Second, 50, 50, 50, 50)
		w.meshed(cs, 40*time.Millisecond)
		require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
		w.waysGive(w.m.groups[0], alike(50)) // and hosts give it on all of them
		for range 5 {
			w.reduced(cs, largeOp, 2*time.Second, 140, 140, 140, 140)
			w.quiet(cs...)
		}
	})
	t.Run("no faster", func(t *testing.T) {
		w, cs := full(t)
		w.twice(cs, largeOp, 4500*time.Millisecond, 50, 50, 50, 50)
		w.meshed(cs, 40*time.Millisecond)
		require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
		w.reduced(cs, largeOp, 4600*time.Millisecond, 50, 50, 50, 50)
		require.Empty(t, w.planOf(w.switched(cs), 4))
		for range 5 {
			w.reduced(cs, largeOp, 4500*time.Millisecond, 50, 50, 50, 50)
			w.quiet(cs...)
		}
	})
	t.Run("slower at first, as the ring was", func(t *testing.T) {
		w, cs := full(t)
		w.reduced(cs, largeOp, 6*time.Second, 50, 50, 50, 50)
		w.reduced(cs, largeOp, 5*time.Second, 50, 50, 50, 50)
		w.meshed(cs, 40*time.Millisecond)
		require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
		for _, took := range []time.Duration{5500 * time.Millisecond, 4 * time.Second, 4 * time.Second} {
			w.reduced(cs, largeOp, took, 50, 50, 50, 50)
			w.quiet(cs...)
		}
	})
	t.Run("beside a plan that was measured", func(t *testing.T) {
		w, cs := gathered(t, 4, wire.PlansVersion)
		w.waysGive(w.m.groups[0], func(from, to int) float64 {
			if from == 2 && to == 1 {
				return 0 // it did not answer
			}
			return []float64{20, 100, 200, 400}[from]
		})
		w.meshed(cs, 40*time.Millisecond)
		require.Equal(t, "shares", w.planOf(w.switched(cs), 4))
	})
	t.Run("beside a plan of ways that give less than hosts do", func(t *testing.T) {
		w, cs := gathered(t, 4, wire.PlansVersion)
		g := w.m.groups[0]
		w.waysGive(g, func(from, to int) float64 {
			if from^to == 1 {
				return 100
			}
			return 30
		})
		w.meshed(cs, 40*time.Millisecond)
		_, p, ok := w.m.problem(g, g.ring)
		require.True(t, ok)
		require.NotEmpty(t, plan.Large(p).List)
		require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
	})
	// Each way was measured by itself, as OptimizeTopology does.
	for name, gives := range map[string]float64{"hosts give more than a way": 140, "hosts give no more than a way": 50} {
		t.Run(name, func(t *testing.T) {
			w, cs := gathered(t, 4, wire.PlansVersion)
			w.waysGive(w.m.groups[0], alike(50))
			w.meshed(cs, 40*time.Millisecond)
			require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
			took := 4500 * time.Millisecond * 50 / time.Duration(gives)
			w.reduced(cs, largeOp, took, gives, gives, gives, gives)
			if gives == 50 {
				require.Empty(t, w.planOf(w.switched(cs), 4))
			}
			for range 5 {
				w.reduced(cs, largeOp, took, gives, gives, gives, gives)
				w.quiet(cs...)
			}
		})
	}
}

// A trial is looked at when it was timed first, and when it can be compared.
func TestTrialsAreCounted(t *testing.T) {
	t.Run("one that stays is looked at once more, when it can be compared", func(t *testing.T) {
		l := &learner{}
		for i, looks := range []bool{true, false, true, false, false} {
			l.begin(largeOp, plan.TrialName, true, time.Minute)
			first, slow := l.end(time.Minute + time.Second)
			require.Equal(t, looks, first, "all-reduce %d", i)
			require.Empty(t, slow)
		}
	})
	t.Run("beside others it cannot be timed again", func(t *testing.T) {
		l := &learner{}
		l.begin(largeOp, plan.TrialName, true, 0)
		l.end(time.Second)
		for range trialTimes - 1 {
			require.True(t, l.untried())
			l.begin(largeOp, plan.TrialName, false, time.Minute)
			l.end(time.Minute + time.Second)
		}
		require.False(t, l.untried())
	})
}

// Members that a ring let wait, so that they showed less than it needed, are not taken for
// slower than the others.
func TestTheRingShowsALeast(t *testing.T) {
	w, cs := learning(t, 4, wire.PlansVersion, 40*time.Millisecond)
	w.reduced(cs, largeOp, 5*time.Second, 20, 45, 50, 51)
	require.Empty(t, w.planOf(w.switched(cs), 4), "there is one for 2 MiB, which spares delays")
	w.reduced(cs, largeOp, 5*time.Second, 20, 45, 50, 51)
	w.quiet(cs...)
}

// The ring shows nothing of members that send to near ones in it.
func TestTheRingShowsFarLinks(t *testing.T) {
	l := learner{bytes: largeOp, works: []work{{bytes: largeOp, name: ringName, took: []time.Duration{time.Second}}}}
	const near, far = time.Millisecond / 2, 30 * time.Millisecond
	p := plan.Problem{N: 3, Ring: []int{0, 1, 2}, Delay: []time.Duration{0, near, far, near, 0, far, far, far, 0}}
	p.Up, p.Down = []float64{1, 1, 1}, []float64{1, 1, 1}
	l.atLeast(&p, false)
	least := plan.RingRate(3, largeOp, time.Second)
	require.Equal(t, []float64{1, least, least}, p.Up)
	require.Equal(t, []float64{least, 1, least}, p.Down)
}

// Where collectives are under way all the time nothing can be timed, and members still
// show what they can.
func TestPlansBesideOtherCollectives(t *testing.T) {
	w, cs := learning(t, 4, wire.PlansVersion, 40*time.Millisecond)
	start := func(tag uint64) {
		p := initiate(tag)
		p.Count = largeOp / 4
		w.all(cs, p)
		w.commenced(cs, tag)
	}
	start(1)
	start(2)
	w.after(2 * time.Second)
	for i, c := range cs {
		w.send(c, wire.C2MRates{Up: []float64{20, 100, 200, 400}[i], Down: 500})
		w.send(c, complete(1, false))
	}
	w.verdict(cs, 1, false)
	for _, c := range cs {
		want[wire.M2CCollectiveCommsComplete](w, c)
	}
	start(1)
	w.after(2 * time.Second)
	w.all(cs, complete(2, false))
	w.verdict(cs, 2, false)
	for _, c := range cs {
		want[wire.M2CCollectiveCommsComplete](w, c)
		w.send(c, wire.C2MRates{Up: 20, Down: 500})
	}
	require.Equal(t, "shares", w.planOf(w.switched(cs), 4))
}

// A trial is taken back after the first all-reduce that used it, also if that was aborted
// or ran beside another one.
func TestTrialsEnd(t *testing.T) {
	for name, aborted := range map[string]bool{"aborted": true, "beside another one": false} {
		t.Run(name, func(t *testing.T) {
			w, cs := untried(t, 4, wire.PlansVersion, 40*time.Millisecond)
			p := initiate(1)
			p.Count = largeOp / 4
			w.all(cs, p)
			w.commenced(cs, 1)
			if !aborted {
				w.all(cs, initiate(2))
				w.commenced(cs, 2)
				w.all(cs, complete(2, false))
				w.verdict(cs, 2, false)
				for _, c := range cs {
					want[wire.M2CCollectiveCommsComplete](w, c)
				}
			}
			w.after(time.Second)
			w.all(cs, complete(1, aborted))
			w.verdict(cs, 1, aborted)
			for _, c := range cs {
				want[wire.M2CCollectiveCommsComplete](w, c)
			}
			require.Empty(t, w.planOf(w.switched(cs), 4))
			w.reduced(cs, largeOp, 5*time.Second, 20, 20, 20, 20)
			require.Empty(t, w.planOf(w.switched(cs), 4), "there is one for 1 MiB, which spares delays")
			for range ringTimes {
				w.reduced(cs, largeOp, 5*time.Second, 20, 20, 20, 20)
				w.quiet(cs...)
			}
		})
	}
}

// A plan that is no faster than the ring is not used. It is again when both time and
// all-reduces have passed, later each time, and at once when the ring is slower than it was.
func TestSlowPlansAreBarred(t *testing.T) {
	for name, took := range map[string][]time.Duration{"twice": {5500 * time.Millisecond, 5 * time.Second}, "much slower": {7 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			w, cs := learning(t, 4, wire.PlansVersion, 40*time.Millisecond)
			w.twice(cs, largeOp, 5*time.Second, 20, 100, 200, 400)
			require.Equal(t, "shares", w.planOf(w.switched(cs), 4))
			w.facts = nil
			for i, d := range took {
				if i > 0 {
					w.quiet(cs...)
				}
				w.reduced(cs, largeOp, d, 20, 100, 200, 400)
			}
			require.Empty(t, w.planOf(w.switched(cs), 4))
			require.Contains(t, w.factOf("plan").Text, `with the plan "shares", 5s along the ring`)
			l := &w.m.groups[0].learned
			l.trials = trialTimes
			for range barredOps {
				w.reduced(cs, largeOp, 5*time.Second, 20, 100, 200, 400)
				w.quiet(cs...)
			}
			require.Contains(t, l.barred(w.now), "direct", "it is the same plan")
			w.after(barredTime)
			require.Empty(t, l.barred(w.now))
			long := l.bar(running{bytes: largeOp, name: "shares"}, 9*time.Second, w.now)
			require.Equal(t, 2*barredTime, long)
			w.reduced(cs, largeOp, 9*time.Second)
			require.NotEmpty(t, l.barred(w.now))
			w.reduced(cs, largeOp, 11*time.Second)
			require.NotEmpty(t, l.barred(w.now), "about as fast")
			l.work(largeOp, ringName).took = []time.Duration{10 * time.Second, 11 * time.Second}
			require.Empty(t, l.barred(w.now))
		})
	}
}

// One slow all-reduce bars no plan where those along the ring take as long now and then, and of
// two times the better is compared with the better of two.
func TestTimesThatVary(t *testing.T) {
	l := &learner{works: []work{{bytes: largeOp, name: ringName, took: []time.Duration{8 * time.Second, 5 * time.Second, 8 * time.Second}}}}
	shares := plan.Direct(4, nil)
	end := func(took time.Duration) (slow string) {
		l.now = running{bytes: largeOp, name: "shares", plan: shares, since: time.Hour}
		_, slow = l.end(time.Hour + took)
		return slow
	}
	require.Empty(t, end(9*time.Second), "the ring took 8 s, too")
	require.Empty(t, end(5500*time.Millisecond), "6 s are likely of two along the ring")
	require.NotEmpty(t, end(5500*time.Millisecond), "5 s of three")

	l = &learner{bytes: largeOp}
	require.Empty(t, end(6*time.Second))
	require.Equal(t, []plan.Timed{{Scheme: shares, Bytes: largeOp, Took: 6 * time.Second}}, l.timed(time.Hour))
	require.Empty(t, end(7*time.Second))
	require.Equal(t, []plan.Timed{{Scheme: shares, Bytes: largeOp, Took: 6 * time.Second, Often: true}}, l.timed(time.Hour))

	// The second time of a plan that another one surpasses is worth a look.
	for took, is := range map[time.Duration]bool{5 * time.Second: true, 4100 * time.Millisecond: false} {
		l = &learner{bytes: largeOp, works: []work{{bytes: largeOp, name: "sites 3", plan: shares, took: []time.Duration{4 * time.Second, 4 * time.Second}}}}
		require.Empty(t, end(took))
		l.now = running{bytes: largeOp, name: "shares", plan: shares, since: time.Hour}
		first, _ := l.end(time.Hour + took)
		require.Equal(t, is, first, took)
	}

	s := func(list ...time.Duration) []time.Duration {
		for i := range list {
			list[i] *= time.Second
		}
		return list
	}
	for _, o := range []struct {
		took  []time.Duration
		times int
		is    time.Duration
	}{
		{s(9), 3, 9 * time.Second},
		{s(6, 3), 1, 4500 * time.Millisecond},
		{s(6, 3), 2, 3 * time.Second},
		{s(9, 3, 6), 1, 6 * time.Second},
		{s(9, 3, 6), 2, 4 * time.Second},
		{s(9, 3, 6), 3, 3 * time.Second},
	} {
		require.Equal(t, o.is, likely(o.took, o.times), "%v of %v", o.times, o.took)
	}
}

// Members may receive more than they were seen to, until a plan made of that disappoints.
func TestHopesInVain(t *testing.T) {
	for name, took := range map[string][]time.Duration{
		"twice": {3 * time.Second, 2900 * time.Millisecond}, "at once": {3500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			w, cs := learning(t, 4, wire.PlansVersion, 40*time.Millisecond)
			l := &w.m.groups[0].learned
			w.down = 60
			w.reduced(cs, largeOp, 9*time.Second, 40, 100, 200, 400)
			require.Equal(t, "shares", w.planOf(w.switched(cs), 4))
			require.True(t, l.hoped)
			hoped := l.last.For(largeOp).At(largeOp)
			require.Positive(t, hoped)
			for i, d := range took {
				require.Zero(t, l.doubt, "the plan was timed %d times", i)
				w.reduced(cs, largeOp, time.Duration(float64(d)/2.2e9*float64(hoped)), 40, 100, 200, 400)
			}
			require.Equal(t, doubt{until: w.now + doubtTime, times: 1}, l.doubt)
			require.Empty(t, l.bars, "it may be good without hope")
			require.False(t, l.hoped)
			l.begin(largeOp, "shares", true, w.now)
			require.Zero(t, l.now.predicted, "what was made without hope is not judged by it")
			l.now = running{}
			_, p, ok := w.m.problem(w.m.groups[0], w.m.groups[0].ring)
			require.True(t, ok)
			require.False(t, p.Hopeful)
			w.after(doubtTime)
			w.step(Tick{})
			_, p, _ = w.m.problem(w.m.groups[0], w.m.groups[0].ring)
			require.True(t, p.Hopeful)
			r := running{predicted: time.Second}
			require.False(t, l.doubt.take(r, []time.Duration{3 * time.Second, 1200 * time.Millisecond}, w.now), "the first opened windows")
			require.True(t, l.doubt.take(r, []time.Duration{3 * time.Second}, w.now))
			require.Equal(t, w.now+2*doubtTime, l.doubt.until)
		})
	}
}

// A network of equal hosts is left alone: each link of the ring gives all that it has, so
// that a trial has nothing to show, and a rate that is a burst is found out by the ring's.
func TestEqualHostsKeepTheRing(t *testing.T) {
	w, cs := learning(t, 4, wire.PlansVersion, 30*time.Millisecond)
	g := w.m.groups[0]
	for i, u := range g.ring {
		w.m.learn(w.m.uuids[u], g.ring[(i+1)%4], 90, 0)
	}
	w.reduced(cs, largeOp, 2400*time.Millisecond, 98, 95, 97, 96)
	require.Empty(t, w.planOf(w.switched(cs), 4), "there is one for 2 MiB, which spares delays")
	for range 8 {
		w.reduced(cs, largeOp, 2400*time.Millisecond, 98, 95, 97, 96)
		w.quiet(cs...)
	}
}

// What members say is bounded, and what cannot be a rate is not taken.
func TestWhatIsShownIsChecked(t *testing.T) {
	w, cs := learning(t, 3, wire.PlansVersion, 40*time.Millisecond)
	c := w.m.conns[cs[0]]
	for _, bad := range []float64{-1, math.NaN(), math.Inf(1)} {
		w.send(cs[0], wire.C2MRates{Up: bad, Down: 1})
		w.send(cs[0], wire.C2MRates{Up: 1, Down: bad})
	}
	require.Empty(t, c.ways.gave)
	for i := range 3 * mostGave {
		w.send(cs[0], wire.C2MRates{Up: float64(i), Pairs: []wire.PathRate{
			{To: w.ids[cs[0]], Mbps: 1}, {To: wire.UUID{9}, Mbps: 1}, {To: w.ids[cs[1]], Mbps: -1}, {To: w.ids[cs[1]], Mbps: 7},
		}})
	}
	require.Len(t, c.ways.gave, mostGave)
	require.Equal(t, wire.C2MRates{Up: 3*mostGave - 1, Pairs: []wire.PathRate{{To: w.ids[cs[1]], Mbps: 7}}}, c.ways.gave[mostGave-1])
	w.quiet(cs...)
}
