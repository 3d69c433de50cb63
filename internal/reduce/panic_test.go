package reduce

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
)

// A listener that panics costs its own operation, if that has to end as a
// failure at all, and no more: the operation ends, the engine runs the next one
// and can be closed.
func TestPanicInAListener(t *testing.T) {
	for name, c := range map[string]struct {
		listener trace.Listener
		fails    bool
	}{
		"start":  {trace.Listener{OpStarted: func(uint64, uint64) { panic("heard") }}, true},
		"end":    {trace.Listener{OpEnded: func(uint64, uint64, error) { panic("heard") }}, true},
		"active": {trace.Listener{BecameActive: func() { panic("heard") }}, false},
		"idle":   {trace.Listener{BecameIdle: func() { panic("heard") }}, false},
		"lost":   {trace.Listener{ConnLost: func(string, uint32, bool, error) { panic("heard") }}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, shape{n: 2, vary: func(i int, cfg *Config, _ *int) {
				if i == 0 {
					cfg.Link.Trace = &c.listener
				}
			}})
			for range 2 {
				specs, _ := r.specs(rand.New(rand.NewPCG(1, 1)), dtype.Float32, dtype.Sum, 10, false)
				s := r.start(specs)
				if name == "start" {
					s.ops[1].Abort(errs.New(errs.Internal, opName, nil)) // as the master would tell it
				}
				err := s.wait(t)[0]
				for _, op := range s.ops {
					op.Finish(true)
				}
				if !c.fails {
					require.NoError(t, err)
					continue
				}
				require.ErrorIs(t, err, errs.Internal)
				require.ErrorContains(t, err, "heard")
			}
			r.out[1][0].Close()
			require.Eventually(t, func() bool { return r.eng[0].Stats().ConnsLost == 1 }, patience, time.Millisecond)
		})
	}
}
