package atsp

import "math"

// kickLength is the longest segment that a kick moves.
const kickLength = 30

// leastNodes is the smallest tour that can be kicked.
const leastNodes = 5

// kick exchanges three short neighbouring segments A B C to C B A (a double
// bridge) at a random place and queues their ends.
func (l *Local) kick() {
	n := l.n
	longest := min(kickLength, (n-1)/3)
	p := l.rnd.intn(n)
	var tails [4]int32
	for k := range tails {
		tails[k] = l.at[p]
		l.push(tails[k])
		l.push(l.next(tails[k]))
		if p += 1 + l.rnd.intn(longest); p >= n {
			p -= n
		}
	}
	l.exchange(tails[:], &bridge)
}

// exponential returns a random number with mean 1.
func (l *Local) exponential() float64 { return -math.Log(1 - l.rnd.unit()) }

// Iterate kicks and repairs the tour for a number of rounds or until the clock
// stops it. A longer tour than the one before is accepted if the excess, in
// reduced weights, is below an exponential random number with mean heat(r),
// where r is the round. It returns the best tour and its length in reduced
// weights; the tour itself is left at the last one accepted.
func (l *Local) Iterate(rounds int, heat func(r int) float64, over Clock) ([]int32, int64) {
	l.Descend(over)
	l.forget()
	best, least := l.Order(), l.length
	if l.n < leastNodes {
		return best, least
	}
	for r := 0; r < rounds; r++ {
		if r&7 == 0 && over() {
			break
		}
		before := l.length
		l.kick()
		l.Descend(over)
		switch {
		case l.length < least:
			least = l.length
			copy(best, l.at)
			if l.better != nil {
				l.better(best)
			}
		case l.length > before && float64(l.length-before) >= heat(r)*l.exponential():
			l.clear()
			l.undo()
			continue
		}
		l.forget()
	}
	l.clear()
	return best, least
}
