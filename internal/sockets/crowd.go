package sockets

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// Network returns what strangers are told apart by: an address, or a /64 of IPv6, because
// such a network is given out whole. What has no address is of the zero Prefix.
func Network(remote net.Addr) netip.Prefix {
	t, ok := remote.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	addr := t.AddrPort().Addr().Unmap()
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	at, _ := addr.WithZone("").Prefix(bits)
	return at
}

// Crowd bounds the connections of which is not known yet whose they are. If there is no
// place for one more, the oldest one of the network that has most makes room. Networks
// that have members have places of their own, so that strangers elsewhere take none of
// them. Safe for concurrent use.
type Crowd struct {
	most  int
	known func(netip.Prefix) bool

	mu      sync.Mutex
	throngs [2]throng // of strangers, and of networks that have members
}

// throng are connections that share places.
type throng struct {
	places list.List // of *Place, oldest first
	from   map[netip.Prefix]int
}

// Place is that of a connection in a Crowd.
type Place struct {
	crowd *Crowd
	in    *throng
	at    *list.Element // nil: it has left
	from  netip.Prefix
	end   func()
	out   bool // it has made room
}

// NewCrowd returns a Crowd of most places for strangers, and as many for networks that
// have members. known says which do; nil: none.
func NewCrowd(most int, known func(netip.Prefix) bool) *Crowd {
	c := &Crowd{most: most, known: known}
	for i := range c.throngs {
		c.throngs[i].from = map[netip.Prefix]int{}
	}
	return c
}

// Enter takes a place for a connection. end is called if it has to make room later, and
// by End; it must not wait.
func (c *Crowd) Enter(remote net.Addr, end func()) *Place {
	p := &Place{crowd: c, from: Network(remote), end: end}
	p.in = &c.throngs[0]
	if c.known != nil && c.known(p.from) {
		p.in = &c.throngs[1]
	}
	c.mu.Lock()
	var out *Place
	if p.in.places.Len() >= c.most {
		out = p.in.crowded()
		out.out = true
		out.leave()
	}
	p.at = p.in.places.PushBack(p)
	p.in.from[p.from]++
	c.mu.Unlock()
	if out != nil {
		out.end()
	}
	return p
}

// crowded returns the oldest place of the network that has most; of two, of the one whose
// oldest is older.
func (t *throng) crowded() (p *Place) {
	most := 0
	for e := t.places.Front(); e != nil; e = e.Next() {
		if q := e.Value.(*Place); t.from[q.from] > most {
			p, most = q, t.from[q.from]
		}
	}
	return p
}

// leave gives the place up. The lock of the crowd is held.
func (p *Place) leave() {
	if p.at == nil {
		return
	}
	p.in.places.Remove(p.at)
	p.at = nil
	if p.in.from[p.from]--; p.in.from[p.from] == 0 {
		delete(p.in.from, p.from)
	}
}

// Leave gives the place up, unless that was done. It reports whether the connection had
// to make room for another one.
func (p *Place) Leave() (madeRoom bool) {
	p.crowd.mu.Lock()
	defer p.crowd.mu.Unlock()
	p.leave()
	return p.out
}

// End ends all that have a place.
func (c *Crowd) End() {
	c.mu.Lock()
	var all []*Place
	for i := range c.throngs {
		for e := c.throngs[i].places.Front(); e != nil; e = e.Next() {
			all = append(all, e.Value.(*Place))
		}
	}
	c.mu.Unlock()
	for _, p := range all {
		p.end()
	}
}
