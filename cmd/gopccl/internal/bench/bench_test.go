package bench

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
)

// peerEnv makes the test binary a peer process: its value is the master.
const peerEnv = "GOPCCL_TEST_BENCH_PEER"

func TestMain(m *testing.M) {
	if master := os.Getenv(peerEnv); master != "" {
		if err := Peer(context.Background(), master, os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func world(size int) World {
	return World{
		Size: size, Limit: 100 * time.Second,
		Peer: PeerConfig{PoolSize: 1, FrameBytes: 64 << 10, Backend: "cpu_generic"},
		Command: func(master string) *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), peerEnv+"="+master)
			return cmd
		},
	}
}

// The counters of a ring say that each peer sent and received 2 (N-1) / N of
// its buffer (data spec, section 5).
func TestAllReduce(t *testing.T) {
	jobs := []Reduction{
		{Count: 1, DType: dtype.Float32, Rounds: 3, Concurrent: 1},
		{Count: 90000, DType: dtype.Float32, Rounds: 2, Concurrent: 1},
		{Count: 90000, DType: dtype.Float32, Rounds: 2, Concurrent: 1, Quantize: core.Quantize{Algorithm: "minmax", Type: dtype.Uint8}},
		{Count: 90000, DType: dtype.Float32, Rounds: 1, Concurrent: 1, Quantize: core.Quantize{Algorithm: "blocks", Type: dtype.Int4}},
		{Count: 999, DType: dtype.BFloat16, Rounds: 1, Concurrent: 3, InPlace: true},
	}
	var got []Result
	require.NoError(t, world(3).AllReduce(t.Context(), jobs, func(r Result) error {
		got = append(got, r)
		return nil
	}))
	require.Len(t, got, len(jobs))
	for i, r := range got {
		require.Equal(t, 3, r.World)
		require.Equal(t, jobs[i].Bytes(), r.Bytes)
		require.Equal(t, jobs[i].DType.String(), r.DType)
		require.Positive(t, r.Min)
		require.LessOrEqual(t, r.Min, r.Median)
		require.LessOrEqual(t, r.Median, r.Max)
		require.InEpsilon(t, float64(r.Bytes*r.Concurrent)/1e6, r.Contribute*r.Median, 1e-9, "what a peer contributes, in MB")
		require.InEpsilon(t, float64(r.Rx+r.Tx)*8/1e9, r.Network*r.Median, 1e-9, "what it sends and receives, in Gbit")
	}
	require.EqualValues(t, 4*90000*4/3, got[1].Tx) // S1-29
	require.EqualValues(t, 4*90000*4/3, got[1].Rx)
	require.Less(t, 3*got[3].Tx, 2*got[2].Tx, "18 bytes for 32 elements")
	require.EqualValues(t, 4*90000/3+4*35, got[2].Tx)
	require.EqualValues(t, 3*2*999*4/3, got[4].Tx)
	require.Equal(t, "uint8", got[2].Wire)
}

// Every kind moves the bytes that it needs and no more, beside the results that its
// processes have verified.
// In a world in TLS the master takes peers with a credential of that world alone.
func TestAllReduceSecure(t *testing.T) {
	w := world(2)
	w.Secure = true
	jobs := []Reduction{{Count: 90000, DType: dtype.Float32, Rounds: 2, Concurrent: 1}}
	var got []Result
	require.NoError(t, w.AllReduce(t.Context(), jobs, func(r Result) error {
		got = append(got, r)
		return nil
	}))
	require.Len(t, got, 1)
	require.True(t, got[0].Secure)
	require.EqualValues(t, 4*90000, got[0].Tx, "what is counted is what is reduced")

	made, err := newCredentials()
	require.NoError(t, err)
	head, err := made.master()
	require.NoError(t, err)
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0", Security: core.SecurityOptions{Credential: head}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	in, order := io.Pipe() // its end makes the peer leave
	go func() { _, _ = io.WriteString(order, `{"World":1}`+"\n") }()
	err = Peer(ctx, m.Addr().String(), in, io.Discard)
	require.NoError(t, order.Close())
	require.ErrorIs(t, err, errs.MasterConnectionFailed)
	stop()
	<-ended
	require.NoError(t, m.Close())
}

func TestCollective(t *testing.T) {
	const n, size = 3, 4 * 9000
	want := map[core.Kind]uint64{ // sent by the peer that sends most
		core.KindAllGather: 2 * size / n, core.KindReduceScatter: 2 * size / n, core.KindBroadcast: size, core.KindReduce: size,
		core.KindGather: size / n, core.KindScatter: 2 * size / n, core.KindAllToAll: 2 * size / n,
	}
	var jobs []Exchange
	for _, name := range KindNames() {
		k, ok := ParseKind(name)
		require.True(t, ok)
		jobs = append(jobs, Exchange{Kind: k, Count: size / 4, DType: dtype.Float32, Rounds: 2})
	}
	encoded := core.Quantize{Algorithm: "minmax", Type: dtype.Uint8}
	for _, k := range []core.Kind{core.KindAllGather, core.KindReduceScatter} {
		jobs = append(jobs, Exchange{Kind: k, Count: size / 4, DType: dtype.Float32, Rounds: 2, Quantize: encoded})
	}
	var got []ExchangeResult
	require.NoError(t, world(n).Collective(t.Context(), jobs, func(r ExchangeResult) error {
		got = append(got, r)
		return nil
	}))
	require.Len(t, got, 10)
	for i, r := range got[8:] {
		require.Equal(t, KindNames()[i], r.Kind)
		require.Equal(t, []string{"minmax", "uint8"}, []string{r.Quantize, r.Wire})
		require.EqualValues(t, 2*size/n/4, r.Tx, r.Kind)
	}
	for i, r := range got[:8] {
		require.Equal(t, KindNames()[i], r.Kind)
		require.Positive(t, r.Min)
		require.Equal(t, want[jobs[i].Kind], r.Tx, r.Kind)
		require.Equal(t, jobs[i].Bytes(), r.Bytes)
	}
	_, ok := ParseKind("all-reduce")
	require.False(t, ok)

	j := Exchange{Kind: core.KindAllGather, Count: 9, DType: dtype.Float32}
	wrong := make([]byte, j.Bytes())
	require.ErrorContains(t, j.verify(n, 1, wrong), "wrong result of all-gather")
}

func TestSync(t *testing.T) {
	r, err := world(3).Sync(t.Context(), Transfer{Bytes: 100001, Outdated: true, Rounds: 2})
	require.NoError(t, err)
	require.EqualValues(t, 100001, r.Rx)
	require.Equal(t, 1, r.Outdated)
	r, err = world(3).Sync(t.Context(), Transfer{Bytes: 100001, Rounds: 2})
	require.NoError(t, err)
	require.Zero(t, r.Rx)
	require.Zero(t, r.Tx)
}

// A peer process that cannot do its job, is not there or says nothing ends the
// measurement with its reason, and no process is left.
func TestFailuresEndTheMeasurement(t *testing.T) {
	job := []Reduction{{Count: 8, DType: dtype.Float32, Rounds: 1, Concurrent: 1}}
	w := world(2)
	w.Peer.Backend = "abacus"
	require.ErrorContains(t, w.AllReduce(t.Context(), job, nil), "abacus")

	w = world(2)
	w.Command = func(string) *exec.Cmd { return exec.Command(os.Args[0] + "-missing") }
	require.ErrorContains(t, w.AllReduce(t.Context(), job, nil), "start peer process 0")

	w = world(2)
	w.Limit = time.Millisecond
	require.ErrorIs(t, w.AllReduce(t.Context(), job, nil), context.DeadlineExceeded)
}

func TestPeerRefusesBadOrders(t *testing.T) {
	require.ErrorContains(t, Peer(t.Context(), "127.0.0.1:1", strings.NewReader(""), &bytes.Buffer{}), "no order")
	require.ErrorContains(t, Peer(t.Context(), "127.0.0.1:1", strings.NewReader("hello\n"), &bytes.Buffer{}), "order")
}

// A result that is wrong in one element is found.
func TestVerify(t *testing.T) {
	const n = 50
	for typ := range dtype.Type(dtype.NumTypes) {
		for _, world := range []int{2, 7} {
			j := Reduction{Count: n, DType: typ}
			b := make([]byte, j.Bytes())
			for i := range n {
				sum := 0
				for p := range world {
					sum += element(i, p)
				}
				put(typ, b, i, sum)
			}
			require.NoError(t, j.verify(b, world), "%v", typ)
			put(typ, b, n-1, world+1)
			require.ErrorContains(t, j.verify(b, world), "element 49", "%v", typ)
		}
	}
	j := Reduction{Count: 1, DType: dtype.Float32, Quantize: core.Quantize{Algorithm: "minmax", Type: dtype.Uint8}}
	sum := float32(element(0, 0) + element(0, 1))
	require.NoError(t, j.verify(dtype.AsBytes([]float32{sum + 0.01}), 2))
	require.Error(t, j.verify(dtype.AsBytes([]float32{sum + 0.5}), 2))
	j.Quantize = core.Quantize{Algorithm: "blocks", Type: dtype.Int4}
	require.NoError(t, j.verify(dtype.AsBytes([]float32{sum + 0.2}), 2))
	require.Error(t, j.verify(dtype.AsBytes([]float32{sum + 0.5}), 2))
}

func TestCombine(t *testing.T) {
	got := combine([]Report{
		{Seconds: []float64{1, 5, 3}, CPU: 1, Tx: 7, Rx: 1},
		{Seconds: []float64{2, 4, 9}, CPU: 2, Tx: 6, Rx: 2},
	})
	require.Equal(t, timing{median: 5, min: 2, max: 9, cpu: 3, tx: 7, rx: 2}, got)
	require.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
	require.Zero(t, median(nil))
}

func TestHash(t *testing.T) {
	h, _, err := digest.Select("cpu_generic")
	require.NoError(t, err)
	var names []string
	require.NoError(t, Hash(t.Context(), h, 1<<16+3, 1, func(r HashResult) error {
		require.Equal(t, map[string]string{"simplehash": "cpu_generic", "crc32c": "cpu_generic"}[r.Hash], r.Hasher)
		names = append(names, r.Hash)
		require.Equal(t, 1<<16+3, r.Bytes)
		require.Positive(t, r.Rate)
		return nil
	}))
	require.Contains(t, names, "read")
	require.Contains(t, names, "simplehash")
	require.EqualValues(t, 10, readAll(dtype.AsBytes([]uint64{1, 2, 3, 4})))
}
