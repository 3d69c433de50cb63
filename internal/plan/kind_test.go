package plan

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The numbers are on the wire and do not change.
func TestKinds(t *testing.T) {
	names := []string{
		"all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "gather", "scatter", "all-to-all", "barrier",
	}
	for i, name := range names {
		require.Equal(t, name, Kind(i).String())
		require.True(t, Kind(i).Valid())
	}
	require.EqualValues(t, NumKinds, len(names))
	require.False(t, Kind(NumKinds).Valid())
	require.Equal(t, "collective 9", Kind(9).String())
	var rooted, combines, direct []Kind
	for k := range Kind(NumKinds) {
		if k.Rooted() {
			rooted = append(rooted, k)
		}
		if k.Combines() {
			combines = append(combines, k)
		}
		if k.Direct() {
			direct = append(direct, k)
		}
	}
	require.Equal(t, []Kind{Broadcast, Reduce, Gather, Scatter}, rooted)
	require.Equal(t, []Kind{AllReduce, ReduceScatter, Reduce}, combines)
	require.Equal(t, []Kind{Gather, Scatter, AllToAll}, direct)
}
