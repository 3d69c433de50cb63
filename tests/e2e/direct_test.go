package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// distant is what peers on one machine say that they are.
func distant(wire.UUID) (time.Duration, bool) { return 80 * time.Millisecond, true }

// apart connects n peers in this process that take each other for distant.
func apart(t *testing.T, ctx context.Context, n int, change func(i int, o *peer.Options)) []*peer.Session {
	t.Helper()
	master := localMaster(t)
	all := make([]*peer.Session, n)
	t.Cleanup(func() {
		for _, s := range all {
			if s != nil {
				s.Close()
			}
		}
	})
	together(t, n, func(i int) (err error) {
		o := peer.Options{Master: master, PortBase: -1, Network: peer.Network{RoundTrip: distant}}
		issued.Guard(&o.Security)
		if change != nil {
			change(i, &o)
		}
		if all[i], err = peer.Connect(ctx, o); err != nil {
			return err
		}
		return settle(ctx, all[i], n)
	})
	return all
}

// settle has s let others in until the group has n members.
func settle(ctx context.Context, s *peer.Session, n int) error {
	for s.View().LocalWorldSize < n {
		pending, err := s.PeersPending(ctx)
		if err == nil && pending {
			err = s.UpdateTopology(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func together(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	fails := make([]error, n)
	for i := range n {
		wg.Go(func() { fails[i] = f(i) })
	}
	wg.Wait()
	for i, err := range fails {
		require.NoError(t, err, "peer %d", i)
	}
}

// untilDirect repeats small all-reduces until one takes the direct exchange.
func untilDirect(ctx context.Context, s *peer.Session) error {
	for {
		b := make([]byte, 64)
		info, err := s.AllReduce(ctx, peer.Reduce{Tag: 1, Src: b, Dst: b, DType: dtype.Float32, Op: dtype.Sum})
		if err != nil || info.Plan == "direct" {
			return err
		}
	}
}

// Among distant peers small all-reduces of every type and operation go directly, with
// the same bits on all members; the first large one is a trial.
func TestDirectAllReduce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const n = 4
	for name, eager := range map[string]int{"eager": 0, "not eager": -1} {
		t.Run(name, func(t *testing.T) {
			all := apart(t, ctx, n, func(_ int, o *peer.Options) { o.EagerBytes = eager })
			together(t, n, func(i int) error { return untilDirect(ctx, all[i]) })
			for dt := range dtype.Type(dtype.NumTypes) {
				for op := dtype.Sum; op < dtype.NumOps; op++ {
					for _, count := range []int{0, 3, 1000, 50_000} {
						if count == 50_000 && (dt != dtype.Float32 || op != dtype.Avg) {
							continue
						}
						got := make([][]byte, n)
						together(t, n, func(i int) error {
							rng := rand.New(rand.NewPCG(uint64(i), uint64(count)))
							src := make([]byte, count*dt.Size())
							for k := range src {
								src[k] = byte(rng.Uint32()) & 0x3f
							}
							got[i] = src
							if i%2 == 0 { // others reduce in place
								got[i] = make([]byte, len(src))
							}
							info, err := all[i].AllReduce(ctx, peer.Reduce{Tag: 7, Src: src, Dst: got[i], DType: dt, Op: op})
							if err == nil && (info.Plan != "direct" || !strings.Contains(info.Why, "delays")) {
								err = fmt.Errorf("it took the plan %q because of %q", info.Plan, info.Why)
							}
							return err
						})
						for i := range got {
							require.True(t, bytes.Equal(got[0], got[i]), "%v of %v: member %d differs", op, dt, i)
						}
					}
				}
			}
			together(t, n, func(i int) error {
				src := make([]int32, 2<<20)
				for k := range src {
					src[k] = int32(i + k)
				}
				info, err := all[i].AllReduce(ctx, peer.Reduce{Tag: 8, Src: dtype.AsBytes(src), Dst: dtype.AsBytes(src), DType: dtype.Int32, Op: dtype.Sum})
				if err == nil && (info.Plan != "a trial" || src[5] != 4*5+6) {
					err = fmt.Errorf("%q: %d", info.Plan, src[5])
				}
				return err
			})
			sum := make([]byte, 4)
			together(t, n, func(i int) error {
				b := binary.LittleEndian.AppendUint32(nil, uint32(1)<<(8*i))
				info, err := all[i].AllReduce(ctx, peer.Reduce{Tag: 9, Src: b, Dst: b, DType: dtype.Uint32, Op: dtype.Sum})
				if err == nil && info.Plan != "direct" {
					err = fmt.Errorf("%q", info.Plan)
				}
				if i == 0 {
					sum = b
				}
				return err
			})
			require.Equal(t, []byte{1, 1, 1, 1}, sum)
		})
	}
}

// Near peers keep to the ring, and have no connections that they do not need.
func TestNearPeersUseTheRing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := apart(t, ctx, 4, func(_ int, o *peer.Options) { o.RoundTrip = nil })
	together(t, 4, func(i int) error {
		for range 20 {
			b := make([]byte, 64)
			if info, err := all[i].AllReduce(ctx, peer.Reduce{Tag: 1, Src: b, Dst: b, DType: dtype.Float32, Op: dtype.Sum}); err != nil || info.Plan != "ring" || info.Why != "" {
				return fmt.Errorf("%+v: %w", info, err)
			}
		}
		return nil
	})
	require.False(t, all[0].View().Mesh)
}

// A member that ends fails the exchange for all others, whose buffers are as before;
// those that are left go on with the plan of a group of their size.
func TestDirectAllReduceOutlivesAMember(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const n = 5
	all := apart(t, ctx, n, nil)
	together(t, n, func(i int) error { return untilDirect(ctx, all[i]) })
	together(t, n, func(i int) error {
		for step := uint32(0); ; step++ {
			if i == n-1 && step == 20 {
				return all[i].Close()
			}
			src := make([]uint32, 5000)
			for k := range src {
				src[k] = step + uint32(k)
			}
			info, err := all[i].AllReduce(ctx, peer.Reduce{Tag: 3, Src: dtype.AsBytes(src), Dst: dtype.AsBytes(src), DType: dtype.Uint32, Op: dtype.Sum})
			switch {
			case errs.CodeOf(err) == errs.RankConnectionLost:
				for k := range src {
					if src[k] != step+uint32(k) {
						return fmt.Errorf("element %d was not restored", k)
					}
				}
				return untilDirect(ctx, all[i])
			case err != nil:
				return err
			case src[7] != uint32(info.WorldSize)*(step+7):
				return fmt.Errorf("step %d: %d with %d members", step, src[7], info.WorldSize)
			}
		}
	})
	require.Equal(t, n-1, all[0].View().LocalWorldSize)
}
