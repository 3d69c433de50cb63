package collective

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A round may begin while pools grow: what was opened for that is closed again, unused. The
// collectives behind the round have all that they need.
func TestPoolsThatStoppedGrowing(t *testing.T) {
	for _, mesh := range []bool{false, true} {
		w := newWorld(t, shape{n: 3, mesh: mesh, frame: 128})
		for pair := range w.in {
			a, b := w.shape.link(t)
			hub := w.eng[pair[1]].hub
			hub.AddReceiver(w.ids[pair[0]], 1, b)
			grown := hub.Receivers(w.ids[pair[0]])[1]
			a.Close()
			require.Eventually(t, grown.Closed, patience, time.Millisecond)
		}
		rng := rand.New(rand.NewPCG(7, 7))
		for _, kind := range allKinds {
			w.run(rng, draw(rng, w, kind, 100))
		}
	}
}
