package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// work books one collective and returns whether it is to be compared.
func (p *Pace) work(bytes uint64, took time.Duration) bool {
	p.Begin(bytes, true, false, 0)
	return p.End(took)
}

// Aborted collectives say nothing about the ring.
func TestAbortedWorkIsNotTimed(t *testing.T) {
	var p Pace
	p.Begin(1<<20, true, false, 0)
	p.Begin(1<<20, false, false, 0)
	require.True(t, p.End(time.Second))
	require.Equal(t, load{2 << 20, 2}, p.loads[0].load)
	p.Begin(1<<20, true, false, 0)
	p.Spoil()
	require.False(t, p.End(time.Second))
	require.Len(t, p.loads, 1)
	require.True(t, p.work(1<<20, time.Second), "what is spoilt is over with the work")
}

// Kinds of work and times of each are bounded; the oldest ones go.
func TestMemoryIsBounded(t *testing.T) {
	var p Pace
	for i := range 3 * maxLoads {
		require.True(t, p.work(uint64(i+1)<<20, time.Second))
	}
	require.Len(t, p.loads, maxLoads)
	last := uint64(3*maxLoads) << 20
	for i := range 3 * maxTimes {
		p.work(last, time.Duration(i))
	}
	kept := p.loads[maxLoads-1]
	require.Equal(t, load{last, 1}, kept.load)
	require.Len(t, kept.taken, maxTimes)
	require.Equal(t, time.Duration(3*maxTimes-maxTimes), kept.taken[0])
}

// Small work, and work that may have been over before it was commenced, is not
// timed; one member that began late is enough to time the rest.
func TestWhatIsNotTimed(t *testing.T) {
	var p Pace
	require.False(t, p.work(LeastBytes-1, time.Second))
	p.Begin(1<<20, true, true, 0)
	require.False(t, p.End(time.Second))
	p.Begin(1<<20, true, true, 0)
	p.Begin(1<<20, false, true, 0)
	require.False(t, p.End(time.Second), "all of it began ahead")
	p.Begin(1<<20, true, true, 0)
	p.Begin(1<<20, false, false, 0)
	require.True(t, p.End(time.Second))
	p.Begin(1<<20, true, false, 0)
	p.Begin(1<<20, false, true, 0)
	require.True(t, p.End(time.Second))
}

// Paces are compared by the medians of work that both know well enough.
func TestPacesAreComparedByEqualWork(t *testing.T) {
	var is, was Pace
	for i := range Enough {
		is.work(1<<20, time.Duration(10+i))
		was.work(1<<20, time.Duration(20+i))
		was.work(2<<20, time.Hour)
		if i < Enough-1 {
			a, b := is.Against(was)
			require.Zero(t, a)
			require.Zero(t, b)
		}
	}
	is.work(2<<20, time.Second) // not often enough
	a, b := is.Against(was)
	require.Equal(t, []time.Duration{11, 21}, []time.Duration{a, b})
	is.work(1<<20, time.Hour) // one that is late
	a, _ = is.Against(was)
	require.Equal(t, time.Duration(12), a)
}
