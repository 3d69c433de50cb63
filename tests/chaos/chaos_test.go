package main

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/world"
)

var soak = flag.Bool("soak", false, "ten thousand clients instead of some hundreds")

func TestMain(m *testing.M) {
	world.Serve()
	os.Exit(m.Run())
}

// A run of four, with honest peers that join and leave, among hostile and
// mistaken clients of all kinds at every port: no result is wrong, nobody honest
// is dropped or kept out, memory and descriptors stay as they are, and the steps
// go on as beside a run that nobody visits.
func TestStrangersFromTheInternet(t *testing.T) {
	o := options{
		clients: 300, rate: 10, alone: 8 * time.Second, compute: 100 * time.Millisecond,
		// What is counted here is some hundred steps on a machine with other work.
		share: 0.8, kinds: kinds, seed: uint64(time.Now().UnixNano() % 1000),
	}
	if *soak {
		o.clients, o.rate, o.alone, o.share = 10_000, 60, 30*time.Second, 0.95
	}
	// Clients that look like peers of PCCL cannot be tried before the members wait
	// for them (docs/spec/extensions.md, "Preflight"), and those that then keep silent
	// cost a round its bound: the command shows how much, and the share is not theirs.
	require.NoError(t, o.choose("", "never reports,silent newcomer,groups"))
	t.Logf("seed %d", o.seed)
	r, err := run(t.Context(), o)
	t.Log("\n" + header + r.row("all", "") + "\n" + r.blame())
	require.NoError(t, err)
	require.NoError(t, r.conditions())
}

// The conditions are none that every run meets.
func TestConditionsHaveTeeth(t *testing.T) {
	good := func() *result {
		r := &result{options: options{share: 0.95}}
		for i := range r.phases {
			r.phases[i] = phase{steps: 96, in: 3}
			r.twin[i] = phase{steps: 100}
		}
		r.usage = []usage{{name: "master", start: 10 << 20, peak: 30 << 20, files: 20, open: 21}}
		return r
	}
	require.NoError(t, good().conditions())
	for what, change := range map[string]func(*result){
		"a wrong result":                  func(r *result) { r.books.Wrong = 1 },
		"an honest peer dropped":          func(r *result) { r.books.Dropped = 1 },
		"steps that are missing":          func(r *result) { r.phases[1].steps = 90 },
		"no newcomers":                    func(r *result) { r.phases[1].in = 0 },
		"memory that grows for a while":   func(r *result) { r.usage[0].peak += memoryGrowth },
		"descriptors that are not closed": func(r *result) { r.usage[0].open += fileGrowth },
	} {
		r := good()
		change(r)
		require.Error(t, r.conditions(), what)
	}
}

// The seconds without a step are laid at the door of those who were there.
func TestBlame(t *testing.T) {
	r := &result{}
	now := time.Unix(1000, 0)
	for i, steps := range []int{9, 9, 0, 0, 9} {
		here := []string{"loud"}
		if steps == 0 {
			here = []string{"loud", "slow"}
		}
		r.second(now.Add(time.Duration(i)*time.Second), steps, func() []string { return here })
	}
	blame := r.blame()
	require.Contains(t, blame, "2 of 5 seconds")
	require.Regexp(t, `(?s)slow +2 of the 2 .*loud +2 of the 5`, blame)
}

func TestChoose(t *testing.T) {
	var o options
	require.NoError(t, o.choose("http,deaf", "deaf"))
	require.Len(t, o.kinds, 1)
	require.Error(t, o.choose("gremlins", ""))
	require.Error(t, o.choose("http", "http"))
	seen := map[string]bool{}
	for _, k := range kinds {
		require.False(t, seen[k.name], k.name)
		seen[k.name] = true
	}
}
