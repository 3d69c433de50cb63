package guard

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/gopccl/gopccl/internal/sockets"
)

const (
	complainEvery = time.Minute
	// maxComplaints bounds the addresses and kinds that are told apart; all further ones
	// share one line.
	maxComplaints = 1024
)

// Complaints bounds the log lines about strangers to one for each address, kind and
// minute. The addresses of a /64 of IPv6 are one, because a network is given out whole. The
// zero value is ready. Safe for concurrent use.
type Complaints struct {
	mu   sync.Mutex
	seen map[subject]complaint
}

// subject is what a line is about.
type subject struct {
	from netip.Prefix
	kind string
}

// complaint is when an address was in the log last, and how often it would have been
// since.
type complaint struct {
	said time.Time
	more int
}

// Due reports whether a line of a kind about remote is due at now, and how many were
// left out. kind is one of a few, and never what a stranger has said.
func (c *Complaints) Due(remote net.Addr, kind string, now time.Time) (due bool, more int) {
	at := subject{sockets.Network(remote), kind}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[subject]complaint{}
	}
	if _, known := c.seen[at]; !known && len(c.seen) >= maxComplaints {
		for a, x := range c.seen {
			if now.Sub(x.said) >= complainEvery {
				delete(c.seen, a)
			}
		}
		if len(c.seen) >= maxComplaints {
			at = subject{}
		}
	}
	x, known := c.seen[at]
	if known && now.Sub(x.said) < complainEvery {
		x.more++
		c.seen[at] = x
		return false, 0
	}
	c.seen[at] = complaint{said: now}
	return true, x.more
}
