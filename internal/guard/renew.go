package guard

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/tlsconn"
)

// retryShown is how soon a certificate is shown again to an endpoint that did not answer.
const retryShown = 10 * time.Second

// Connections show a newer certificate one after another, each in a place of its own, drawn
// when it was made: a handshake stops what is under way for a moment.
const (
	shownEvery = 50 * time.Millisecond // so often, when this end has another credential
	mostSpread = time.Minute
)

// lasts returns the first time at which a certificate of a chain is no longer valid.
func lasts(cs tls.ConnectionState) (until time.Time) {
	for i, cert := range cs.PeerCertificates {
		if i == 0 || cert.NotAfter.Before(until) {
			until = cert.NotAfter
		}
	}
	return until
}

// renewable lets a connection have new keys, and its ends show the certificates that they
// have by then, while it is used. Those of other purposes are short, or are dialled again.
// One for shared state only has new keys when they are worn: before that, the end that has
// dialled may not be reading yet.
func (g *Guard) renewable(c *tlsconn.Conn, want secure.Want, dialled bool) {
	if want.Purpose != secure.Control && want.Purpose != secure.Data && want.Purpose != secure.State {
		return
	}
	var shown *secure.Credential
	c.Renewable(dialled, tlsconn.Renewal{
		After: g.renewAfter,
		Config: func() *tls.Config {
			if !dialled {
				return g.keeper.Server(want.Purpose)
			}
			t, w := g.keeper.Trust(), want
			w.Name, w.Clear, shown = g.Identity(c).Name, false, t.Credential()
			return t.Client(w)
		},
		Judge: func(cs tls.ConnectionState) error { return g.again(c, cs, shown) },
	})
}

// again judges the other end of a connection that has got new keys: it has to be the same
// endpoint. Meanwhile a list may come, which finds the new certificate in the connection.
func (g *Guard) again(c *tlsconn.Conn, cs tls.ConnectionState, shown *secure.Credential) error {
	since := g.now()
	g.mu.Lock()
	o, known := g.open[c]
	g.mu.Unlock()
	if !known {
		return net.ErrClosed
	}
	w := o.want
	w.Name = o.id.Name
	id, err := g.keeper.Trust().Verify(cs, w)
	if err == nil && id.Role != o.id.Role {
		err = &secure.Refusal{Reason: secure.WrongRole, Who: id.String(), Err: fmt.Errorf("it was %v", o.id)}
	}
	if err != nil {
		return err
	}
	g.note(c, func(o *opened) { o.since, o.id, o.until, o.shown, o.tried = since, id, lasts(cs), shown, time.Time{} })
	return nil
}

// seen has connections in plaintext last as long as the newest certificate of their other
// end, which they cannot show themselves. g.mu is held.
func (g *Guard) seen(newest opened) {
	if len(g.plain) == 0 {
		return
	}
	for c, o := range g.open {
		if c.InClear() && o.id.Role == newest.id.Role && o.id.Name == newest.id.Name && o.until.Before(newest.until) {
			o.until = newest.until
			g.open[c] = o
		}
	}
}

// age returns the connections whose certificates have expired at one end or the other, nil
// if there are none. Before that it has those that this end has dialled show newer ones.
func (g *Guard) age() *News {
	now, mine := g.now(), g.Credential()
	leaf := mine.Leaf()
	news := &News{}
	g.mu.Lock()
	open := maps.Clone(g.open)
	if g.turned.to != mine {
		g.turned.to, g.turned.at = mine, now
	}
	spread := min(mostSpread, shownEvery*time.Duration(max(0, len(open)-1)))
	since := now.Sub(g.turned.at)
	g.mu.Unlock()
	for c, o := range open {
		switch {
		case o.id.Name == "": // it is being judged
		case now.After(leaf.NotAfter):
			news.Revoked = append(news.Revoked, Revoked{c, &secure.Refusal{
				Reason: secure.Expired, Who: mine.String(),
				Err: fmt.Errorf("it is that of this end, valid until %s, and the clock of this machine says %s", stamp(leaf.NotAfter), stamp(now)),
			}})
		case now.After(o.until):
			_, err := g.keeper.Trust().Verify(c.ConnectionState(), o.want)
			if errors.Is(err, secure.Expired) {
				news.Revoked = append(news.Revoked, Revoked{c, err})
			} else { // of its chain something expired that does not count
				g.note(c, func(o *opened) { o.until = now.Add(time.Minute) })
			}
		case o.want.Server && o.want.Purpose != secure.State && o.stale(mine, now, since, spread) && c.Renew() == nil:
			g.note(c, func(o *opened) { o.tried = now })
		}
	}
	if len(news.Revoked) == 0 {
		return nil
	}
	return news
}

// note changes what is known of a connection, if it is still open.
func (g *Guard) note(c *tlsconn.Conn, change func(*opened)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o, known := g.open[c]; known {
		change(&o)
		g.open[c] = o
	}
}

// stale reports whether the ends of a connection are to show their certificates again: this
// one has had another one since, or the other one should, since its own expires soon. It is
// asked again when a part of what is left has gone by since it has shown one.
func (o *opened) stale(mine *secure.Credential, now time.Time, since, spread time.Duration) bool {
	if o.shown != mine {
		if o.shown != nil { // all are done when half of what the old one had left is over
			spread = min(spread, (o.shown.Leaf().NotAfter.Sub(now)+since)/2)
		}
		return since >= time.Duration(o.place*float64(spread)) && now.Sub(o.tried) >= retryShown
	}
	left, life := o.until.Sub(now), o.until.Sub(o.id.NotBefore)
	soon := life/6 - time.Duration(o.place*float64(life/24))
	return left < soon && now.Sub(o.tried) >= left/4 && now.Sub(o.since) >= left/4
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
