package collective

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
)

// A connection that has brought something and ends while nothing runs is missed, and the error says which it was, and
// why it has ended.
func TestConnectionsThatEndBetween(t *testing.T) {
	w := newWorld(t, shape{n: 2, mesh: true, frame: 128})
	rng := rand.New(rand.NewPCG(7, 7))
	w.run(rng, draw(rng, w, plan.AllReduce, 100))
	w.out[[2]int{0, 1}][0].Close()
	require.Eventually(t, w.eng[1].hub.Receivers(w.ids[0])[0].Closed, patience, time.Millisecond)
	run := w.start(draw(rng, w, plan.AllReduce, 100).fill(w, rng).specs)
	run.ops[0].Abort(errTest) // the master tells it
	err := run.wait(t)[1]
	require.ErrorIs(t, err, errs.RankConnectionLost)
	require.ErrorContains(t, err, w.ids[0].String())
	require.ErrorContains(t, err, "connection 0 from it: the peer closed the connection")
	run.finish(true)
	w.close()
}

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
