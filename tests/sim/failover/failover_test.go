package failover

import (
	"fmt"
	"strings"
	"testing"
)

// program splits a program into its calls, such as "reduce 1; await 1".
func program(s string) (cs []call) {
	for _, w := range strings.Split(s, ";") {
		c := call{}
		_, _ = fmt.Sscanf(strings.TrimSpace(w)+" 0", "%s %d", &c.what, &c.n)
		cs = append(cs, c)
	}
	return cs
}

// same is a scenario in which three peers run the same program.
func same(name string, eager bool, s string) scenario {
	p := program("connect; settle; " + s)
	return scenario{name: name, eager: eager, programs: [][]call{p, p, p}}
}

// distant is one in which they are far from each other, and can take another plan between two
// collectives. Plans are made beside the master.
func distant(name string, eager bool, s string) scenario {
	x := same(name, eager, s)
	x.far, x.switches = true, true
	return x
}

func scenarios() []scenario {
	const twice = "reduce 1; reduce 2; await 1; await 2; reduce 1; await 1"
	return []scenario{
		same("collectives", false, twice),
		same("eager collectives", true, twice),
		same("large collectives", true, "large 1; large 2; reduce 3; await 1; await 3; await 2; large 1; await 1"),
		same("others", true, "gather 1; await 1; barrier 2; await 2"),
		same("mesh", true, "exchange 1; await 1; mesh; reduce 2; exchange 1; await 2; await 1"),
		distant("plans", false, "mesh; reduce 1; await 1; planned; reduce 1; await 1"),
		distant("eager plans", true, "mesh; reduce 1; large 2; await 1; await 2; planned; reduce 1; await 1"),
		same("query", false, "pending; reduce 1; pending; await 1"),
		same("round", false, "update; update"),
		same("sync", false, "sync 0; sync 1"),
		same("optimize", false, "optimize"),
		same("all", true, "reduce 1; pending; await 1; sync 0; update; reduce 1; await 1"),
	}
}

// Nobody dies: the harness itself.
func TestWithoutKill(t *testing.T) {
	for _, s := range scenarios() {
		r := newRun(s, true)
		if err := r.play(); err != nil {
			t.Errorf("%s: %v\n%s", s.name, err, strings.Join(r.trace, "\n"))
		}
	}
}

// formed returns after how many events of the master all peers of s are members: before,
// what a death costs is another matter, since newcomers have no session to resume.
func formed(s scenario) (events, whole int) {
	r := newRun(s, false)
	for range mostSteps {
		if events == 0 && r.formed() {
			events = r.taken
		}
		if !r.once() && (r.over() || !r.wait()) {
			break
		}
	}
	return events, r.taken
}

// everywhere plays s with a kill after every event of the master, heard by every set of
// peers, and with every other kill that then gives.
func everywhere(t *testing.T, s scenario, then func(kill) [][]kill) {
	from, to := formed(s)
	if from == 0 || to <= from {
		t.Fatalf("formed after %d of %d events", from, to)
	}
	bad, all := 0, 0
	for after := from; after <= to; after++ {
		for hears := range uint(1) << len(s.programs) {
			for _, kills := range then(kill{after: after, hears: hears, late: -1}) {
				all++
				if newRun(s, false, kills...).play() == nil {
					continue
				}
				if bad++; bad == 1 {
					r := newRun(s, true, kills...)
					t.Errorf("kills %+v: %v\n%s", kills, r.play(), strings.Join(r.trace, "\n"))
				}
			}
		}
	}
	if bad > 0 {
		t.Errorf("%d of %d runs fail", bad, all)
	}
}

// The master dies after every event, heard by every set of peers to its end or in part.
// Each peer in turn may find the next one later than the others.
func TestKillEverywhere(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			everywhere(t, s, func(k kill) (l [][]kill) {
				for late := -1; late < len(s.programs); late++ {
					k.late = late
					l = append(l, []kill{k})
				}
				k.late = -1
				for k.words = 1; k.words <= 3; k.words++ {
					l = append(l, []kill{k})
				}
				return l
			})
		})
	}
}

// The next master dies, too, after every event that it needs to take over, heard by some.
func TestKillInRecovery(t *testing.T) {
	for _, s := range scenarios()[:3] {
		t.Run(s.name, func(t *testing.T) {
			everywhere(t, s, func(k kill) (l [][]kill) {
				for again := 1; again <= 12; again++ {
					l = append(l, []kill{k, {after: again, hears: uint(again) * 3 % 8, late: again%4 - 1}})
				}
				return l
			})
		})
	}
}
