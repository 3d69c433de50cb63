package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// near connects n peers in this process, each with the options that change makes.
func near(t *testing.T, ctx context.Context, n int, change func(i int, o *peer.Options)) []*peer.Session {
	return apart(t, ctx, n, func(i int, o *peer.Options) {
		o.RoundTrip = nil
		change(i, o)
	})
}

// forwarded is what member i brings into an all-reduce of the test: its sum is the same however it is
// formed.
func forwarded(i, count int) []float32 {
	v := make([]float32, count)
	for k := range v {
		v[k] = float32((k + 1) * (i + 1) % 1000)
	}
	return v
}

// An all-reduce that all want finished forward is, with the right bits, in place or not, again and again
// with one tag; a large one, or one that a member does not want so, waits for its verdict.
func TestFinishForward(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const n = 3
	all := near(t, ctx, n, func(int, *peer.Options) {})
	reduce := func(count int, inPlace bool, wants func(i int) bool) (early int) {
		var ended atomic.Int64
		together(t, n, func(i int) error {
			src := forwarded(i, count)
			dst := src
			if !inPlace {
				dst = make([]float32, count)
			}
			r := peer.Reduce{Tag: 7, Src: dtype.AsBytes(src), Dst: dtype.AsBytes(dst), DType: dtype.Float32, Op: dtype.Sum, FinishForward: wants(i)}
			info, err := all[i].AllReduce(ctx, r)
			if err != nil {
				return err
			}
			want := make([]float32, count)
			for j := range n {
				for k, v := range forwarded(j, count) {
					want[k] += v
				}
			}
			if !bytes.Equal(dtype.AsBytes(want), dtype.AsBytes(dst)) {
				return fmt.Errorf("peer %d: wrong sum of %d elements", i, count)
			}
			clear(dst) // it is the caller's
			if info.FinishedForward {
				ended.Add(1)
			}
			return nil
		})
		return int(ended.Load())
	}
	every := func(int) bool { return true }
	early := 0
	for round := range 40 {
		early += reduce([]int{1, 1000, 100000}[round%3], round%2 == 0, every)
	}
	require.Greater(t, early, 20, "the verdict was waited for")
	for range 3 {
		require.Zero(t, reduce(1000, true, func(i int) bool { return i > 0 }))
		require.Zero(t, reduce(1<<20+1, true, every)) // more than 4 MiB
	}
	require.Zero(t, reduce(0, true, func(int) bool { return false }))
	reduce(0, true, every)
	// What changes the group waits for the verdict, and says nothing of it.
	reduce(1000, true, every)
	together(t, n, func(i int) error { return all[i].UpdateTopology(ctx) })
	reduce(1000, true, every)
	together(t, n, func(i int) error { return all[i].Close() })
}

// A member may want it for all of its all-reduces, and another one for one of them.
func TestFinishForwardByDefault(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const n = 2
	all := near(t, ctx, n, func(i int, o *peer.Options) { o.FinishForward = i == 0 })
	reduce := func(second bool) (early bool) {
		var some atomic.Bool
		together(t, n, func(i int) error {
			sum := []float32{float32(i + 1)}
			info, err := all[i].AllReduce(ctx, peer.Reduce{Tag: 1, Src: dtype.AsBytes(sum), Dst: dtype.AsBytes(sum), DType: dtype.Float32, Op: dtype.Sum, FinishForward: second && i == 1})
			if err == nil && sum[0] != 3 {
				err = fmt.Errorf("the sum is %v", sum[0])
			}
			if info.FinishedForward {
				some.Store(true)
			}
			return err
		})
		return some.Load()
	}
	for range 5 {
		require.False(t, reduce(false), "the other one waits")
	}
	early := false
	for range 20 {
		early = reduce(true) || early
	}
	require.True(t, early)
	together(t, n, func(i int) error { return all[i].Close() })
}

// swallower loses what is written to a connection beyond so many bytes, without a word.
type swallower struct {
	net.Conn
	mu   sync.Mutex
	left int
}

func (s *swallower) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(b), s.left)
	s.left -= n
	if n > 0 {
		if m, err := s.Conn.Write(b[:n]); err != nil {
			return m, err
		}
	}
	return len(b), nil
}

// A member that has lost its last chunk gets the result of those who have returned it, with their bits, and
// its operation succeeds as theirs did. The next one finds the connection broken, fails for all, and is
// repeated.
func TestForwardedResultReachesAll(t *testing.T) {
	if issued.On() {
		t.Log("bytes are counted in plaintext") // the other tests of this file run in TLS, too
		return
	}
	for _, inPlace := range []bool{true, false} {
		t.Run(fmt.Sprintf("in place %v", inPlace), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			const n, count = 3, 600000
			var mu sync.Mutex
			var lossy []*swallower
			all := near(t, ctx, n, func(i int, o *peer.Options) {
				o.PoolSize = 1
				if i != 0 {
					return
				}
				master := o.Master
				o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
					if err != nil || addr == master {
						return c, err
					}
					mu.Lock()
					defer mu.Unlock()
					s := &swallower{Conn: c, left: 1 << 30}
					lossy = append(lossy, s)
					return s, nil
				}
			})
			src, dst := make([][]float32, n), make([][]float32, n)
			ops := make([]*peer.Operation, n)
			for i := range n {
				src[i] = forwarded(i, count)
				dst[i] = src[i]
				if !inPlace {
					dst[i] = make([]float32, count)
				}
			}
			mu.Lock()
			for _, s := range lossy { // three of the four chunks that it sends, and half of the last
				s.mu.Lock()
				s.left = 4 * count / n * 7 / 2
				s.mu.Unlock()
			}
			mu.Unlock()
			for i := range n {
				var err error
				ops[i], err = all[i].AllReduceAsync(ctx, peer.Reduce{Tag: 3, Src: dtype.AsBytes(src[i]), Dst: dtype.AsBytes(dst[i]), DType: dtype.Float32, Op: dtype.Sum, FinishForward: true})
				require.NoError(t, err)
			}
			info, err := ops[0].Wait(ctx)
			require.NoError(t, err)
			require.True(t, info.FinishedForward)
			mu.Lock()
			for _, s := range lossy {
				s.Conn.Close()
			}
			mu.Unlock()
			want := make([]float32, count)
			for j := range n {
				for k, v := range forwarded(j, count) {
					want[k] += v
				}
			}
			for i := range n {
				_, err := ops[i].Wait(ctx)
				require.NoError(t, err, "peer %d", i)
				require.True(t, bytes.Equal(dtype.AsBytes(want), dtype.AsBytes(dst[i])), "peer %d", i)
			}
			together(t, n, func(i int) error {
				r := peer.Reduce{Tag: 3, Src: dtype.AsBytes([]float32{1}), DType: dtype.Float32, Op: dtype.Sum}
				sum := make([]float32, 1)
				r.Dst = dtype.AsBytes(sum)
				for {
					_, err := all[i].AllReduce(ctx, r)
					if errs.CodeOf(err) == errs.RankConnectionLost {
						continue
					}
					if err == nil && sum[0] != n {
						return fmt.Errorf("the sum of the next operation is %v", sum[0])
					}
					return err
				}
			})
		})
	}
}
