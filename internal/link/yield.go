package link

import (
	"slices"
	"sync"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// Connections show what they give over yieldTime, or over yieldTrips round trips with
// their queues. Shorter times show bursts: while a queue becomes shorter, what stood in it
// arrives, or is acknowledged, within less time than it took.
const (
	yieldTime  = 250 * time.Millisecond
	yieldTrips = 4
)

// A way shows nothing of what it carries in a window in which only words went over it: fewer bytes a second
// than leastWay. Nor does one that carried less, over all windows, than unusedWay of what the most used way of the
// same member did.
const (
	leastWay  = 8 << 10
	unusedWay = 1.0 / 128
	// mostWays bounds to how many peers is remembered what was sent: some have gone.
	mostWays = 256
)

// yield is the most that connections to distant peers gave over yieldTime, since it was
// taken last. The survey fills it in.
type yield struct {
	mu    sync.Mutex
	best  wire.C2MRates // in Mbit/s
	moved uint64        // bytes sent, but for words
	by    []pairYield   // ... to each peer
	came  uint64        // bytes that have come

	// Of the survey's goroutine: since began.
	began, length time.Duration // 0: there is no window
	got           uint64
	pairs         []pairYield
}

type pairYield struct {
	to   wire.UUID
	sent uint64
}

// rest ends a window without a result: nothing was sent for some time.
func (y *yield) rest() { y.began = 0 }

// add notes what arrived at a peer since the last tick.
func (y *yield) add(to wire.UUID, bytes uint64, rtt time.Duration) {
	y.length = max(y.length, yieldTrips*rtt)
	y.pairs = tally(y.pairs, to, bytes)
}

func tally(list []pairYield, to wire.UUID, bytes uint64) []pairYield {
	for i := range list {
		if list[i].to == to {
			list[i].sent += bytes
			return list
		}
	}
	if len(list) >= mostWays || bytes == 0 {
		return list
	}
	return append(list, pairYield{to, bytes})
}

// end closes the window if it is long enough; got is what has come since it was called last.
func (y *yield) end(now time.Duration, got uint64) {
	y.got += got
	if y.began == 0 {
		y.begin(now) // what came before, and in a rest, says nothing
		return
	}
	took := now - y.began
	if took < max(y.length, yieldTime) {
		return
	}
	mbps := func(bytes uint64) float64 { return float64(bytes) * 8 / 1e6 / took.Seconds() }
	least, moved := uint64(leastWay*took.Seconds()), uint64(0)
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, p := range y.pairs {
		if p.sent < least {
			continue
		}
		moved += p.sent
		y.by, y.best.Pairs = tally(y.by, p.to, p.sent), raise(y.best.Pairs, p.to, mbps(p.sent))
	}
	y.moved, y.came = y.moved+moved, y.came+y.got
	y.best.Up, y.best.Down = max(y.best.Up, mbps(moved)), max(y.best.Down, mbps(y.got))
	y.begin(now)
}

func (y *yield) begin(now time.Duration) {
	y.began, y.got, y.length, y.pairs = now, 0, 0, y.pairs[:0]
}

func raise(list []wire.PathRate, to wire.UUID, mbps float64) []wire.PathRate {
	for i := range list {
		if list[i].To == to {
			list[i].Mbps = max(list[i].Mbps, mbps)
			return list
		}
	}
	if len(list) >= mostWays {
		return list
	}
	return append(list, wire.PathRate{To: to, Mbps: mbps})
}

// TakeYield returns the most that connections to distant peers gave over a moment since it was called last,
// without ways that were hardly used; false: less than least bytes were sent to them, and it goes on. What came
// is not known, 0, if it was less than that.
func (h *Hub) TakeYield(least uint64) (best wire.C2MRates, ok bool) {
	y := &h.survey.yield
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.moved < least {
		return best, false
	}
	best = y.best
	if y.came < least {
		best.Down = 0
	}
	used := uint64(0)
	for _, b := range y.by {
		used = max(used, uint64(unusedWay*float64(b.sent)))
	}
	best.Pairs = slices.DeleteFunc(best.Pairs, func(p wire.PathRate) bool {
		return slices.ContainsFunc(y.by, func(b pairYield) bool { return b.to == p.To && b.sent < used })
	})
	y.best, y.moved, y.by, y.came = wire.C2MRates{}, 0, nil, 0
	return best, true
}
