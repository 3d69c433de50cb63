package world

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Peers that finish a step have to agree on all that came out of it.
func TestBooksFindDisagreement(t *testing.T) {
	agreed := Report{Step: 9, Sets: []uint64{7, 6}, Results: []uint64{100, 200}, State: 5, At: time.Now().UnixNano()}
	for what, change := range map[string]func(*Report){
		"other contributors":   func(r *Report) { r.Sets = []uint64{7, 7} },
		"other bits":           func(r *Report) { r.Results = []uint64{100, 201} },
		"another state":        func(r *Report) { r.State = 6 },
		"fewer operations":     func(r *Report) { r.Sets, r.Results = r.Sets[:1], r.Results[:1] },
		"a step that was over": func(r *Report) { r.Step = 2 },
	} {
		var b Books
		b.init()
		b.done = kept + 5
		require.Empty(t, b.step(&Proc{ID: 1}, agreed, 15))
		require.Empty(t, b.step(&Proc{ID: 2}, agreed, 15))
		r := agreed
		change(&r)
		if what != "a step that was over" {
			b.done = r.Step
		}
		require.NotEmpty(t, b.step(&Proc{ID: 3}, r, 15), what)
	}
}

// What a peer has reported that is dead now may differ, if it did not wait for the verdict; the others have to
// agree on theirs, and it is not to go on.
func TestBooksOfTheDead(t *testing.T) {
	mine := Report{Step: 9, Sets: []uint64{7}, Results: []uint64{100}, State: 5, Forward: true, At: time.Now().UnixNano()}
	others := Report{Step: 9, Sets: []uint64{6}, Results: []uint64{200}, State: 6, Forward: true, At: mine.At}
	for _, first := range []bool{true, false} {
		var b Books
		b.init()
		dead := &Proc{ID: 0, doomed: "killed"}
		told := func(p *Proc, r Report) string { return b.step(p, r, 15) }
		if first {
			require.Empty(t, told(dead, mine))
		}
		require.Empty(t, told(&Proc{ID: 1}, others))
		if !first {
			require.Empty(t, told(dead, mine))
		}
		require.Equal(t, 1, b.Lone)
		require.Empty(t, told(&Proc{ID: 2}, others))
		require.NotEmpty(t, told(&Proc{ID: 3}, mine))
		require.NotEmpty(t, told(dead, mine))
	}
	var b Books
	b.init()
	mine.Forward, others.Forward = false, false
	require.Empty(t, b.step(&Proc{ID: 0, doomed: "killed"}, mine, 15))
	require.NotEmpty(t, b.step(&Proc{ID: 1}, others, 15), "it had waited for the verdict")
}

// An operation counts as full if everybody was in it who ran, and a recovery
// ends with the first one without the dead.
func TestBooksCount(t *testing.T) {
	var b Books
	b.init()
	struck := time.Now()
	b.Deaths.begin(1<<2, struck)
	step := func(n uint64, after time.Duration, present uint64, sets ...uint64) {
		require.Empty(t, b.step(&Proc{}, Report{Step: n, Sets: sets, Results: sets, At: struck.Add(after).UnixNano()}, present))
	}
	step(1, time.Millisecond, 3, 7) // was under way
	require.Empty(t, b.Deaths.Took)
	step(2, 5*time.Millisecond, 3|1<<5, 3) // 5 is not in the group yet
	step(3, 9*time.Millisecond, 3|1<<5, 3|1<<5, 3|1<<5)
	require.Equal(t, Times{5 * time.Millisecond}, b.Deaths.Took)
	require.Equal(t, 4, b.Operations)
	require.Equal(t, 3, b.Full)
}

// An optimization takes as long as for the last of its members; one that reports it later than the next
// began says nothing of that.
func TestBooksOfOptimizations(t *testing.T) {
	var o Optimizations
	require.Zero(t, o.Took.Max()+o.Took.Median())
	for _, said := range []struct {
		step uint64
		took time.Duration
	}{{50, 2}, {50, 3}, {50, 1}, {100, 7}, {50, 9}, {150, 5}} {
		o.member(said.step, said.took)
	}
	require.Equal(t, Times{3, 7, 5}, o.Took)
	require.Equal(t, time.Duration(5), o.Took.Median())
	require.Equal(t, time.Duration(7), o.Took.Max())
}
