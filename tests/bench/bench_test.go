//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/moves"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		main()
		return
	}
	os.Exit(m.Run())
}

// Peers of ours, in TLS as well, and the two programs of the floor do every kind of job, and
// what they measured has one time for each round.
func TestContestantsMeasure(t *testing.T) {
	all, err := contestants(t.Context(), options{contestants: "floor,tls", rival: "A=B " + os.Args[0]})
	require.NoError(t, err)
	require.Len(t, all, 4)
	for _, c := range all {
		world := 3
		if c.name == nameRival {
			world = 2
		}
		s, err := c.start(t.Context(), world)
		require.NoError(t, err)
		for _, j := range []job{
			sums(world, 12, "none", 1),
			sums(world, 100000, "none", 1),
			sums(world, 40000, "none", 3),
			sums(world, 100000, "minmax", 1),
			sums(world, 100000, "zeropoint", 2),
		} {
			if !c.can(j) || c.name == nameRival && j.Concurrent < 3 {
				continue
			}
			got, err := s.run(t.Context(), j, 3)
			require.NoError(t, err, "%s %v", c.name, j)
			require.Len(t, got.Seconds, 3)
			require.Positive(t, got.median())
		}
		require.NoError(t, s.close())
	}
	_, err = contestants(t.Context(), options{contestants: "mpi"})
	require.Error(t, err)
}

// The floor moves every byte to where it belongs: with world chunks of its own
// number in each buffer, every buffer holds the same bytes in the end.
func TestFloorMovesTheBytes(t *testing.T) {
	for _, two := range []bool{false, true} {
		ring := &ring{world: 3, rank: 1, two: two, chunk: 4, buf: []byte("aaaabbbbcccc")}
		require.Equal(t, "bbbb", string(ring.at(1, 0, 100)))
		require.Equal(t, "aaaa", string(ring.at(1, 4, 100)))
		require.Equal(t, "cc", string(ring.at(1, 10, 100)))
		require.Equal(t, "b", string(ring.at(1, 12, 13)))
	}
}

// Ours and the floor do every collective: what moved is where it belongs, at world sizes
// that blocks divide into and others.
func TestContestantsMove(t *testing.T) {
	all, err := contestants(t.Context(), options{contestants: "floor"})
	require.NoError(t, err)
	for _, c := range all {
		for _, world := range []int{2, 3} {
			s, err := c.start(t.Context(), world)
			require.NoError(t, err)
			for _, j := range append(patternJobs(world, moves.Names(), []int{4, 100000, 3 << 20}, true), sums(world, 100000, "none", 1)) {
				require.True(t, c.can(j))
				got, err := s.run(t.Context(), j, 2)
				require.NoError(t, err, "%s %v", c.name, j)
				require.Len(t, got.Seconds, 2)
				if j.Pattern != "" {
					require.Len(t, got.Root, 2)
				}
			}
			require.NoError(t, s.close())
		}
	}
}

// A program that does not know a pattern has measured something else.
func TestWhoDoesNotKnowAPattern(t *testing.T) {
	s := &crew{}
	w, err := startWorker(t.Context(), []string{"sh", "-c", `read x; echo '{"Seconds":[1],"CPU":1}'`})
	require.NoError(t, err)
	s.ranks = append(s.ranks, w)
	_, err = s.run(t.Context(), job{World: 1, Bytes: 4, Pattern: "gather"}, 1)
	require.ErrorContains(t, err, "does not know the pattern gather")
	s.close()
}

func TestWorkersThatFail(t *testing.T) {
	_, err := ours([]string{"false"})(t.Context(), 2)
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = floorOf([]string{os.Args[0]})(ctx, 2)
	require.Error(t, err)
	_, err = slowest([]turn{{Seconds: []float64{1}}, {}})
	require.Error(t, err)
	got, err := slowest([]turn{{Seconds: []float64{1, 5}, CPU: 1}, {Seconds: []float64{2, 4}, CPU: 2}})
	require.NoError(t, err)
	require.Equal(t, turn{Seconds: []float64{2, 5}, CPU: 3}, got)
	err = serve(strings.NewReader(`{"Bytes":4}`), &strings.Builder{}, func(order) (answer, error) { return answer{}, fmt.Errorf("no") })
	require.Error(t, err)
}

func TestJobs(t *testing.T) {
	for s, want := range map[string]int{"4": 4, "4KiB": 4096, "64MiB": 64 << 20, "7": 4} {
		n, err := parseSize(s)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	for _, s := range []string{"", "3", "4GB", "-1KiB"} {
		_, err := parseSize(s)
		require.Error(t, err, s)
	}
	o := options{turns: 1, sessions: 1, turn: 1, quantize: "none,minmax", concurrent: "1,2", worlds: "3", sizes: "4KiB"}
	jobs, err := o.jobs()
	require.NoError(t, err)
	require.Equal(t, []job{sums(3, 4096, "none", 1), sums(3, 4096, "none", 2), sums(3, 4096, "minmax", 1), sums(3, 4096, "minmax", 2)}, jobs)
	for _, bad := range []options{{}, {turns: 1, sessions: 1, turn: 1, worlds: "1"}, {turns: 1, sessions: 1, turn: 1, quantize: "x", concurrent: "1"}, {turns: 1, sessions: 1, turn: 1, concurrent: "0"}} {
		_, err := bad.jobs()
		require.Error(t, err)
	}
	jobs, err = options{turns: 1, sessions: 1, turn: 1, quantize: "none", concurrent: "1", worlds: "5"}.jobs()
	require.NoError(t, err)
	require.Contains(t, jobs, sums(5, 1<<20, "none", 16))
	o = options{turns: 1, sessions: 1, turn: 1, quantize: "none", concurrent: "1", worlds: "8", sizes: "4KiB", patterns: "barrier,all-reduce,gather"}
	jobs, err = o.jobs()
	require.NoError(t, err)
	require.Equal(t, []job{{8, 0, "none", 1, "barrier"}, {8, 4096, "none", 1, "gather"}, sums(8, 4096, "none", 1)}, jobs)
	o.patterns = "all"
	jobs, err = o.jobs()
	require.NoError(t, err)
	require.Len(t, jobs, 9)
	o.patterns = "bcast"
	_, err = o.jobs()
	require.ErrorContains(t, err, "bcast")
	// Every mark is measured by default.
	jobs, err = options{turns: 1, sessions: 1, turn: 1, quantize: "none", concurrent: "1"}.jobs()
	require.NoError(t, err)
	for _, m := range targets() {
		require.Contains(t, jobs, m.job)
	}
}

func sample() results {
	return results{Machine: "here", Turns: 3, Cases: []result{
		{sums(2, 64<<20, "none", 1), map[string]entry{
			nameOurs: {Median: 0.03, CPU: 0.5},
			namePCCL: {Median: 0.06, CPU: 1, Ratio: 2, CPURatio: 0.5}, nameFloor: {Median: 0.02, CPU: 0.4, Ratio: 0.66, CPURatio: 1.2},
		}},
		{job{4, 64 << 20, "none", 1, "gather"}, map[string]entry{
			nameOurs: {Median: 0.01, Root: 0.009}, nameGloo: {Median: 0.03, Ratio: 3, Root: 0.02},
		}},
		{sums(4, 400000, "none", 1), map[string]entry{nameOurs: {Median: 0.001}, nameGloo: {Median: 0.003, Ratio: 3}}},
	}, Hash: &hashing{Bytes: 1 << 30, Ours: 20, PCCL: 5, Read: 21, ByPCCL: 4, ByRead: 0.95}}
}

func TestRender(t *testing.T) {
	r := sample()
	text := r.markdown()
	for _, want := range []string{
		"| world 2, 64 MiB | 30.00 ms | 60.00 ms (2.00x) | | 20.00 ms (0.66x) |",
		"| world 2, 64 MiB: faster than PCCL 1.0.0 | at least 1.7x | 2.00 | met |",
		"| world 2, 64 MiB: time by that of bare TCP | at most 1.25 | 1.52 | missed |",
		"faster than Gloo (PyTorch) | at least 4x | 3.00 | missed |",
		"| world 4, gather, 64 MiB | 10.00 ms (9.00 ms) | 30.00 ms (3.00x, 20.00 ms) | |",
		"| world 4, gather, 64 MiB: faster than Gloo (PyTorch) | at least 2x | 3.00 | met |",
		"| hash, 1024 MiB: of the speed of reading | at least 0.80 | 0.95 | met |",
	} {
		require.Contains(t, text, want)
	}
	page, err := between("a "+markBegin+" old "+markEnd+" z", "new")
	require.NoError(t, err)
	require.Equal(t, "a "+marked("new")+" z", page)
	again, err := between(page, "new")
	require.NoError(t, err)
	require.Equal(t, page, again)
	_, err = between("nothing", "new")
	require.Error(t, err)
	require.Contains(t, r.svg(), "polyline")

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/R.md", []byte(marked("")), 0o600))
	o := options{json: dir + "/r.json", markdown: dir + "/b.md", svg: dir + "/b.svg", readme: dir + "/R.md"}
	require.NoError(t, r.write(o))
	require.NoError(t, r.write(o))
	back, err := readResults(o.json)
	require.NoError(t, err)
	require.Equal(t, r, back)
}

// Cases of an older file stay if this run did not measure them.
func TestAdd(t *testing.T) {
	old, now := sample(), sample()
	now.Cases, now.Hash = now.Cases[1:], nil
	now.Cases[0].Entries = map[string]entry{nameOurs: {Median: 7}}
	sum := now.onto(old)
	require.Len(t, sum.Cases, 3)
	require.Equal(t, old.Cases[0], sum.Cases[0])
	require.Equal(t, old.Cases[2], sum.Cases[1])
	require.Equal(t, now.Cases[0], sum.Cases[2])
	require.Equal(t, old.Hash, sum.Hash)
	b, err := json.Marshal(sum)
	require.NoError(t, err)
	require.NotEmpty(t, b)
}

// The tables in the pages are those of the committed results.
func TestPagesShowTheResults(t *testing.T) {
	r, err := readResults("../../docs/benchmarks.json")
	require.NoError(t, err)
	for page, text := range map[string]string{"../../README.md": r.short(), "../../docs/benchmarks.md": r.markdown()} {
		b, err := os.ReadFile(page)
		require.NoError(t, err)
		want, err := between(string(b), text)
		require.NoError(t, err)
		require.Equal(t, want, string(b), "go run ./tests/bench -from docs/benchmarks.json -markdown docs/benchmarks.md -svg docs/benchmarks.svg -readme README.md")
	}
	b, err := os.ReadFile("../../docs/benchmarks.svg")
	require.NoError(t, err)
	require.Equal(t, r.svg(), string(b))
}

// The measure of PCCL's report, by its own numbers: 18 peers with 2^28 float32
// each in 90.5 s contribute 11.86 MB/s each and have 358.6 Mbit/s on the wire.
func TestRates(t *testing.T) {
	contribution, network := sums(18, 1<<30, "none", 1).rates(90.5)
	require.InDelta(t, 11.86, contribution, 0.01)
	require.InDelta(t, 0.3586, network, 0.0001)
	contribution, network = sums(2, 1<<20, "none", 4).rates(1)
	require.InDelta(t, 4*1.048576, contribution, 1e-9)
	require.InDelta(t, 4*1.048576*8*2/1e3, network, 1e-9)
}
