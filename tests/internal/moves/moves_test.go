package moves

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/plan"
)

// What is looked at after a round is what the collective promises.
func TestWrongBlocksAreNoticed(t *testing.T) {
	for _, name := range Names() {
		b, err := New(name, 3, 0, 4000)
		require.NoError(t, err)
		if b.Kind == plan.Barrier || b.Kind == plan.Broadcast {
			continue // nothing comes to the root
		}
		require.ErrorContains(t, b.Check(), "wrong result of "+name)
		for i := range b.Dst {
			b.Dst[i] = b.Want(i)
		}
		require.NoError(t, b.Check())
		b.Dst[len(b.Dst)/2]++
		require.Error(t, b.Check())
	}
	_, err := New("all-to-one", 3, 0, 4000)
	require.Error(t, err)
}
