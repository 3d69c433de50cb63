package pace

import "time"

// judge ends an interval: the uplink, or pairs alone, get another rate.
func (u *Uplink) judge(now time.Duration) {
	span := (now - u.measured).Seconds()
	m := u.readWhole(span)
	broken := m.rate < u.law.broken*u.whole.rate && !m.partly
	for i := range u.pairs {
		if p := &u.pairs[i]; p.ticks > 0 {
			u.judgePair(p, m, u.readPair(p, span))
		}
	}
	switch {
	case u.whole.rate > 0:
		u.whole.step(&u.law, m)
	case m.congested && !m.partly && m.rate > 0 && m.rate < u.law.grows*u.opened:
		best := max(m.rate, u.opened)
		u.whole.begin(u.law.first*best, best)
	default:
		u.opened = m.rate
	}
	for i := range u.conns {
		c := &u.conns[i]
		c.used = -1
		if !m.limited {
			c.used = float64(since(c.last.Arrived, c.first.Arrived)) / span
		}
	}
	u.changed = true
	stands := m.congested && !m.partly && m.over > u.law.drain && u.whole.rate > 0 && u.whole.bear == 0
	if stands && now > u.calm && (broken || u.rebased == 0 || now-u.rebased > u.law.again) {
		u.calm = now + u.law.pause
		u.phase, u.drainFrom, u.drainHalf = draining, now+u.farthest(), 0
		u.drainRate = u.law.drainPart * min(u.whole.rate, m.rate)
		return
	}
	u.begin(now)
}

// judgePair caps a pair alone if it has a queue and the uplink has none.
func (u *Uplink) judgePair(p *pair, whole, m reading) {
	switch {
	case p.cap.rate > 0:
		if m.congested && whole.congested {
			return // the uplink answers for it
		}
		p.cap.step(&u.law, m)
		if u.whole.rate > 0 && p.cap.rate >= u.whole.rate {
			p.cap = governor{}
		}
	case m.congested && !whole.congested && !m.limited && m.rate > 0:
		p.cap.begin(u.law.first*m.rate, m.rate)
	}
}

// drain lets a queue out. The first round trip shows how long it was when that
// began, and twice that time is enough. A queue that does not go although what is
// sent arrives, and no more, is not ours, or the way has become longer: what is
// seen then is the empty way from now on.
func (u *Uplink) drain(now time.Duration) {
	queue, over := u.shortest()
	switch {
	case over <= 1:
	case now < u.drainFrom:
		return
	case u.drainHalf == 0:
		u.drainQueue = queue
		u.end = now + min(2*queue, longestDrain)
		u.drainHalf = now + (u.end-now)/2
		return
	case u.measured < u.drainHalf && now >= u.drainHalf:
		u.measured = now
		u.reset()
		return
	case now < u.end:
		return
	default:
		switch rate := u.arrived((now - u.measured).Seconds()); {
		case rate < (1-drainSlack)*u.drainRate:
			u.whole.fall(&u.law, rate)
		case 2*queue > u.drainQueue:
			u.rebased = now
			if rate < (1+drainSlack)*u.drainRate && 10*queue > 9*u.drainQueue {
				u.rebase()
			}
		}
	}
	u.changed = true
	u.begin(now)
}

// rebase takes the least round trips of the interval for those of empty ways.
func (u *Uplink) rebase() {
	for i := range u.pairs {
		if p := &u.pairs[i]; p.queue >= 0 && p.least > 0 {
			p.base, p.rebased = p.least, true
		}
	}
}

// shortest returns the shortest queue of the pairs in use, and what it is in limits.
func (u *Uplink) shortest() (queue time.Duration, over float64) {
	queue = -1
	for i := range u.pairs {
		if p := &u.pairs[i]; p.queue >= 0 && (queue < 0 || p.queue < queue) {
			queue, over = p.queue, float64(p.queue)/float64(u.law.limit(p.base))
		}
	}
	return max(queue, 0), over
}

// readPair returns what the interval has shown of a pair.
func (u *Uplink) readPair(p *pair, span float64) reading {
	var arrived, sent, resent uint64
	waited := 0
	for i := range u.conns {
		if c := &u.conns[i]; c.pair == p.id {
			arrived += since(c.last.Arrived, c.first.Arrived)
			sent += since(c.last.Sent, c.first.Sent)
			resent += since(c.last.Resent, c.first.Resent)
			waited = max(waited, c.waited)
		}
	}
	queue := max(p.queue, 0)
	m := reading{rate: float64(arrived) / span, queue: queue, limited: 2*waited <= p.ticks, partly: 10*waited < 9*p.ticks}
	m.over = float64(queue) / float64(u.law.limit(p.base))
	lossy := p.lossy || float64(resent) > u.law.losses*float64(sent)
	m.lossy = lossy && (p.queued > 0 || p.rebased || u.law.lossQueue == 0)
	m.congested = float64(p.queued) > u.law.standing*float64(p.ticks) || m.lossy
	return m
}

// readWhole returns what it has shown of the uplink: rates are added, and there is
// a queue where most pairs have one.
func (u *Uplink) readWhole(span float64) (m reading) {
	pairs, congested := 0, 0
	for i := range u.pairs {
		p := &u.pairs[i]
		if p.ticks == 0 {
			continue
		}
		r := u.readPair(p, span)
		pairs++
		m.rate += r.rate
		if pairs == 1 || r.over < m.over {
			m.queue, m.over = r.queue, r.over
		}
		if r.congested {
			congested++
		}
		m.lossy = m.lossy || r.lossy
	}
	m.congested = 2*congested > pairs
	m.limited = 2*u.full <= u.ticks
	m.partly = 10*u.full < 9*u.ticks
	return m
}

// arrived returns what has arrived at all peers, per second.
func (u *Uplink) arrived(span float64) (rate float64) {
	for i := range u.conns {
		c := &u.conns[i]
		rate += float64(since(c.last.Arrived, c.first.Arrived)) / span
	}
	return rate
}

// since is what a counter has moved; one that went back has not.
func since(now, before uint64) uint64 { return now - min(now, before) }
