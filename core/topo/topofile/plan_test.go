package topofile

import (
	"bytes"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
)

func names(names ...string) *File {
	return &File{Name: "m", Peers: names, Matrix: topo.NewMatrix(len(names))}
}

// A plan comes back by names, for a matrix that has the peers in another order.
func TestPlanRoundTrip(t *testing.T) {
	a := names("oslo", "rome", "bern", "lima")
	var b bytes.Buffer
	require.NoError(t, a.WritePlan(&b, []int{2, 0, 3, 1}))
	require.Contains(t, b.String(), `"version":1`)
	again, err := a.ReadPlan(bytes.NewReader(b.Bytes()))
	require.NoError(t, err)
	require.Equal(t, []int{2, 0, 3, 1}, again) // S3-21
	other, err := names("bern", "lima", "oslo", "rome").ReadPlan(bytes.NewReader(b.Bytes()))
	require.NoError(t, err)
	require.Equal(t, []int{0, 2, 1, 3}, other)

	path := filepath.Join(t.TempDir(), "ring.json")
	for range 2 { // over an older one, too
		ring := rand.Perm(4)
		require.NoError(t, a.SavePlan(path, ring))
		back, err := a.OpenPlan(path)
		require.NoError(t, err)
		require.Equal(t, ring, back)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestPlanRefusesOthers(t *testing.T) {
	f := names("oslo", "rome", "bern")
	for text, want := range map[string]string{
		``: "cut off",
		`{"format":"gopccl ring","version":1,"ring":["oslo","ro`:                     "cut off",
		`{"mbps":[[0,1],[1,0]]}`:                                                     "format",
		`{"format":"gopccl ring","version":2,"ring":["oslo","rome","bern"]}`:         "version 2",
		`{"format":"gopccl ring","version":1,"ring":["oslo","rome"]}`:                "2 peers",
		`{"format":"gopccl ring","version":1,"ring":["oslo","rome","rome"]}`:         "twice",
		`{"format":"gopccl ring","version":1,"ring":["oslo","rome","paris"]}`:        "paris",
		`{"format":"gopccl ring","version":1,"ring":["oslo","rome","bern"]} {"a":1}`: "after the plan",
		`{"format":"gopccl ring","version":1,"ring":7}`:                              "number",
	} {
		_, err := f.ReadPlan(strings.NewReader(text))
		require.ErrorContains(t, err, want, text) // S3-21
		require.Equal(t, errs.CorruptFile, errs.CodeOf(err), text)
	}
	_, err := f.OpenPlan("no/such/file")
	require.Error(t, err)
	for _, ring := range [][]int{{0, 1}, {0, 1, 1}, {0, 1, 3}, {-1, 0, 1}} {
		require.Error(t, f.WritePlan(&bytes.Buffer{}, ring))
	}
	require.Error(t, f.SavePlan(filepath.Join(t.TempDir(), "no/such/folder"), []int{0, 1, 2}))
}

// Whatever is in a plan, what comes back is a permutation or an error.
func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"format":"gopccl ring","version":1,"ring":["b","a","c"]}`))
	f.Add([]byte(`{"format":"gopccl ring","version":1,"ring":["b","a","a"]}`))
	f.Add([]byte(`{"ring":[[[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := names("a", "b", "c")
		ring, err := file.ReadPlan(bytes.NewReader(data))
		if err != nil {
			return
		}
		require.NoError(t, file.WritePlan(&bytes.Buffer{}, ring))
	})
}
