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

// BenchmarkProof proves the best rings of data centres, under both objectives.
// What counts is the processor time; ten minutes are there for busy machines.
func BenchmarkProof(b *testing.B) {
	e, err := findEngine()
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"dc64-s1110", "dc128-s1120", "dc256-s1130"} {
		f, err := topofile.Open(filepath.Join("../../tests/bench/topology/data/wan", name+".json.gz"))
		require.NoError(b, err)
		for _, o := range []topo.Objective{topo.Sum, topo.BottleneckThenSum} {
			b.Run(name+"/"+string(o), func(b *testing.B) {
				before := used(b)
				for range b.N {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
					s, err := lpexact{engine: e}.Solve(ctx, topo.Problem{Matrix: f.Matrix, Objective: o}, func(topo.Solution) {})
					cancel()
					require.NoError(b, err)
					require.True(b, s.Optimal, "not proved")
				}
				b.ReportMetric((used(b)-before).Seconds()/float64(b.N), "cpu-s/op")
			})
		}
	}
}
