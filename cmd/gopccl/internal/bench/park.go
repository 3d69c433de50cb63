package bench

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/platform"
)

// ParkResult is one line of `gopccl bench park`: microseconds from the call
// that wakes to the moment when the sleeper runs.
type ParkResult struct {
	Way    string  `json:"way"`   // how the sleeper sleeps
	Waker  string  `json:"waker"` // what the waker does next: "computes" or "yields"
	Rounds int     `json:"rounds"`
	P50    float64 `json:"p50_us"`
	P99    float64 `json:"p99_us"`
}

// sleepWay is one way to sleep: wait returns when n has reached want.
type sleepWay struct {
	name   string
	pinned bool // the sleeper owns its thread
	make   func(n *atomic.Int64) (wait func(want int64), wake func())
}

func parkerWay(newParker func() *platform.Parker) func(n *atomic.Int64) (func(int64), func()) {
	return func(n *atomic.Int64) (func(int64), func()) {
		p := newParker()
		return func(want int64) {
			for {
				p.Begin()
				if n.Load() >= want {
					p.Cancel()
					return
				}
				p.Park(time.Time{})
			}
		}, p.Wake
	}
}

var sleepWays = []sleepWay{
	{"native parker, own thread", true, parkerWay(platform.NewParker)},
	{"native parker, goroutine", false, parkerWay(platform.NewParker)},
	{"portable parker, own thread", true, parkerWay(platform.NewPortableParker)},
	{"portable parker, goroutine", false, parkerWay(platform.NewPortableParker)},
	{"channel, goroutine", false, func(n *atomic.Int64) (func(int64), func()) {
		c := make(chan struct{}, 1)
		return func(int64) { <-c }, func() { c <- struct{}{} }
	}},
	{"sync.Cond, goroutine", false, func(n *atomic.Int64) (func(int64), func()) {
		var mu sync.Mutex
		c := sync.NewCond(&mu)
		return func(want int64) {
				mu.Lock()
				for n.Load() < want {
					c.Wait()
				}
				mu.Unlock()
			}, func() {
				mu.Lock()
				c.Signal()
				mu.Unlock()
			}
	}},
}

// Park measures how long a sleeper takes to run after it was woken, all ways in
// turns. Before every wake-up the waker keeps its processor busy for gap, so
// that the sleeper sleeps.
func Park(rounds int, gap time.Duration, emit func(ParkResult) error) error {
	const turns = 8
	type key struct {
		way   int
		yield bool
	}
	took := map[key][]float64{}
	for turn := range turns {
		for i := range sleepWays {
			for _, yield := range []bool{false, true} {
				share := rounds*(turn+1)/turns - rounds*turn/turns
				k := key{i, yield}
				took[k] = append(took[k], parkTurn(&sleepWays[i], share, gap, yield)...)
			}
		}
	}
	for i := range sleepWays {
		for _, yield := range []bool{false, true} {
			us := took[key{i, yield}]
			slices.Sort(us)
			waker := "computes"
			if yield {
				waker = "yields"
			}
			if err := emit(ParkResult{sleepWays[i].name, waker, rounds, quantile(us, 0.5), quantile(us, 0.99)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// quantile of an ascending list.
func quantile(sorted []float64, q float64) float64 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// parkTurn returns the microseconds of rounds wake-ups.
func parkTurn(way *sleepWay, rounds int, gap time.Duration, yield bool) []float64 {
	const warm = 20
	rounds += warm
	var n, arrived atomic.Int64
	wait, wake := way.make(&n)
	began := time.Now()
	ended := make([]time.Duration, rounds)
	started := make([]time.Duration, rounds)
	var wg sync.WaitGroup
	wg.Go(func() {
		if way.pinned {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		for k := range rounds {
			wait(int64(k) + 1)
			ended[k] = time.Since(began)
			arrived.Add(1)
		}
	})
	for k := range rounds {
		for until := time.Since(began) + gap; time.Since(began) < until; {
			if yield {
				runtime.Gosched()
			}
		}
		started[k] = time.Since(began)
		n.Add(1)
		wake()
		for arrived.Load() <= int64(k) {
			if yield {
				runtime.Gosched()
			}
		}
	}
	wg.Wait()
	us := make([]float64, 0, rounds-warm)
	for k := warm; k < rounds; k++ {
		us = append(us, float64(ended[k]-started[k])/1e3)
	}
	return us
}
