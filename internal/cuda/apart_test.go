package cuda

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// apart is one task with a call, on memory of 9000 bytes: where its source and target lie.
type apart struct {
	what     string
	from, to [2]int // first byte and size; none: no such buffer
	asked    []device.Range
	preserve bool
	restored bool // all of the target, after an abort
}

var aparts = []apart{
	{what: "source alone", from: [2]int{100, 5000}, asked: []device.Range{{From: 0, To: 2500}, {From: 2500, To: 5000}}},
	{what: "target alone", to: [2]int{3000, 4001}},
	{what: "target alone, preserved", to: [2]int{3000, 4001}, preserve: true, restored: true},
	{what: "separate", from: [2]int{0, 1000}, to: [2]int{3000, 4000}, asked: []device.Range{{From: 0, To: 1000}}},
	{what: "separate, preserved", from: [2]int{0, 1000}, to: [2]int{3000, 4000}, asked: []device.Range{{From: 0, To: 1000}}, preserve: true, restored: true},
	{what: "own block of the target", from: [2]int{3000, 1000}, to: [2]int{1000, 6000}, asked: []device.Range{{From: 0, To: 1000}}},
	{what: "own block of the target, preserved", from: [2]int{3000, 1000}, to: [2]int{1000, 6000}, asked: []device.Range{{From: 0, To: 1000}}, preserve: true, restored: true},
	{what: "own block of the source", from: [2]int{1000, 6000}, to: [2]int{2000, 1500}, asked: []device.Range{{From: 0, To: 1700}, {From: 1700, To: 6000}}, restored: true},
	{what: "the same", from: [2]int{0, 9000}, to: [2]int{0, 9000}, asked: []device.Range{{From: 0, To: 9000}}, restored: true},
	{what: "the same, not read", from: [2]int{0, 9000}, to: [2]int{0, 9000}},
}

// Of a task with a call, source and target have host memory of their own, whatever they
// share on the device; what is input, or to be preserved, is restored.
func TestApart(t *testing.T) {
	for _, c := range aparts {
		r := newTrainer(t, ptxtest.Options{Seed: 3}, device.Settings{})
		before := random(9000, 1)
		x := r.tensor(0, before)
		part := func(at [2]int) (b device.Buffer) {
			if at[1] > 0 {
				b = x
				b.Ptr, b.Bytes = x.Ptr+uint64(at[0]), at[1]
			}
			return b
		}
		s := r.stage(device.Task{Source: part(c.from), Target: part(c.to), Call: "gather", Preserve: c.preserve})
		require.False(t, s.Reduces(), c.what)
		w := newWatcher()
		s.Begin(c.asked, w)
		total := 0
		for _, a := range c.asked {
			total += a.To - a.From
		}
		w.until(t, total)
		from, to := s.Memory()
		require.Len(t, from, c.from[1], c.what)
		require.Len(t, to, c.to[1], c.what)
		for _, a := range c.asked {
			require.True(t, bytes.Equal(before[c.from[0]+a.From:c.from[0]+a.To], from[a.From:a.To]), c.what)
		}
		result := random(c.to[1], 2)
		copy(to, result)
		for at := 0; at < len(to); at += 1700 {
			s.Put(at, min(at+1700, len(to)))
		}
		require.NoError(t, w.end(t), c.what)
		after := bytes.Clone(before)
		copy(after[c.to[0]:], result)
		require.True(t, bytes.Equal(after, r.content(x)), c.what)
		require.NoError(t, s.Restore())
		if !c.restored {
			for _, a := range c.asked { // inputs are
				copy(after[c.from[0]+a.From:], before[c.from[0]+a.From:c.from[0]+a.To])
			}
			require.True(t, bytes.Equal(after, r.content(x)), c.what)
		} else {
			require.True(t, bytes.Equal(before, r.content(x)), c.what)
		}
		s.Release()
		st := r.p.Stats()
		require.Equal(t, st.Pinned, st.Idle, c.what)
		r.close(x)
	}
}

// Stopped anywhere, it writes nothing more, and what it wrote is put back.
func TestApartStopsAnywhere(t *testing.T) {
	for stopAt := range 8 {
		for _, preserve := range []bool{false, true} {
			r := newTrainer(t, ptxtest.Options{Seed: uint64(stopAt)}, device.Settings{})
			before := random(8000, 1)
			x := r.tensor(0, before)
			own := x
			own.Ptr, own.Bytes = x.Ptr+2000, 4000
			s := r.stage(device.Task{Source: x, Target: own, Call: "scatter", Preserve: preserve})
			w := newWatcher()
			s.Begin([]device.Range{{From: 0, To: 8000}}, w)
			if stopAt > 0 {
				w.until(t, min(stopAt*2000, 8000))
			}
			if stopAt > 4 {
				for at := range stopAt - 4 {
					s.Put(at*1000, at*1000+1000)
				}
			}
			s.Stop()
			require.NoError(t, w.end(t))
			require.NoError(t, s.Restore())
			s.Release()
			require.True(t, bytes.Equal(before, r.content(x)), "%d", stopAt)
			r.close(x)
		}
	}
}

// Errors name the call.
func TestApartErrors(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	x := r.tensor(0, make([]byte, 64))
	long := x
	long.Bytes = 1 << 40
	for _, task := range []device.Task{{Source: long, Call: "gather"}, {Target: long, Call: "gather"}, {Source: x, Target: long, Call: "gather"}} {
		_, err := r.p.Stage(task)
		require.ErrorIs(t, err, errs.InvalidArgument)
		require.ErrorContains(t, err, "gather")
		require.ErrorContains(t, err, "the allocation ends")
	}
	r.close(x)
}

// exerciseApart uses a task with a call once, which leaves x as it was.
func exerciseApart(t testing.TB, r *trainer, x device.Buffer) (list []error) {
	own := x
	own.Bytes /= 2
	s, err := r.p.Stage(device.Task{Source: x, Target: own, Call: "scatter", Preserve: true})
	if err != nil {
		return []error{err}
	}
	<-s.(*staging).ready
	w := newWatcher()
	s.Begin([]device.Range{{From: 0, To: x.Bytes}}, w)
	for {
		select {
		case k := <-w.arrived:
			if k == x.Bytes {
				_, to := s.Memory()
				clear(to)
				s.Put(0, own.Bytes)
			}
			continue
		case err = <-w.ended:
		case <-time.After(time.Minute):
			t.Fatal("hangs")
		}
		break
	}
	list = append(list, err, s.Restore())
	s.Release()
	return list
}
