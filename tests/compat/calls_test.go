package compat

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// What a call costs a trainer of a tiny model, a hundred thousand parameters as
// for MNIST: two peers over loopback, gopccl and then PCCL 1.0.0, each with a
// master of its kind. A call's time is that of the slower peer. Both kinds are
// driven through the same pipes, which carry the 400 kB of a state or a buffer
// there and back, too.
func BenchmarkCalls(b *testing.B) {
	const parameters = 100_000
	for _, k := range []kind{ours, original} {
		b.Run(map[kind]string{ours: "gopccl", original: "pccl"}[k], func(b *testing.B) {
			w := newWorld(b, k)
			for range 2 {
				w.join(w.newPeer(k, 0, 1))
			}
			tensors := []pccl.Tensor{{Key: "parameters", DType: f32, Data: w.random(f32, parameters)}}
			gradient := w.random(f32, parameters)
			calls := []struct {
				name string
				call func(step uint64, p *peer) error
			}{
				{"pending", func(_ uint64, p *peer) error { _, err := p.Pending(); return err }},
				{"update", func(_ uint64, p *peer) error { return p.Update() }},
				{"sync", func(step uint64, p *peer) error {
					_, err := p.Sync(step, wire.EnforcePopular, tensors)
					return err
				}},
				{"reduce", func(_ uint64, p *peer) error {
					_, err := p.Reduce(pccl.Reduce{Tag: 1, Op: avg, DType: f32, Data: gradient})
					return err
				}},
			}
			took := make([][]time.Duration, len(calls))
			step := uint64(0)
			for b.Loop() {
				for i, c := range calls {
					began := time.Now()
					require.NoError(b, all(w.peers, func(_ int, p *peer) error { return c.call(step, p) }), c.name)
					took[i] = append(took[i], time.Since(began))
				}
				step++
			}
			for i, c := range calls {
				slices.Sort(took[i])
				b.ReportMetric(float64(took[i][len(took[i])/2].Microseconds()), c.name+"-p50-us")
				b.ReportMetric(float64(took[i][len(took[i])*99/100].Microseconds()), c.name+"-p99-us")
			}
		})
	}
}
