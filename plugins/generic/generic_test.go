//go:build unix

package main

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	generic "github.com/gopccl/gopccl/backends/cpu_generic"
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/backend/backendtest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/plugin/host"
)

var soak = flag.Bool("soak", false, "all slices over the process border, not the long ones alone")

func builtIn(t testing.TB) backend.Backend {
	b, err := generic.Driver{}.New()
	require.NoError(t, err)
	return b
}

func begin(t testing.TB) *host.BackendPlugin {
	p, err := host.StartBackend(host.Spec{Name: "generic", Command: os.Args[0], Args: []string{"plugin"}, StartTimeout: time.Minute}, builtIn(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	require.NoError(t, p.Probe())
	p.Small = 0
	return p
}

// The conformance suite of backends, every call of it over the process border.
func TestConformance(t *testing.T) {
	p := begin(t)
	if !*soak {
		p.Small = 400 // most of the suite's slices are shorter, and each costs a call
	}
	backendtest.Run(t, p)
	require.Zero(t, p.Lost(), "the built-in backend computed")
	require.Equal(t, 1, p.Plugin().Starts())
}

// While its process is killed again and again the bits stay right.
func TestKilled(t *testing.T) {
	p := begin(t)
	want := builtIn(t)
	var done atomic.Bool
	var wg sync.WaitGroup
	for k := range 2 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(k)))
			a, b := make([]byte, 3<<20), make([]byte, 3<<20)
			for i := range a {
				a[i], b[i] = byte(rng.Uint32()), byte(rng.Uint32())
			}
			expect, got := make([]byte, len(a)), make([]byte, len(a))
			want.Reduce(dtype.Int32, dtype.Sum, expect, a, b)
			for !done.Load() {
				clear(got)
				p.Reduce(dtype.Int32, dtype.Sum, got, a, b)
				if !bytes.Equal(expect, got) {
					t.Error("other bits")
					return
				}
			}
		})
	}
	for range 3 {
		require.NoError(t, p.Probe())
		pid := p.Plugin().PID()
		if pid != 0 {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		require.Eventually(t, func() bool { return p.Plugin().PID() != pid }, 2*time.Minute, time.Millisecond)
	}
	require.NoError(t, p.Probe())
	done.Store(true)
	wg.Wait()
	require.NotZero(t, p.Lost())
}

// BenchmarkReduce compares the plugin with the built-in backend.
func BenchmarkReduce(b *testing.B) {
	p := begin(b)
	x, y, dst := make([]byte, 1<<20), make([]byte, 1<<20), make([]byte, 1<<20)
	for name, k := range map[string]backend.Backend{"plugin": p, "built in": builtIn(b)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(x)))
			for b.Loop() {
				k.Reduce(dtype.Float32, dtype.Sum, dst, x, y)
			}
		})
	}
}
