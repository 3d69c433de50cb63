// Package platformtest is what every implementation of package platform's
// primitives has to pass; it runs on each system.
package platformtest

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/platform"
)

// past is a deadline that is over.
var past = time.Unix(1, 0)

// patience is far more than anything here takes.
const patience = 30 * time.Second

// Parkers proves that a parker loses no wake-up, invents none, keeps its
// deadline and leaves the kernel alone while nobody sleeps. rounds is the length
// of the stress tests.
func Parkers(t *testing.T, newParker func() *platform.Parker, rounds int) {
	t.Run("every order", func(t *testing.T) { everyOrder(t, newParker) })
	t.Run("random orders", func(t *testing.T) { randomOrders(t, newParker) })
	t.Run("deadline", func(t *testing.T) { deadline(t, newParker) })
	t.Run("sleeper is woken", func(t *testing.T) { sleeperIsWoken(t, newParker) })
	t.Run("no kernel entry", func(t *testing.T) { noKernelEntry(t, newParker) })
	t.Run("ping-pong", func(t *testing.T) { pingPong(t, newParker, rounds) })
	t.Run("many wakers", func(t *testing.T) { manyWakers(t, newParker, rounds) })
	t.Run("deadlines and wake-ups", func(t *testing.T) { deadlineRace(t, newParker, rounds) })
}

// oracle is what a parker remembers, said plainly.
type oracle struct{ begun, woken bool }

func (o *oracle) apply(verb string) (woke bool) {
	switch verb {
	case "begin":
		o.begun, o.woken = true, false
	case "cancel":
		o.begun, o.woken = false, false
	case "wake":
		o.woken = o.begun
	case "park": // with a deadline that is over
		woke = o.woken
		o.begun, o.woken = false, false
	}
	return woke
}

func apply(p *platform.Parker, verb string) (woke bool) {
	switch verb {
	case "begin":
		p.Begin()
	case "cancel":
		p.Cancel()
	case "wake":
		p.Wake()
	case "park":
		woke = p.Park(past)
	}
	return woke
}

var verbs = []string{"begin", "cancel", "wake", "park"}

// everyOrder tries all sequences of six calls in which nobody parks without
// having begun.
func everyOrder(t *testing.T, newParker func() *platform.Parker) {
	const length = 6
	var sequence [length]string
	var try func(depth int, o oracle)
	try = func(depth int, o oracle) {
		if depth == length {
			p, o := newParker(), oracle{}
			for i, verb := range sequence {
				require.Equal(t, o.apply(verb), apply(p, verb), "%v, call %d", sequence, i)
			}
			waits, wakes := p.Entries()
			require.Zero(t, waits+wakes, "%v", sequence)
			return
		}
		for _, verb := range verbs {
			if verb == "park" && !o.begun {
				continue
			}
			next := o
			next.apply(verb)
			sequence[depth] = verb
			try(depth+1, next)
		}
	}
	try(0, oracle{})
}

func randomOrders(t *testing.T, newParker func() *platform.Parker) {
	rapid.Check(t, func(t *rapid.T) {
		p, o := newParker(), oracle{}
		for range rapid.IntRange(1, 200).Draw(t, "length") {
			verb := rapid.SampledFrom(verbs).Draw(t, "verb")
			if verb == "park" && !o.begun {
				continue
			}
			if want, got := o.apply(verb), apply(p, verb); want != got {
				t.Fatalf("%s: woken is %v, want %v", verb, got, want)
			}
		}
	})
}

// deadline: without a wake-up a park ends at its deadline, not before.
func deadline(t *testing.T, newParker func() *platform.Parker) {
	p := newParker()
	for _, d := range []time.Duration{time.Nanosecond, 300 * time.Microsecond, 3 * time.Millisecond} {
		p.Begin()
		until := time.Now().Add(d)
		require.False(t, p.Park(until))
		require.False(t, time.Now().Before(until))
		require.True(t, func() bool { p.Begin(); p.Wake(); return p.Park(past) }(), "it works as before")
	}
}

// asleep waits until p has entered the kernel (or its channel) more than n times.
func asleep(t *testing.T, p *platform.Parker, n uint64) {
	end := time.Now().Add(patience)
	for {
		if waits, _ := p.Entries(); waits > n {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the parker does not go to sleep")
		}
		runtime.Gosched()
	}
}

// finish waits for done.
func finish(t *testing.T, done <-chan struct{}, what string, p ...*platform.Parker) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		text := ""
		for _, q := range p {
			waits, wakes := q.Entries()
			text += fmt.Sprintf(" (slept %d, woken %d times)", waits, wakes)
		}
		t.Fatalf("%s: a wake-up was lost%s", what, text)
	}
}

// sleeperIsWoken: one that really sleeps, with and without a deadline.
func sleeperIsWoken(t *testing.T, newParker func() *platform.Parker) {
	for _, until := range []time.Time{{}, time.Now().Add(2 * patience)} {
		p, done := newParker(), make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			p.Begin()
			if !p.Park(until) {
				t.Error("the deadline is not yet over")
			}
		}()
		asleep(t, p, 0)
		p.Wake()
		finish(t, done, "a sleeper", p)
		_, wakes := p.Entries()
		require.LessOrEqual(t, wakes, uint64(1))
	}
}

// noKernelEntry: a wake-up that comes first, or to nobody, costs no call.
func noKernelEntry(t *testing.T, newParker func() *platform.Parker) {
	p := newParker()
	for range 10_000 {
		p.Wake()
		p.Begin()
		p.Wake()
		p.Wake()
		require.True(t, p.Park(time.Now().Add(patience)))
		p.Begin()
		p.Cancel()
		p.Wake()
	}
	waits, wakes := p.Entries()
	require.Zero(t, waits, "calls to sleep")
	require.Zero(t, wakes, "calls to wake")
}

// await parks until *n is at least want.
func await(p *platform.Parker, n *atomic.Int64, want int64) {
	for {
		p.Begin()
		if n.Load() >= want {
			p.Cancel()
			return
		}
		p.Park(time.Time{})
	}
}

// spin loses a little time, another amount in every round, so that all orders
// of begin, wake and park come about.
func spin(round int) {
	for k := (round * 7) % 97; k > 0; k-- {
		if k%32 == 31 {
			runtime.Gosched()
		}
	}
}

// pingPong: two threads wake each other in turns. One lost wake-up and both sleep.
func pingPong(t *testing.T, newParker func() *platform.Parker, rounds int) {
	a, b := newParker(), newParker()
	var turn atomic.Int64 // even: a's
	var wg sync.WaitGroup
	play := func(own, other *platform.Parker, first int64) {
		defer wg.Done()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for k := range rounds {
			await(own, &turn, first+2*int64(k))
			spin(k)
			turn.Add(1)
			other.Wake()
		}
	}
	wg.Add(2)
	go play(a, b, 0)
	go play(b, a, 1)
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	finish(t, done, "ping-pong", a, b)
	require.EqualValues(t, 2*rounds, turn.Load())
}

// manyWakers: four threads make work for one, which takes every bit of it.
func manyWakers(t *testing.T, newParker func() *platform.Parker, rounds int) {
	const wakers = 4
	p := newParker()
	var made, taken atomic.Int64
	total := int64(wakers * rounds)
	for w := range wakers {
		go func() {
			for k := range rounds {
				spin(k + 13*w)
				made.Add(1)
				p.Wake()
			}
		}()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for taken.Load() < total {
			await(p, &made, 1)
			taken.Add(made.Swap(0))
		}
	}()
	finish(t, done, "many wakers", p)
	require.Equal(t, total, taken.Load())
}

// deadlineRace: parks end by a deadline and by a wake-up at about the same
// time. The work is seen however it ended, and what is left of the one never
// ends the next.
func deadlineRace(t *testing.T, newParker func() *platform.Parker, rounds int) {
	p := newParker()
	var made atomic.Int64
	next := make(chan struct{})
	done := make(chan struct{})
	go func() {
		for k := range rounds {
			<-next
			spin(3 * k)
			made.Add(1)
			p.Wake()
		}
	}()
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for k := range rounds {
			next <- struct{}{}
			for {
				p.Begin()
				if made.Load() > int64(k) {
					p.Cancel()
					break
				}
				p.Park(time.Now().Add(time.Duration(k%50) * time.Microsecond))
			}
			p.Begin()
			if k%64 == 0 && p.Park(past) && made.Load() == int64(k)+1 {
				// The wake-up of this round may still come, once; it found Begin's
				// mark. Nothing else may.
				p.Begin()
				if p.Park(past) {
					t.Errorf("round %d: two wake-ups for one", k)
				}
			} else {
				p.Cancel()
			}
		}
	}()
	finish(t, done, "deadlines and wake-ups", p)
}
