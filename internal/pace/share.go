package pace

import "math"

// share divides the rate over the connections: pairs alike, and the connections of
// a pair alike. What one does not use, or may not because of its pair's cap, is
// the others'.
func (u *Uplink) share() {
	rate := u.whole.rate
	if u.phase == draining {
		rate = u.drainRate
	}
	pairs := 0
	for i := range u.pairs {
		p := &u.pairs[i]
		p.conns = 0
		for j := range u.conns {
			if u.conns[j].pair == p.id {
				p.conns++
			}
		}
		if p.conns > 0 {
			pairs++
		}
	}
	weights := 0.0
	for i := range u.conns {
		c := &u.conns[i]
		p := u.find(c.pair)
		c.weight, c.bound = 1/float64(pairs*p.conns), math.Inf(1)
		if p.cap.rate > 0 {
			c.bound = p.cap.rate / float64(p.conns)
		}
		if c.used >= 0 && c.part > 0 && c.used < rate*c.weight/2 {
			c.bound = min(c.bound, 2*c.used)
		}
		c.fixed = false
		weights += c.weight
	}
	if rate > 0 {
		u.fill(rate, weights)
	}
	for i := range u.conns {
		c := &u.conns[i]
		switch {
		case rate > 0:
			c.part = max(c.part, min(float64(c.last.Segment)/crawl.Seconds(), rate*c.weight/weights))
		case math.IsInf(c.bound, 1):
			c.part = 0
		default:
			c.part = c.bound
		}
		if c.told == 0 && c.part == 0 || math.Abs(c.part-c.told) <= notable*c.told {
			continue
		}
		c.told = c.part
		u.rates = append(u.rates, Rate{Conn: c.id, BytesPerSecond: c.part})
	}
}

// fill gives each its part of the rate, and what those at their bound leave to the
// others. If all are at their bound, what remains is divided by weight.
func (u *Uplink) fill(rate, weights float64) {
	left, open := rate, weights
	for found := true; found && open > 0; {
		found = false
		per := left / open
		for i := range u.conns {
			c := &u.conns[i]
			if c.fixed {
				continue
			}
			if c.part = per * c.weight; c.part > c.bound {
				c.part, c.fixed, found = c.bound, true, true
				left -= c.bound
				open -= c.weight
			}
		}
		if open < 1e-9 {
			break
		}
	}
	if open >= 1e-9 {
		return
	}
	for i := range u.conns {
		if c := &u.conns[i]; u.find(c.pair).cap.rate == 0 {
			c.part += left * c.weight / weights
		}
	}
}
