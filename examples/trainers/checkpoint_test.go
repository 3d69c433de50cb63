package trainers

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/checkpoint"
)

// Whatever a trainer passes over or leaves behind is said, and ends nothing.
func TestCheckpointTroubleIsSaid(t *testing.T) {
	dir := t.TempDir()
	o := small("")
	o.Checkpoint = dir
	var said []Event
	o.Report = func(e Event) { said = append(said, e) }
	r, err := prepare(o)
	require.NoError(t, err)
	r.share("", make([]float32, r.model.NumParams()))
	require.NoError(t, r.resume(), "the first start")
	for range 2 {
		r.state.Revision++
		_, left, err := r.state.SaveCheckpoint(dir, nil, 0)
		require.NoError(t, err)
		require.Empty(t, left)
	}
	newest, _, err := checkpoint.Latest(dir)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(newest, 100))
	require.Empty(t, said)
	require.NoError(t, r.resume())
	require.EqualValues(t, 1, r.state.Revision)
	require.Len(t, said, 1)
	require.Equal(t, Warning, said[0].Kind)
	require.Contains(t, said[0].String(), filepath.Base(newest))
}
