package guard

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	complainEvery = time.Minute
	// maxComplaints bounds the addresses that are told apart; all further ones share
	// one line.
	maxComplaints = 1024
)

// Complaints bounds the log lines about strangers to one for each address and
// minute. The zero value is ready. Safe for concurrent use.
type Complaints struct {
	mu   sync.Mutex
	seen map[netip.Addr]complaint
}

// complaint is when an address was in the log last, and how often it would have been
// since.
type complaint struct {
	said time.Time
	more int
}

// Due reports whether a line about remote is due at now, and how many were left out.
func (c *Complaints) Due(remote net.Addr, now time.Time) (due bool, more int) {
	var addr netip.Addr // not valid: that of all others
	if t, ok := remote.(*net.TCPAddr); ok {
		addr = t.AddrPort().Addr().Unmap()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[netip.Addr]complaint{}
	}
	if _, known := c.seen[addr]; !known && len(c.seen) >= maxComplaints {
		for a, x := range c.seen {
			if now.Sub(x.said) >= complainEvery {
				delete(c.seen, a)
			}
		}
		if len(c.seen) >= maxComplaints {
			addr = netip.Addr{}
		}
	}
	x, known := c.seen[addr]
	if known && now.Sub(x.said) < complainEvery {
		x.more++
		c.seen[addr] = x
		return false, 0
	}
	c.seen[addr] = complaint{said: now}
	return true, x.more
}
