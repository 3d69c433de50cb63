package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/bench"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

func TestBenchHashWritesJSONLines(t *testing.T) {
	var out, errOut bytes.Buffer
	code := execute(t.Context(), []string{"bench", "hash", "--bytes", "64KiB", "--rounds", "1", "--json", "-"}, nil, &out, &errOut)
	require.Equal(t, exitOK, code, errOut.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Greater(t, len(lines), 2)
	for _, line := range lines {
		var r map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.EqualValues(t, 65536, r["bytes"])
	}
}

// What hashes is chosen by flag or configuration, and has to exist.
func TestBenchHashChoosesTheHasher(t *testing.T) {
	bench := func(args ...string) (code int, out, errOut bytes.Buffer) {
		args = append([]string{"bench", "hash", "--bytes", "64KiB", "--rounds", "1"}, args...)
		return execute(t.Context(), args, nil, &out, &errOut), out, errOut
	}
	for _, args := range [][]string{{"--hasher", "cpu_generic"}, {"--set", "peer.hasher=cpu_generic"}} {
		code, out, errOut := bench(args...)
		require.Equal(t, exitOK, code, errOut.String())
		require.Contains(t, out.String(), "cpu_generic")
	}
	code, _, errOut := bench("--hasher", "md5")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errOut.String(), "cpu_generic", "it says what there is")
}

// Wake-up latency of every way to sleep, p50 and p99, on one host and in
// turns.
func TestBenchParkComparesAllWaysToSleep(t *testing.T) {
	var out, errOut bytes.Buffer
	code := execute(t.Context(), []string{"bench", "park", "--rounds", "16", "--gap", "0", "--json", "-"}, nil, &out, &errOut)
	require.Equal(t, exitOK, code, errOut.String())
	ways := map[string]int{}
	for line := range strings.Lines(out.String()) {
		var r struct {
			Way    string  `json:"way"`
			Waker  string  `json:"waker"`
			Rounds int     `json:"rounds"`
			P50    float64 `json:"p50_us"`
			P99    float64 `json:"p99_us"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Equal(t, 16, r.Rounds)
		require.Positive(t, r.P50)
		require.GreaterOrEqual(t, r.P99, r.P50)
		ways[r.Way]++
	}
	for _, way := range []string{"native parker, own thread", "portable parker, goroutine", "channel, goroutine", "sync.Cond, goroutine"} {
		require.Equal(t, 2, ways[way], way)
	}
}

// The cost of a post, and the time until the data phase and the
// verdict, for every setting.
func TestBenchPostMeasuresEverySetting(t *testing.T) {
	var out, errOut bytes.Buffer
	args := "bench post --preset latency,balanced --append-frequency 0,3 --burst 1,4 --bytes 64B --rounds 5 --json -"
	code := execute(t.Context(), strings.Fields(args), nil, &out, &errOut)
	require.Equal(t, exitOK, code, errOut.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 8)
	for _, line := range lines {
		var r map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Positive(t, r["post_p50_us"])
		require.Greater(t, r["end_p50_us"], r["start_p50_us"])
		require.GreaterOrEqual(t, r["burst_p50_us"], r["end_p50_us"])
	}
}

// Every kind of collective can be measured, the barrier once for all sizes.
func TestBenchCollective(t *testing.T) {
	b := collectiveBench{kinds: strings.Join(bench.KindNames(), ","), dtype: "float64"}
	b.rounds = 3
	jobs, err := b.jobs(3, []int{100, 800})
	require.NoError(t, err)
	require.Len(t, jobs, 2*7+1)
	for _, j := range jobs {
		if j.Kind == core.KindBroadcast || j.Kind == core.KindReduce {
			require.Contains(t, []int{12, 100}, j.Count)
		} else if j.Kind != 0 {
			require.Contains(t, []int{12, 99}, j.Count)
		}
	}
}

// What idle communicators cost, by their number.
func TestBenchIdle(t *testing.T) {
	var out, errOut bytes.Buffer
	args := "bench idle --communicators 2,5 --span 50ms --json -"
	code := execute(t.Context(), strings.Fields(args), nil, &out, &errOut)
	require.Equal(t, exitOK, code, errOut.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	for _, line := range lines {
		var r map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Positive(t, r["threads"])
		require.Positive(t, r["goroutines"])
		require.Less(t, r["goroutines"], 40.0)
	}
}

// What a start in TLS takes more than one in plaintext.
func TestBenchStart(t *testing.T) {
	var out, errOut bytes.Buffer
	code := execute(t.Context(), strings.Fields("bench start --world 2,3 --rounds 3 --json -"), nil, &out, &errOut)
	require.Equal(t, exitOK, code, errOut.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	for i, line := range lines {
		var r bench.StartResult
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Equal(t, 2+i, r.World)
		require.Equal(t, 3, r.Rounds)
		require.Positive(t, r.Plain)
		require.Positive(t, r.TLS)
	}
}

func TestBenchRefusesImpossibleArguments(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"allreduce --world 1", "--world"},
		{"allreduce --world two", "--world"},
		{"allreduce --bytes 4XB", "--bytes"},
		{"allreduce --bytes 2", "less than one float32"},
		{"allreduce --rounds 0", "--rounds"},
		{"allreduce --dtype float8", "float8"},
		{"allreduce --quantize gzip", "blocks, minmax, zeropoint"},
		{"allreduce --quantize blocks --wire uint8", "int4"},
		{"allreduce --quantize blocks --dtype int32", "int32"},
		{"allreduce --quantize minmax --wire uint64", "uint64"},
		{"allreduce --quantize minmax --dtype int32", "int32"},
		{"allreduce --concurrent 0", "--concurrent"},
		{"collective --kind all-gather,gossip", "all-to-all, barrier"},
		{"collective --world 4 --bytes 12", "less than one float32 for each of 4 peers"},
		{"collective --dtype float8", "float8"},
		{"collective --quantize gzip", "blocks, minmax, zeropoint"},
		{"collective --quantize minmax --kind all-gather,gather", "gather cannot be quantized"},
		{"collective --quantize minmax --kind all-gather --dtype int32", "int32"},
		{"collective --quantize blocks --wire uint8 --kind reduce-scatter", "int4"},
		{"collective --world 1", "--world"},
		{"start --world 1", "--world"},
		{"start --rounds 0", "--rounds"},
		{"sync --world 2", "--world"},
		{"hash --bytes -1", "--bytes"},
		{"hash extra", "extra"},
		{"park --gap 2s", "--gap"},
		{"park --rounds 0", "--rounds"},
		{"post --preset fast", "--preset"},
		{"idle --span 0s", "--span"},
		{"idle --threads many", "--threads"},
		{"post --append-batch 5000", "--append-batch"},
	} {
		var out, errOut bytes.Buffer
		code := execute(t.Context(), append([]string{"bench"}, strings.Fields(c.args)...), nil, &out, &errOut)
		require.Equal(t, exitUsage, code, c.args)
		require.Contains(t, errOut.String(), c.want, c.args)
		require.Empty(t, out.String(), c.args)
	}
}

// Every quantizer is listed, and measured with the narrowest type that it has
// unless another one is asked for.
func TestBenchAllReduceChoosesTheWireType(t *testing.T) {
	var out, errOut bytes.Buffer
	require.Equal(t, exitOK, execute(t.Context(), []string{"bench", "allreduce", "--help"}, nil, &out, &errOut), errOut.String())
	require.Contains(t, out.String(), strings.Join(quant.Names(), ", "))
	for _, c := range []struct {
		algorithm, wire string
		want            dtype.Type
	}{
		{"none", "", dtype.Uint8},
		{"minmax", "", dtype.Uint8},
		{"minmax", "uint16", dtype.Uint16},
		{"zeropoint", "", dtype.Uint8},
		{"blocks", "", dtype.Int4},
		{"blocks", "int4", dtype.Int4},
	} {
		b := reduceBench{dtype: "float32", algorithm: c.algorithm, wire: c.wire}
		jobs, err := b.jobs([]int{2, 4}, []int{4 << 10})
		require.NoError(t, err, c)
		require.Len(t, jobs, 1)
		require.Equal(t, core.Quantize{Algorithm: c.algorithm, Type: c.want}, jobs[0].Quantize)
	}
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int{
		"400000": 400000, "4KiB": 4096, "64MiB": 64 << 20, "1.5KB": 1500, "2 GB": 2e9, "1GiB": 1 << 30, "7B": 7,
	} {
		n, err := parseBytes(s)
		require.NoError(t, err)
		require.Equal(t, want, n, s)
	}
	for _, s := range []string{"", "0", "-4", "KiB", "4TB", "NaN", "inf", "1e30", "4 KiBi"} {
		_, err := parseBytes(s)
		require.Error(t, err, s)
	}
}

// A line for every size, in order.
func TestBenchPlanning(t *testing.T) {
	code, out, errOut := gopccl(t, "bench", "planning", "--sizes", "3,6,20", "--budget", "50ms")
	require.Equal(t, exitOK, code, errOut)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 4)
	for k, n := range []string{"peers", "3", "6", "20"} {
		require.Equal(t, n, strings.Fields(lines[k])[0])
	}
	require.Contains(t, lines[2], "true")
	code, out, errOut = gopccl(t, "bench", "planning", "--sizes", "9", "--budget", "50ms", "--json", "-")
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, `"n":9`)
	for _, args := range [][]string{{"--sizes", "1"}, {"--budget", "0s"}, {"--solver", "x"}} {
		code, _, errOut := gopccl(t, append([]string{"bench", "planning"}, args...)...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, errOut, args[0][2:])
	}
}
