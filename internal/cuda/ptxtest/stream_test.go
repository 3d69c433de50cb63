package ptxtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// Data are there when somebody has waited, and not before; unless Eager.
func TestCopiesAreLate(t *testing.T) {
	for _, eager := range []bool{false, true} {
		m := start(t, Options{Eager: eager}, sample)
		src, dst := []byte{1, 2, 3}, make([]byte, 3)
		p, err := m.Alloc(3)
		require.NoError(t, err)
		require.NoError(t, m.CopyToDevice(p, src, m.s))
		src[0] = 9 // a mistake, which shows
		require.NoError(t, m.CopyToHost(dst, p, m.s))
		if eager {
			require.Equal(t, []byte{1, 2, 3}, dst)
			continue
		}
		require.Equal(t, []byte{0, 0, 0}, dst)
		require.NoError(t, m.StreamSynchronize(m.s))
		require.Equal(t, []byte{9, 2, 3}, dst)
	}
}

// Work of two streams that nothing orders is a race in whatever order it
// happens, unless both read, or they use different bytes.
func TestMissingEventIsARace(t *testing.T) {
	for seed := range uint64(6) {
		for _, c := range []struct {
			name          string
			first, second func(m *machine, p driver.Ptr, s driver.Stream) error
			race          bool
		}{
			{"write, read", fillByte(5), readByte(5), true},
			{"read, write", readByte(5), fillByte(5), true},
			{"write, write", fillByte(5), fillByte(5), true},
			{"read, read", readByte(5), readByte(5), false},
			{"beside", fillByte(5), fillByte(6), false},
			{"kernel, read behind", addTo(0), readByte(4 * 100), false},
			{"kernel, read", addTo(0), readByte(4*100 - 1), true},
			{"fill, kernel", fillByte(63), addTo(4), true},
			{"kernel, kernel", addTo(0), addTo(4 * 99), true},
			{"kernels", addTo(0), addTo(4 * 100), false},
		} {
			for _, how := range []string{"nothing", "event", "wait", "poll"} {
				m := start(t, Options{Seed: seed, Eager: seed%5 == 0}, sample)
				other, err := m.StreamCreate()
				require.NoError(t, err)
				e, err := m.EventCreate(false)
				require.NoError(t, err)
				p := m.give(make([]byte, 1000))
				require.NoError(t, m.StreamSynchronize(m.s))
				require.NoError(t, c.first(m, p, m.s))
				require.NoError(t, m.EventRecord(e, m.s))
				switch how {
				case "event":
					require.NoError(t, m.StreamWait(other, e))
				case "wait":
					require.NoError(t, m.EventSynchronize(e))
				case "poll":
					for done := false; !done; {
						done, err = m.EventDone(e)
						require.NoError(t, err)
					}
				}
				err = c.second(m, p, other)
				if err == nil {
					err = m.StreamSynchronize(other)
				}
				if err == nil {
					err = m.StreamSynchronize(m.s)
				}
				if how != "nothing" || !c.race {
					require.NoError(t, err, "%s, %s", c.name, how)
					continue
				}
				require.ErrorIs(t, err, result(driver.LaunchFailed), "%s", c.name)
				require.ErrorContains(t, err, "no event orders their streams")
			}
		}
	}
}

func fillByte(i driver.Ptr) func(*machine, driver.Ptr, driver.Stream) error {
	return func(m *machine, p driver.Ptr, s driver.Stream) error { return m.Fill(p+i, 1, 1, s) }
}

func readByte(i driver.Ptr) func(*machine, driver.Ptr, driver.Stream) error {
	return func(m *machine, p driver.Ptr, s driver.Stream) error { return m.CopyToHost(make([]byte, 1), p+i, s) }
}

// addTo doubles 100 numbers.
func addTo(i driver.Ptr) func(*machine, driver.Ptr, driver.Stream) error {
	return func(m *machine, p driver.Ptr, s driver.Stream) error {
		f, err := m.Function(m.m, "add")
		require.NoError(m.t, err)
		one := driver.Dim{X: 1, Y: 1, Z: 1}
		return m.Launch(f, one, driver.Dim{X: 64, Y: 1, Z: 1}, 0, s, arguments(p+i, p+i, p+i, uint64(100)))
	}
}

// Marks of bytes come back as the ranges that they form.
func TestFootprint(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 300).Draw(rt, "size")
		var f footprint
		for range 2 { // the second time the marks of the first are gone
			want := make([]bool, size)
			for range rapid.IntRange(0, 40).Draw(rt, "marks") {
				n := 1 << rapid.IntRange(0, 4).Draw(rt, "n")
				at := rapid.IntRange(0, size-1).Draw(rt, "at") / n * n
				if at+n > size {
					continue
				}
				f.mark(size, uint64(at), uint64(n))
				for i := range n {
					want[at+i] = true
				}
			}
			got := make([]bool, size)
			last := -1
			require.Nil(rt, f.spans(func(lo, hi uint64) *fault {
				require.Greater(rt, int(lo), last, "ranges touch")
				last = int(hi)
				for i := lo; i < hi; i++ {
					got[i] = true
				}
				return nil
			}))
			require.Equal(rt, want, got)
		}
	})
}

func TestEvents(t *testing.T) {
	for seed := range uint64(20) {
		m := start(t, Options{Seed: seed}, sample)
		other, err := m.StreamCreate()
		require.NoError(t, err)
		e, err := m.EventCreate(true)
		require.NoError(t, err)
		f, err := m.EventCreate(true)
		require.NoError(t, err)
		done, err := m.EventDone(e)
		require.NoError(t, err)
		require.True(t, done, "nothing was recorded")
		require.NoError(t, m.StreamWait(other, e))
		_, err = m.Elapsed(e, f)
		require.ErrorIs(t, err, result(driver.InvalidHandle))
		p := m.give([]byte{0, 0})
		require.NoError(t, m.EventRecord(e, m.s))
		require.NoError(t, m.Fill(p, 5, 1, m.s))
		require.NoError(t, m.EventRecord(f, m.s))
		require.NoError(t, m.StreamWait(other, f))
		// What is recorded later is not what other waits for.
		require.NoError(t, m.Fill(p+1, 6, 1, m.s))
		require.NoError(t, m.EventRecord(f, m.s))
		dst := make([]byte, 1)
		require.NoError(t, m.CopyToHost(dst, p, other))
		_, err = m.Elapsed(e, f)
		require.ErrorIs(t, err, result(driver.NotReady))
		require.NoError(t, m.StreamDestroy(other), "what is queued is done nevertheless")
		require.NoError(t, m.EventSynchronize(f))
		polls := 0
		for done := false; !done; polls++ {
			require.Less(t, polls, 100, "polling does not end")
			done, err = m.EventDone(f)
			require.NoError(t, err)
		}
		d, err := m.Elapsed(e, f)
		require.NoError(t, err)
		require.GreaterOrEqual(t, d, time.Duration(0))
		require.NoError(t, m.Free(p))
		require.Equal(t, byte(5), dst[0])
	}
}

// Polling alone brings everything to its end.
func TestPolling(t *testing.T) {
	m := start(t, Options{Seed: 4}, sample)
	p := m.give([]byte{1, 2, 3, 4})
	q, err := m.Alloc(4)
	require.NoError(t, err)
	require.NoError(t, m.CopyOnDevice(q, p, 4, m.s))
	dst := make([]byte, 4)
	require.NoError(t, m.CopyToHost(dst, q, m.s))
	e, err := m.EventCreate(false)
	require.NoError(t, err)
	require.NoError(t, m.EventRecord(e, m.s))
	polls := 0
	for done := false; !done; polls++ {
		require.Less(t, polls, 100)
		done, err = m.EventDone(e)
		require.NoError(t, err)
	}
	require.Greater(t, polls, 1)
	require.Equal(t, []byte{1, 2, 3, 4}, dst)
}

// A loss ends what waits for the lost device's work.
func TestLossEndsWaiting(t *testing.T) {
	m := start(t, Options{Devices: 2}, sample)
	e, err := m.EventCreate(false)
	require.NoError(t, err)
	p := m.give([]byte{1})
	m.Fault(1, driver.ECCUncorrectable)
	require.NoError(t, m.EventRecord(e, m.s))
	c, err := m.Retain(1)
	require.NoError(t, err)
	require.NoError(t, m.Push(c))
	s, err := m.StreamCreate()
	require.NoError(t, err)
	q, err := m.Alloc(1)
	require.NoError(t, err)
	require.NoError(t, m.StreamWait(s, e))
	require.NoError(t, m.Fill(q, 1, 1, s))
	require.NoError(t, m.StreamSynchronize(s))
	_, err = m.Pop()
	require.NoError(t, err)
	require.ErrorIs(t, m.Free(p), result(driver.ECCUncorrectable))
}

// Any program of copies that events order correctly gives what running it in
// the order of the calls gives, whatever order the machine chooses.
func TestOrderedWorkIsSequential(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := start(t, Options{Seed: rapid.Uint64().Draw(rt, "seed")}, sample)
		const cells = 4
		p := m.give(make([]byte, cells))
		require.NoError(t, m.StreamSynchronize(m.s))
		want := make([]byte, cells)
		streams := []driver.Stream{m.s}
		for range 2 {
			s, err := m.StreamCreate()
			require.NoError(t, err)
			streams = append(streams, s)
		}
		e, err := m.EventCreate(false)
		require.NoError(t, err)
		last := 0
		for range rapid.IntRange(1, 25).Draw(rt, "calls") {
			s := rapid.IntRange(0, 2).Draw(rt, "stream")
			if s != last { // what came before on the other stream comes first
				require.NoError(t, m.EventRecord(e, streams[last]))
				require.NoError(t, m.StreamWait(streams[s], e))
				last = s
			}
			i, j := rapid.IntRange(0, cells-1).Draw(rt, "i"), rapid.IntRange(0, cells-1).Draw(rt, "j")
			if rapid.Bool().Draw(rt, "fill") {
				v := rapid.Byte().Draw(rt, "v")
				require.NoError(t, m.Fill(p+driver.Ptr(i), v, 1, streams[s]))
				want[i] = v
			} else {
				require.NoError(t, m.CopyOnDevice(p+driver.Ptr(i), p+driver.Ptr(j), 1, streams[s]))
				want[i] = want[j]
			}
		}
		got := make([]byte, cells)
		require.NoError(t, m.CopyToHost(got, p, streams[last]))
		require.NoError(t, m.StreamSynchronize(streams[last]))
		require.Equal(t, want, got)
	})
}
