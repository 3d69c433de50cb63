//go:build unix

package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/quant/quanttest"
	"github.com/gopccl/gopccl/internal/plugin/host"
)

func begin(t testing.TB, args ...string) *host.QuantizerPlugin {
	p, err := host.StartQuantizer(host.Spec{Name: "absmax", Command: os.Args[0], Args: append([]string{"plugin"}, args...), StartTimeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// The conformance suite of quantizers, in this process.
func TestBuiltIn(t *testing.T) {
	if *soak {
		quanttest.Run(t, absmax{})
	} else {
		quanttest.Run(t, narrow{})
	}
}

// And over the process border.
func TestConformance(t *testing.T) {
	args := []string{"narrow"}
	if *soak {
		args = nil
	}
	p := begin(t, args...)
	quanttest.Run(t, p)
	require.Zero(t, p.Retried())
	require.Equal(t, 1, p.Plugin().Starts())
}

// Calls go on with the next process when one is killed, with the same bits.
func TestKilled(t *testing.T) {
	p := begin(t)
	rng := rand.New(rand.NewPCG(1, 2))
	src := make([]byte, 4<<20)
	for i := range len(src) / 4 {
		store(dtype.Float32, src, i, rng.NormFloat64())
	}
	m := absmax{}.Params(dtype.Float32, dtype.Int8, src)
	want := make([]byte, len(src)/4)
	absmax{}.Quantize(dtype.Float32, dtype.Int8, &m, want, src)
	got := make([]byte, len(want))
	for range 2 {
		pid := p.Plugin().PID()
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}()
		require.Eventually(t, func() bool {
			clear(got)
			require.Equal(t, m, p.Params(dtype.Float32, dtype.Int8, src))
			p.Quantize(dtype.Float32, dtype.Int8, &m, got, src)
			require.True(t, bytes.Equal(want, got))
			return p.Plugin().PID() != pid
		}, 2*time.Minute, time.Millisecond)
		<-killed
	}
}

// A call that the plugin cannot do is an error with its name, not a hang.
func TestRefused(t *testing.T) {
	p := begin(t)
	require.PanicsWithError(t, "gopccl: run plugin absmax (quantize): internal error: the plugin refused the call: not a frame of a plugin call [look for the plugin's name in the log]", func() {
		p.Quantize(dtype.Float32, dtype.Int8, &quant.Meta{}, make([]byte, 4), make([]byte, 16)) // and an operation that is none
		p.Dequantize(dtype.Float32, dtype.Int8, &quant.Meta{}, 77, make([]byte, 16), make([]byte, 4))
	})
	require.Equal(t, 1, p.Plugin().Starts())
}
