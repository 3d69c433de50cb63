package ptxtest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkLanes prints how many instructions of lanes the interpreter does in
// a second: one thread's instructions, all threads together.
func BenchmarkLanes(b *testing.B) {
	const n = 1 << 16
	for _, name := range []string{"add", "mixed"} {
		b.Run(name, func(b *testing.B) {
			m := start(b, Options{}, sample)
			p := m.give(make([]float32, n))
			count := uint64(n)
			if name == "mixed" {
				count /= 4
			}
			before := m.Steps()
			for b.Loop() {
				require.NoError(b, m.launch(name, 4, 256, 0, p, p, p, count))
				require.NoError(b, m.StreamSynchronize(m.s))
			}
			b.ReportMetric(float64(32*(m.Steps()-before))/1e6/b.Elapsed().Seconds(), "Mlane/s")
		})
	}
}
