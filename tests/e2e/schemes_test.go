package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer"
	"github.com/gopccl/gopccl/internal/wire"
)

// terrain is what peers on one machine say of the links between them.
type terrain struct {
	rtt  func(i, k int) time.Duration
	mbps func(i, k int) float64

	mu sync.Mutex
	of map[wire.UUID]int
}

// across connects n peers on a terrain, and has them measure it.
func across(t *testing.T, ctx context.Context, n int, on *terrain) []*peer.Session {
	t.Helper()
	on.of = map[wire.UUID]int{}
	index := func(u wire.UUID) (int, bool) {
		on.mu.Lock()
		defer on.mu.Unlock()
		k, ok := on.of[u]
		return k, ok
	}
	all := apart(t, ctx, n, func(i int, o *peer.Options) {
		o.RoundTrip = func(u wire.UUID) (time.Duration, bool) {
			if k, ok := index(u); ok {
				return on.rtt(i, k), true
			}
			return 80 * time.Millisecond, true // not all have connected
		}
		o.Rate = func(u wire.UUID) float64 {
			k, _ := index(u)
			return on.mbps(i, k)
		}
		o.Probe.Duration = 50 * time.Millisecond
	})
	on.mu.Lock()
	for i, s := range all {
		on.of[s.View().UUID] = i
	}
	on.mu.Unlock()
	together(t, n, func(i int) error { return all[i].OptimizeTopology(ctx) })
	return all
}

// sum reduces count numbers that say who made them, and compares.
func sum(ctx context.Context, s *peer.Session, i, n, count int, inPlace bool) (peer.ReduceInfo, error) {
	src := make([]uint32, count)
	for k := range src {
		src[k] = uint32(i+1) * uint32(k+7)
	}
	dst := src
	if !inPlace {
		dst = make([]uint32, count)
	}
	info, err := s.AllReduce(ctx, peer.Reduce{Tag: 1, Src: dtype.AsBytes(src), Dst: dtype.AsBytes(dst), DType: dtype.Uint32, Op: dtype.Sum})
	for k := range dst {
		if err != nil {
			break
		}
		if want := uint32(n*(n+1)/2) * uint32(k+7); dst[k] != want {
			return info, fmt.Errorf("element %d is %d, not %d (plan %s)", k, dst[k], want, info.Plan)
		}
	}
	return info, err
}

// untilPlanned repeats large all-reduces until one takes a plan.
func untilPlanned(ctx context.Context, s *peer.Session, i, n int, name string) error {
	for try := 0; ; try++ {
		info, err := sum(ctx, s, i, n, 1<<19, i%2 == 0)
		if err != nil || info.Plan == name {
			return err
		}
		if try == 300 {
			return fmt.Errorf("the plan is %q: %s", info.Plan, info.Why)
		}
	}
}

// Where rates or sites differ, large all-reduces take the plan that fits them: right
// sums, the same bits of floating point on all members, in place or not, in any number
// of stripes; small ones and quantized ones are as before.
func TestLargeAllReducesAcrossATerrain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	up := []float64{20, 100, 200, 400}
	for name, c := range map[string]struct {
		n       int
		plan    string
		terrain *terrain
	}{
		"unequal rates": {4, "shares", &terrain{
			rtt:  func(i, k int) time.Duration { return 40 * time.Millisecond },
			mbps: func(i, k int) float64 { return min(up[i], 400) },
		}},
		"sites": {6, "sites 2, all pairs", &terrain{ // what a pair carries was measured
			rtt: func(i, k int) time.Duration {
				if i%2 == k%2 {
					return time.Millisecond
				}
				return 80 * time.Millisecond
			},
			mbps: func(i, k int) float64 {
				if i%2 == k%2 {
					return 1000
				}
				return 10
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := c.n
			all := across(t, ctx, n, c.terrain)
			// The terrain is told, and not felt: large all-reduces that are timed along the ring
			// before there is a plan would say that the ring is as good.
			for slices.ContainsFunc(all, func(s *peer.Session) bool { return s.View().Direct.Schemes == "" }) {
				together(t, n, func(i int) error {
					_, err := sum(ctx, all[i], i, n, 16, true)
					return err
				})
			}
			together(t, n, func(i int) error { return untilPlanned(ctx, all[i], i, n, c.plan) }) // S3-20
			for _, count := range []int{3 << 18, 1<<20 + 3, 20<<18 + 12345} {
				together(t, n, func(i int) error {
					info, err := sum(ctx, all[i], i, n, count, i%2 == 1)
					// What loopback shows of rates meanwhile may make relays the best.
					if err == nil && (info.Plan != c.plan && info.Plan != "relays" || !strings.Contains(info.Why, "predicted")) {
						err = fmt.Errorf("%d elements took the plan %q because of %q", count, info.Plan, info.Why)
					}
					return err
				})
			}
			got := make([][]byte, n)
			together(t, n, func(i int) error {
				rng := rand.New(rand.NewPCG(uint64(i), 1))
				src := make([]float32, 1<<20)
				for k := range src {
					src[k] = rng.Float32()
				}
				got[i] = dtype.AsBytes(src)
				info, err := all[i].AllReduce(ctx, peer.Reduce{Tag: 7, Src: got[i], Dst: got[i], DType: dtype.Float32, Op: dtype.Avg})
				if err == nil && info.Plan != c.plan {
					err = fmt.Errorf("plan %q", info.Plan)
				}
				return err
			})
			for i := range got {
				require.True(t, bytes.Equal(got[0], got[i]), "member %d differs", i)
			}
			// One ends while the others reduce: their buffers are as before.
			together(t, n, func(i int) error {
				if i == n-1 {
					return all[i].Close()
				}
				_, err := sum(ctx, all[i], i, n, 1<<20, true)
				if errs.CodeOf(err) != errs.RankConnectionLost {
					return fmt.Errorf("it ended with %v", err)
				}
				for range 3 { // among those that stay
					if _, err := sum(ctx, all[i], i, n-1, 1<<19, true); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
