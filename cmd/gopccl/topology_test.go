package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const instances = "../../tests/bench/topology/data"

// A ring in the units of the file, proved where that is possible.
func TestTopologySolve(t *testing.T) {
	type result struct {
		Ring            []int
		Sum, Bottleneck float64
		SumLowerBound   float64  `json:"sum_lower_bound"`
		BottleneckBound *float64 `json:"bottleneck_bound"`
		Optimal         bool
		Seconds         float64
	}
	solve := func(args ...string) (r result) {
		code, out, errOut := gopccl(t, append([]string{"topology", "solve", "--json"}, args...)...)
		require.Equal(t, exitOK, code, errOut)
		require.Contains(t, errOut, "slowest link")
		require.NoError(t, json.Unmarshal([]byte(out), &r), out)
		return r
	}
	r := solve(filepath.Join(instances, "tsplib-atsp/br17.atsp.gz"), "--objective", "sum", "--budget", "1m")
	require.Equal(t, 39.0, r.Sum)
	require.Equal(t, 39.0, r.SumLowerBound)
	require.True(t, r.Optimal) // S1-17
	require.Len(t, r.Ring, 17)
	require.NotNil(t, r.BottleneckBound)
	require.LessOrEqual(t, *r.BottleneckBound, 8.0)
	require.Positive(t, r.Seconds)
	r = solve(filepath.Join(instances, "tsplib-atsp/br17.atsp.gz"), "--budget", "1m")
	require.Equal(t, 8.0, r.Bottleneck) // S3-14
	require.Equal(t, 8.0, *r.BottleneckBound)
	require.True(t, r.Optimal)
	r = solve(filepath.Join(instances, "wan/gcp6-europe-s1000.json.gz"))
	require.Equal(t, 2760.0, r.Bottleneck)
	require.InDelta(t, 1.8120208, r.Sum, 1e-6)

	file := filepath.Join(t.TempDir(), "m.csv")
	require.NoError(t, os.WriteFile(file, []byte(",tokyo,paris,oslo\ntokyo,,9,8\nparis,7,,6\noslo,5,4,\n"), 0o600))
	code, out, errOut := gopccl(t, "topology", "solve", file, "--quiet")
	require.Equal(t, exitOK, code)
	require.Empty(t, errOut)
	require.Contains(t, out, "slowest link  5 mbps (bound 5)")
	require.Contains(t, out, "tokyo paris oslo")
	require.Contains(t, out, "proved")

	// No answer is an answer, with names.
	require.NoError(t, os.WriteFile(file, []byte(",tokyo,paris,oslo\ntokyo,,9,8\nparis,7,,6\noslo,,,\n"), 0o600))
	code, out, errOut = gopccl(t, "topology", "solve", file)
	require.Equal(t, exitFailed, code)
	require.Empty(t, out)
	require.Contains(t, errOut, "without oslo (one peer) the others have one")

	for text, args := range map[string][]string{
		"want one file":       {},
		"cut off":             {"cut"},
		"no such file":        {"does/not/exist"},
		`unknown solver "x"`:  {file, "--solver", "x"},
		`--objective "money"`: {file, "--objective", "money"},
		"--budget -1s":        {file, "--budget", "-1s"},
	} {
		if len(args) > 0 && args[0] == "cut" {
			args[0] = filepath.Join(t.TempDir(), "cut.json")
			require.NoError(t, os.WriteFile(args[0], []byte(`{"mbps": [[0, 1`), 0o600))
		}
		code, out, errOut := gopccl(t, append([]string{"topology", "solve"}, args...)...)
		require.NotEqual(t, exitOK, code, text)
		require.Empty(t, out)
		require.Contains(t, strings.ToLower(errOut), text)
	}
}

// The table of targets has a line for each, and says what holds.
func TestBenchTopology(t *testing.T) {
	code, out, errOut := gopccl(t, "bench", "topology", "--data", instances, "--only", "gcp6", "--budget", "10s", "-v") // it ends when the best is proved
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "sum: wan, n to 64")
	require.Contains(t, out, "6 of 6")
	require.Contains(t, out, "invalid answers")
	require.Contains(t, errOut, "gcp6-europe-s1002")

	// In parts, by processor time, and the table of what they wrote.
	rings := filepath.Join(t.TempDir(), "rings.json")
	code, out, errOut = gopccl(t, "bench", "topology", "--data", instances, "--only", "gcp6", "--budget", "100ms,1s", "--clock", "cpu", "--json", rings)
	require.Equal(t, exitOK, code, errOut)
	require.Empty(t, out)
	code, out, errOut = gopccl(t, "bench", "topology", "--data", instances, "--only", "gcp6", "--from", rings)
	require.Equal(t, exitOK, code, errOut)
	require.Equal(t, 2, strings.Count(out, "6 of 6"))

	code, _, errOut = gopccl(t, "bench", "topology", "--held-out", "5", "--only", "super", "--reference", "1s", "--budget", "100ms", "-v")
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, errOut, "-h5")
	require.Contains(t, errOut, "reference")

	for text, args := range map[string][]string{
		`--clock "sun"`:   {"--clock", "sun"},
		"--budget 0s":     {"--budget", "0s"},
		"exclude":         {"--from", rings, "--held-out", "1"},
		"--from":          {"--from", "does/not/exist"},
		`--only "nobody"`: {"--held-out", "1", "--only", "nobody"},
	} {
		code, _, errOut := gopccl(t, append([]string{"bench", "topology", "--data", instances}, args...)...)
		require.Equal(t, exitUsage, code, text)
		require.Contains(t, errOut, text)
	}
	code, _, errOut = gopccl(t, "bench", "topology", "--data", t.TempDir())
	require.Equal(t, exitUsage, code)
	require.Contains(t, errOut, "tests/bench/topology/data")
	code, _, _ = gopccl(t, "bench", "topology", "--data", instances, "--only", "nothing")
	require.Equal(t, exitUsage, code)
}

// A ring that was saved is where another search begins, for other rates and
// another order of the peers; for other peers it is refused.
func TestTopologyPlan(t *testing.T) {
	dir := t.TempDir()
	file, ring := filepath.Join(dir, "m.csv"), filepath.Join(dir, "ring.json")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("from,to,mbps\na,b,9\nb,c,9\nc,a,9\nb,a,1\nc,b,1\na,c,1\n")
	code, out, errOut := gopccl(t, "topology", "solve", file, "--quiet", "--output", ring)
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "slowest link  9")
	write(",c,b,a\nc,,1,3\nb,3,,1\na,1,3,\n")
	code, out, errOut = gopccl(t, "topology", "solve", file, "--start", ring)
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "slowest link  3")
	first, _, _ := strings.Cut(errOut, "\n")
	require.Contains(t, first, "slowest link 3", "the first ring is that of the plan") // S3-21
	write(",c,b,x\nc,,1,3\nb,3,,1\nx,1,3,\n")
	code, out, errOut = gopccl(t, "topology", "solve", file, "--start", ring)
	require.NotEqual(t, exitOK, code)
	require.Empty(t, out)
	require.Contains(t, errOut, `"a" is not a peer`)
}
