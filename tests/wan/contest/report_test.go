package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/lab"
)

func sample() outcomes {
	return outcomes{
		{match{Profile: "regional", Congestion: "cubic", Bytes: 16 << 20}, "2026-11-25, a machine", []entry{
			{Name: nameOurs, Seconds: 2.5, First: 4, Ideal: 0.8, Times: 3, Dropped: 7, Lost: 3, Late: 0.002},
			{Name: nameTLS, Seconds: 2.6, Ideal: 0.77},
			{Name: namePCCL + ", 1", Seconds: 4, Ideal: 0.5},
			{Name: namePCCL + ", 8", Seconds: 5, Ideal: 0.4},
			{Name: namePlain + ", 4 paced", Seconds: 2, Ideal: 1},
			{Name: namePlain + ", 1", Seconds: 1.9, Ideal: 1.05, Unsound: 5, Late: 0.02},
			{Name: namePlain + ", 16", Seconds: 1.8, Times: 1, Unsound: 2},
			{Name: namePlain + ", 4", Seconds: 2.2, Times: 3, Unsound: 7},
			{Name: nameGloo, Failed: "its connection broke"},
		}},
		{match{Profile: "sites", Congestion: "bbr", Bytes: 400_000}, "", []entry{{Name: nameOurs, Seconds: 1}}},
		{match{"sites", "bbr", 400_000, "gather"}, "2026-11-26, a machine", []entry{{Name: nameOurs, Seconds: 1}, {Name: nameGloo, Seconds: 2}}},
		{match{"sites", "bbr", 0, "barrier"}, "", []entry{{Name: nameOurs, Seconds: 1}}},
	}
}

func TestPage(t *testing.T) {
	page := sample().markdown()
	for _, want := range []string{
		"\n## regional\n\nFour peers and a master, 100 Mbit/s each, 30 ms round trip.\n\n16 MiB, cubic:\n",
		"| gopccl | 2.500 | 0.80 | 7, 3 | 3 | 0.20 % |\n",
		"| plain TCP, 1 | 1.900 | 1.05 | 0, 0 | 0 of 5 | 2.00 %, does not count |\n",
		"| plain TCP, 16 | 1.800 |  | 0, 0 | 1 of 3 | 0.00 %, does not count |\n",
		"| plain TCP, 4 | 2.200 |  | 0, 0 | 3 of 10 | 0.00 % |\n",
		"| Gloo | failed: its connection broke | | | | |\n",
		"| regional, 16 MiB, cubic | 2.000 | 2.500 | 2.000 (4 paced) | 4.000 (1) | |\n",
		"| sites, gather, 400 KB, bbr |  | 1.000 | | | 2.000 |\n",
		"## Where gopccl is behind\n\n- regional, 16 MiB, cubic: plain TCP, 4 paced takes 0.80 of our time.\n\n",
		"Time of gopccl: 1.25 times that of plain TCP, 4 paced, 0.62 times that of PCCL 1.0.0, 1. Its first operation, for which it knew nothing, took 4.000 s. In TLS gopccl reaches 0.96 of what it reaches in plaintext. 2026-11-25, a machine.\n",
		"\n400 KB, bbr:\n", "| gopccl | 1.000 |  | 0, 0 | 0 | 0.00 % |\n",
		"\ngather, 400 KB, bbr:\n", "Time of gopccl: 0.50 times that of Gloo. 2026-11-26, a machine.\n", "\nbarrier, bbr:\n",
	} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "All had operations behind them.")
	all := sample()[:1]
	for i := range all[0].Entries {
		all[0].Entries[i].First = 4
	}
	require.Contains(t, all.markdown(), "took 4.000 s. All had operations behind them. ")
	require.NotContains(t, page[strings.Index(page, "\n400 KB, bbr:"):strings.Index(page, "\ngather")], "Time of gopccl")
	require.Contains(t, page, "a part: regional/cubic/67108864, regional/cubic/400000, ")
	picture := sample().svg()
	require.Equal(t, 1+4+6, strings.Count(picture, "<rect"), "the ground, four kinds, and six in the legend")
	require.NotContains(t, picture, "sites", "without an ideal")
}

// A match that is played again replaces its older outcome; others stay, in the order
// of the series.
func TestOutcomesAreKept(t *testing.T) {
	old := sample()
	now := outcome{old[0].match, "", []entry{{Name: nameOurs, Seconds: 9}}}
	list := old.with(now).with(outcome{match: series[2]})
	require.Equal(t, append(outcomes{now, {match: series[2]}}, old[1:]...), list)
	require.Equal(t, 2.5, old[0].Entries[0].Seconds)

	base := t.TempDir() + "/internet"
	none, err := readOutcomes(base + ".json")
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, list.write(base))
	back, err := readOutcomes(base + ".json")
	require.NoError(t, err)
	require.Equal(t, list[0], back[0])
	page, err := os.ReadFile(base + ".md")
	require.NoError(t, err)
	require.Equal(t, list.markdown(), string(page))
}

// A row that does not count takes the place of one that does not, either, and of no other.
func TestRowsThatCountAreKept(t *testing.T) {
	m := match{Profile: "regional", Congestion: "cubic", Bytes: 1 << 20}
	loud := entry{Name: nameGloo, Seconds: 9, Late: 0.5}
	list := outcomes{{m, "", []entry{{Name: nameOurs, Seconds: 2}, {Name: nameGloo, Seconds: 3}, {Name: namePCCL, Late: 0.5}}}}
	list = list.with(outcome{m, "", []entry{{Name: nameOurs, Seconds: 1}, loud, {Name: namePCCL, Late: 0.4}}})
	require.Equal(t, outcomes{{m, "", []entry{{Name: nameOurs, Seconds: 1}, {Name: nameGloo, Seconds: 3}, {Name: namePCCL, Late: 0.4}}}}, list)
	require.Equal(t, 9.0, loud.Seconds)
}

// A contestant that is slow gets no more turns, one that is fast gets more, and operations
// in which the machine was too slow are done again, but not for ever.
func TestTurns(t *testing.T) {
	g := game{rounds: 4, patience: 25 * time.Second, least: 2 * time.Second, most: time.Minute}
	sound := turn{took: time.Second}
	late := turn{time.Second, lab.Stats{Delivered: 10, Late: 1}}
	since := time.Duration(0)
	play := func(with ...turn) (n int) {
		c := &contestant{}
		for round := 0; g.plays(c, round, since); round++ {
			if n++; round > 0 {
				c.turns = append(c.turns, with[min(round-1, len(with)-1)])
			}
			c.spent += with[0].took
		}
		return n
	}
	require.Equal(t, 4, play(sound))
	require.Equal(t, 5, play(sound, late, sound))
	require.Equal(t, 10, play(late))
	require.Equal(t, 2, play(turn{took: time.Minute}))
	require.Equal(t, 12, play(turn{took: time.Millisecond}))
	since = 2 * time.Minute
	require.Equal(t, 2, play(turn{took: 7 * time.Second}))
	require.Equal(t, 3, play(turn{took: 5 * time.Second}))
	require.Equal(t, 4, play(turn{took: 2 * time.Second}))
	c := &contestant{name: nameOurs, turns: []turn{{took: 3 * time.Second}, {5 * time.Second, late.Stats}, {took: time.Second}}}
	e := c.entry(&lab.Profile{}, 0, task{Pattern: "barrier"})
	require.Equal(t, entry{Name: nameOurs, Seconds: 2, Times: 2, Unsound: 1}, e)
	g.learn = 4
	for _, who := range []string{nameOurs, nameGloo} {
		slow := &contestant{name: who, spent: time.Minute}
		require.True(t, g.prepares(&contestant{name: who}, 3), who)
		require.False(t, g.prepares(&contestant{name: who}, 4), who)
		require.Equal(t, who == nameOurs, g.prepares(slow, 3), who)
	}
	c.failed = errors.New("gone")
	require.False(t, g.plays(c, 0, 0))
	require.Equal(t, "gone", c.entry(&lab.Profile{}, 0, task{Pattern: "barrier"}).Failed)
}

// Where PCCL's report has the same experiment, its ratio stands beside ours.
func TestVerdictNamesTheReport(t *testing.T) {
	o := outcome{match{Profile: "report6", Congestion: "cubic", Bytes: 1 << 20}, "", []entry{
		{Name: nameOurs, Seconds: 2}, {Name: namePCCL + ", 1", Seconds: 5}, {Name: namePCCL + ", 8", Seconds: 4}, {Name: nameGloo, Seconds: 6},
	}}
	require.Contains(t, o.verdict(), "Gloo took 1.50 times as long as PCCL, and in its report 1.17 times.")
	o.Profile = "regional"
	require.NotContains(t, o.verdict(), "report")
}

func TestSeries(t *testing.T) {
	seen := map[match]bool{}
	for name := range reported {
		require.Contains(t, lab.Names(), name)
	}
	for _, m := range series {
		require.Contains(t, lab.Names(), m.Profile)
		require.False(t, seen[m], "%v twice", m)
		seen[m] = true
	}
	others := 0
	for rest := series; len(rest) > 0; rest = rest[together(rest):] {
		n := together(rest)
		for _, m := range rest[:n] {
			require.Equal(t, rest[0].lineup(), m.lineup())
		}
		if rest[0].Pattern != "" {
			others += n
			require.Equal(t, 2*7+1, n, "two sizes of each, and a barrier")
		}
	}
	require.NotZero(t, others)
	p, err := lab.Load("home")
	require.NoError(t, err)
	require.Equal(t, 20e6, slowest(p, 4))
	require.Zero(t, slowest(&lab.Profile{Hosts: p.Hosts[:0]}, 0))
}

// The most that a member has to send or to receive.
func TestCarried(t *testing.T) {
	for pattern, want := range map[string]float64{
		"all-gather": 3, "reduce-scatter": 3, "broadcast": 4, "reduce": 4, "gather": 3, "scatter": 3, "all-to-all": 3, "barrier": 0,
	} {
		require.Equal(t, want, task{4, pattern}.carried(4), pattern)
	}
}

// What other programs read has the rows that count, and their times by ours.
func TestLines(t *testing.T) {
	m := match{Profile: "regional", Congestion: "cubic", Bytes: 1 << 20}
	list := outcomes{{m, "", []entry{{Name: nameOurs, Seconds: 2}, {Name: nameGloo, Seconds: 3}, {Name: namePCCL + ", 1", Seconds: 4, Late: 0.5}}}}
	require.Equal(t, `{"profile":"regional","congestion":"cubic","bytes":1048576,"name":"gopccl","seconds":2,"times":0,"unsound":0,"dropped":0,"lost":0,"late":0,"ratio":1}
{"profile":"regional","congestion":"cubic","bytes":1048576,"name":"Gloo","seconds":3,"times":0,"unsound":0,"dropped":0,"lost":0,"late":0,"ratio":1.5}
`, string(list.lines()))
	list[0].Entries[0].Late = 0.5
	require.Empty(t, list.lines())
}
