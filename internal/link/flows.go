package link

import (
	"math"
	"slices"
	"sync/atomic"
)

// Flows are the connections of one pool that one stream is sent on at once. A
// connection that can take more takes the next piece that is ready; nothing is
// assigned in advance. Conns is set once, before the others are called.
type Flows struct {
	Conns []*Sender
	turn  atomic.Uint32
}

// Wake lets idle connections look for work, at most n of them, the fast ones first.
func (f *Flows) Wake(n int) {
	if n == 0 {
		return
	}
	best := 0.0
	for _, s := range f.Conns {
		best = max(best, s.Speed())
	}
	turn := int(f.turn.Add(1))
	for _, fast := range [2]bool{true, false} {
		for i := range f.Conns {
			s := f.Conns[(turn+i)%len(f.Conns)]
			if n > 0 && (s.Speed() >= best/2) == fast && s.rouse() {
				n--
			}
		}
	}
}

// RouseFastest lets the connection that seems fastest now look for work, which it
// takes or leaves to the next one that does.
func (f *Flows) RouseFastest() {
	best := f.Conns[0]
	for _, s := range f.Conns {
		if s.Speed() > best.Speed() {
			best = s
		}
	}
	best.rouse()
}

// Yields reports whether s had better leave the last left bytes of the stream to
// faster connections: they would be done with all of it before s is done with one
// piece.
func (f *Flows) Yields(s *Sender, left int64, piece int) bool {
	mine := s.Speed()
	best, sum := 0.0, 0.0
	for _, o := range f.Conns {
		best = max(best, o.Speed())
		sum += o.Speed()
	}
	if mine >= best/2 {
		return false
	}
	if math.IsInf(sum, 1) {
		// The speed of others is not known, but this one is slower: it counts as a
		// tenth of them.
		sum = 10 * mine * float64(len(f.Conns))
	}
	return float64(backlog+piece)/mine > float64(left)/sum
}

// Broken reports whether one of the connections has ended.
func (f *Flows) Broken() bool { return slices.ContainsFunc(f.Conns, (*Sender).Broken) }
