package link

import "github.com/gopccl/gopccl/internal/pace"

// compare tells the count of each peer what the other ones have shown in this tick.
func (v *survey) compare() {
	var all pace.Others
	waiting := 0
	for _, c := range v.counts { // sums: their order decides nothing
		if c.seen {
			all.Peers++
			all.Arrived += c.span.Arrived
			waiting += one(c.span.Waiting)
		}
	}
	for _, c := range v.counts {
		if s := &c.span; c.seen {
			s.Others = pace.Others{Arrived: all.Arrived - s.Arrived, Peers: all.Peers - 1}
			s.Others.Waiting = waiting-one(s.Waiting) == s.Others.Peers
		}
	}
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
