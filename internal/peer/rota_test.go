package peer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// fake is a transport that has pieces of progress to make and postings to pick
// up, and writes down what happens.
type fake struct {
	rota
	work    int // pieces of progress that are due
	posted  int
	tried   int
	history []string
	// whilePicking and whileWorking bring more, if set.
	whileWorking, whilePicking func()
}

func newFake(frequency, batch, work, posted int) *fake {
	f := &fake{work: work, posted: posted}
	f.rota = rota{frequency: frequency, batch: batch, progress: func() bool {
		if f.work == 0 {
			return false
		}
		f.work--
		f.history = append(f.history, "w")
		if f.whileWorking != nil {
			f.whileWorking()
		}
		return true
	}, pick: func(n int, try bool) bool {
		n = min(n, f.posted)
		f.posted -= n
		if try {
			f.tried++
		}
		if n > 0 {
			f.history = append(f.history, fmt.Sprint(n))
		}
		if f.whilePicking != nil {
			f.whilePicking()
		}
		return f.posted > 0
	}}
	return f
}

// Work under way goes first; posted operations are picked up in batches, when there
// is nothing to do and every few pieces of work.
func TestPostedIsPickedUpInBatches(t *testing.T) {
	for _, c := range []struct {
		frequency, batch, work, posted int
		all                            bool
		want                           string
	}{
		{8, 16, 0, 0, true, ""},
		{8, 16, 0, 3, false, "3"},                            // idle: at once
		{8, 16, 0, 40, true, "16 16 8"},                      // in batches
		{8, 16, 0, 40, false, "16"},                          // one batch, the loop does the rest
		{8, 16, 5, 3, true, "w w w w w 3"},                   // work first
		{8, 16, 10, 40, true, "w w w w w w w w 16 w w 16 8"}, // but not for ever
		{1, 8, 3, 20, true, "w 8 w 8 w 4"},                   // latency
		{32, 64, 10, 100, true, "w w w w w w w w w w 64 36"},
	} {
		f := newFake(c.frequency, c.batch, c.work, c.posted)
		left := f.run(c.all)
		require.Equal(t, c.want, strings.Join(f.history, " "), "%+v", c) // S4-05, S4-06, S4-07
		require.Equal(t, f.posted > 0, left)
	}
}

// Whatever comes while it runs: nothing posted is left behind by a run for all,
// no batch is larger than allowed, no more than frequency pieces of work are
// done while something waits, and while there is work no lock is waited for.
func TestRota(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frequency, batch := rapid.IntRange(1, 10).Draw(t, "frequency"), rapid.IntRange(1, 10).Draw(t, "batch")
		f := newFake(frequency, batch, rapid.IntRange(0, 30).Draw(t, "work"), rapid.IntRange(0, 60).Draw(t, "posted"))
		more := rapid.SliceOfN(rapid.IntRange(0, 7), 0, 40).Draw(t, "more")
		bring := func() {
			if len(more) > 0 {
				f.posted += more[0]
				f.work += more[0] % 3
				more = more[1:]
			}
		}
		f.whileWorking, f.whilePicking = bring, nil
		waited := 0
		pick, progress := f.rota.pick, f.rota.progress
		f.rota.progress = func() bool {
			worked := progress()
			if worked && f.posted > 0 {
				if waited++; waited > frequency {
					t.Fatalf("%d pieces of work while %d wait", waited, f.posted) // S4-05
				}
			}
			return worked
		}
		f.rota.pick = func(n int, try bool) bool {
			if n != batch {
				t.Fatalf("a batch of %d", n)
			}
			if f.work > 0 && !try {
				t.Fatal("waited for the lock with work to do") // S4-15
			}
			waited = 0
			return pick(n, try)
		}
		if f.run(true) || f.posted > 0 || f.work > 0 {
			t.Fatal("something was left")
		}
	})
}

// The machine's holder does not wait for a trainer that holds the lock.
func TestTakingNeverWaitsWhileActive(t *testing.T) {
	var b postbox
	one, two := &Operation{id: 1}, &Operation{id: 2}
	first, ok := b.add(one)
	require.True(t, first && ok)
	first, ok = b.add(two)
	require.True(t, !first && ok)
	b.mu.Lock()
	taken, left := b.take(nil, 8, true, nil)
	require.Empty(t, taken) // S4-15
	require.True(t, left)
	b.mu.Unlock()
	known := 0
	taken, left = b.take(nil, 1, true, func(p []*Operation) { known += len(p) })
	require.Equal(t, []*Operation{one}, taken)
	require.True(t, left)
	require.Equal(t, 1, known)
	taken, left = b.take(taken[:0], 8, false, func(p []*Operation) { known += len(p) })
	require.Equal(t, []*Operation{two}, taken)
	require.False(t, left)
	b.full = true
	_, ok = b.add(&Operation{})
	require.False(t, ok)
}
