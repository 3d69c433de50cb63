//go:build unix

package main

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/topo/topofile"
)

// used is the processor time of this process and of the engines that it ran.
func used(b *testing.B) time.Duration {
	sum := time.Duration(0)
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		require.NoError(b, syscall.Getrusage(who, &u))
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// BenchmarkWideArea proves the best rings of the wide-area matrices of up to
// 256 peers, under both objectives, and reports the processor time of each;
// the ten minutes are for busy machines.
func BenchmarkWideArea(b *testing.B) {
	l := lpexact{testEngine(b)}
	files, err := filepath.Glob("../../tests/bench/topology/data/wan/*.gz")
	require.NoError(b, err)
	for _, file := range files {
		f, err := topofile.Open(file)
		require.NoError(b, err)
		if f.Matrix.N > 256 {
			continue
		}
		for _, o := range []topo.Objective{topo.Sum, topo.BottleneckThenSum} {
			b.Run(f.Name+"/"+string(o), func(b *testing.B) {
				before, proved := used(b), 0.0
				for b.Loop() {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
					got, err := l.Solve(ctx, topo.Problem{Matrix: f.Matrix, Objective: o}, func(topo.Solution) {})
					cancel()
					require.NoError(b, err)
					if got.Optimal {
						proved = 1
					}
				}
				b.ReportMetric((used(b)-before).Seconds()/float64(b.N), "cpu-s/op")
				b.ReportMetric(proved, "proved")
			})
		}
	}
}
