package compat

import (
	"testing"
)

func TestOriginalAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, original)
	for _, pool := range []int{1, 2, 3} {
		w.join(w.newPeer(original, 0, pool))
	}
	w.script()
}
