package master

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/enroll"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/platform"
)

// grace is how long a connection has to say who it is before another one may
// take its place: connections come no faster than places get free.
const grace = 500 * time.Millisecond

// perAddress bounds the connections of one address that did not register.
func perAddress(most int) int { return max(64, most/8) }

// accept takes connections until the listener is closed. A master that does not lead
// listens to some of them, and closes the others at once: their peers look for the one
// that does. pccl says that PCCL peers come there, in plaintext.
func (s *Server) accept(ctx context.Context, ln net.Listener, pccl bool) error {
	platform.AcceptLoop(ln, ctx.Done(), func(nc net.Conn) {
		if !s.leads() && (pccl || s.live.size() >= maxAudience) {
			nc.Close()
			return
		}
		remote := remoteOf(nc)
		if !s.makeRoom(ctx, remote) {
			nc.Close()
			return
		}
		s.begin(ctx, fsm.ClientID(s.door.lastID.Add(1)), nc, remote, pccl)
	}, func(err error) { s.log.Warn("no connection could be accepted", "error", err) })
	return s.unlessEnding(ctx, net.ErrClosed)
}

// makeRoom sees to it that there is a place for a connection from remote: if all
// are taken, one that is not let in has to leave. false if all are members.
func (s *Server) makeRoom(ctx context.Context, remote netip.AddrPort) bool {
	for {
		v, wait, why := s.seat(remote.Addr(), time.Now())
		switch {
		case why == "":
			return true
		case v == nil:
			s.turnedAway(remote, "connection refused: too many connections")
			return false
		case wait <= 0:
			s.turnedAway(v.remote, "connection closed: "+why)
			v.fail(why)
			if time.Since(v.began) > grace {
				continue
			}
			wait = time.Millisecond // a flood: those among it get the time to register
		}
		select {
		case <-time.After(min(wait, 10*time.Millisecond)):
		case <-ctx.Done():
			return false
		}
	}
}

// seat looks for a place for a connection from addr. why is "" if there is one,
// and otherwise says why v has to leave, after wait; nil: none can.
func (s *Server) seat(addr netip.Addr, now time.Time) (v *conn, wait time.Duration, why string) {
	s.live.mu.Lock()
	defer s.live.mu.Unlock()
	if len(s.live.conns) < min(s.opt.MaxConnections, perAddress(s.opt.MaxConnections)) {
		return nil, 0, ""
	}
	total := 0
	var seats [2]map[netip.Addr]*taken // by what they are: stranger, waiting
	var number [2]int
	for i := range seats {
		seats[i] = map[netip.Addr]*taken{}
	}
	for c := range s.live.conns {
		if c.leaving {
			continue
		}
		total++
		is := c.standing.Load()
		if is == member {
			continue
		}
		number[is]++
		at := c.remote.Addr()
		t := seats[is][at]
		if t == nil {
			t = &taken{}
			seats[is][at] = t
		}
		t.add(c)
	}
	if t := seats[stranger][addr]; t != nil && t.n >= perAddress(s.opt.MaxConnections) {
		t.oldest.leaving = true
		return t.oldest, 0, "too many connections from its address that did not register"
	}
	if total < s.opt.MaxConnections {
		return nil, 0, ""
	}
	class := waiting
	if number[stranger] > s.opt.MaxConnections/4 || number[waiting] == 0 {
		class = stranger
	}
	var most *taken
	for _, t := range seats[class] {
		if most == nil || t.n > most.n || t.n == most.n && t.oldest.id < most.oldest.id {
			most = t
		}
	}
	if most == nil {
		return nil, 0, "all places are taken"
	}
	v = most.oldest
	if wait = grace - now.Sub(v.began); wait > 0 {
		return v, wait, "its place is needed"
	}
	v.leaving = true
	return v, 0, "too many connections: its place is needed by another one"
}

// taken are the places of one address.
type taken struct {
	n      int
	oldest *conn
}

func (t *taken) add(c *conn) {
	if t.n++; t.oldest == nil || c.id < t.oldest.id {
		t.oldest = c
	}
}

// shakeTime bounds a handshake of TLS, all of it.
const shakeTime = 5 * time.Second

// greet makes the handshake of a connection in TLS. false: it is a stranger's, of
// whom the machine never hears.
func (s *Server) greet(ctx context.Context, c *conn) (who fsm.Identity, ok bool) {
	switch {
	case s.door.guard == nil:
		return who, true
	case c.pccl && !s.door.guard.MayBePCCL(c.remote.Addr()):
		s.complain(c, errors.New("PCCL peers may come from the networks of security.pccl_networks alone"))
		return who, false
	case c.pccl:
		return fsm.Identity{PCCL: true}, true
	}
	ctx, cancel := context.WithTimeout(ctx, shakeTime)
	defer cancel()
	p, id, err := s.door.guard.Meet(ctx, c.nc, func(p secure.Purpose) secure.Want { return secure.Want{Purpose: p} })
	if err != nil {
		s.complain(c, err)
		return who, false
	}
	if id.Name == "" && s.door.guard.Allows() && guard.Plain(c.nc) {
		return who, true
	}
	n := guard.Newcomer(c.nc)
	switch {
	case n == nil && p != secure.Renewal:
		return fsm.Identity{Name: id.Name, Groups: id.Groups, Observer: id.Role == secure.Observer, Single: id.Single}, true
	case !s.leads(): // the one that does counts tokens
	case n != nil:
		s.enroll(c, n)
	default:
		s.renew(c, id)
	}
	return who, false
}

// remind says that plaintext is accepted, too, and who uses that, if it is known.
func (s *Server) remind() {
	s.machine.mu.Lock()
	var st fsm.Snapshot
	begun := s.machine.fsm != nil
	if begun {
		st = s.machine.fsm.Snapshot()
	}
	s.machine.mu.Unlock()
	const text = "security.mode is allow: connections in plaintext are taken, too"
	if !begun || !s.leads() || st.Recovery != nil { // peers are with another master, or come back
		s.log.Warn(text, "kind", "plain")
		return
	}
	without := uncertified(st.Clients)
	n := len(without)
	s.log.Warn(fmt.Sprintf("%s, and %d peers have no certificate; set it to require when all have one", text, n),
		"kind", "plain", "first", without[:min(n, maxReminded)])
}

// uncertified says which clients have come in plaintext to where those in TLS come.
func uncertified(clients []fsm.ClientInfo) (who []string) {
	for _, c := range clients {
		if c.Name == "" && !c.PCCL {
			who = append(who, c.UUID.Short()+" at "+c.Remote.String())
		}
	}
	return who
}

// maxReminded bounds the peers that a reminder names.
const maxReminded = 8

// complain logs why a stranger is refused.
func (s *Server) complain(c *conn, err error) {
	if due, more := s.door.strange.Due(c.nc.RemoteAddr(), "stranger", time.Now()); due && c.why.Load() == nil {
		s.log.Warn("connection refused: "+err.Error(), "kind", "stranger", "remote", c.remote.String(), "more", more)
	}
}

// openDesk returns what lets newcomers in, nil if nobody may join with a token.
func openDesk(path string, g *guard.Guard) (*enroll.Desk, error) {
	if path == "" {
		return nil, nil
	}
	desk, err := enroll.NewDesk(path, time.Now)
	if err == nil {
		g.Enrol()
	}
	return desk, err
}

// enroll lets the newcomer at the other end have a certificate, if it has a join token.
// The connection is over then, and the machine never hears of it.
func (s *Server) enroll(c *conn, at enroll.Secured) {
	what, err := s.door.desk.Serve(at)
	if err != nil {
		s.complain(c, err)
		return
	}
	s.log.Info(what, "kind", "enrolled", "remote", c.remote.String())
}

// renew lets a peer have another certificate. The connection is over then.
func (s *Server) renew(c *conn, id secure.Identity) {
	what, err := s.door.desk.Renew(c.nc.(enroll.Secured), id)
	if err != nil {
		if due, more := s.door.strange.Due(c.nc.RemoteAddr(), "renewed", time.Now()); due {
			s.log.Warn("the certificate of "+id.Name+" was not renewed: "+err.Error(), "kind", "renewed", "remote", c.remote.String(), "more", more)
		}
		return
	}
	s.log.Info(what, "kind", "renewed", "remote", c.remote.String())
}

// renewed tells of the master's own next credential, or why there is none.
func (s *Server) renewed(ctx context.Context, news *guard.News, err error) {
	if err != nil {
		s.log.Warn(err.Error(), "kind", "renewed")
		return
	}
	s.heed(ctx, news, nil)
}

// turnedAway logs that a connection got no place, at most once a second.
func (s *Server) turnedAway(remote netip.AddrPort, what string) {
	now := time.Now()
	if now.Sub(s.refused.said) < time.Second {
		s.refused.more++
		return
	}
	s.log.Warn(what, "kind", "refused", "remote", remote.String(), "limit", s.opt.MaxConnections, "more", s.refused.more)
	s.refused.said, s.refused.more = now, 0
}

// heed does what a newer revocation list says and tells of a newer credential, or logs
// why one was not taken over.
func (s *Server) heed(ctx context.Context, news *guard.News, err error) {
	if err != nil {
		s.log.Warn("not taken over, and what was there before stays in force: "+err.Error(), "kind", "reload")
		return
	}
	s.revoke(news, func(ev fsm.Event) { s.post(ctx, ev, false) })
}

// revoke has the machine drop those that a newer revocation list names.
func (s *Server) revoke(news *guard.News, post func(fsm.Event)) {
	if c := news.Credential; c != nil {
		s.log.Info("the credential was taken over: "+c.String(), "kind", "reload", "until", c.Leaf().NotAfter)
	}
	if news.Listed {
		s.log.Info("the revocation list was taken over", "kind", "revoked", "number", news.Number)
		if news.Kept != "" {
			s.log.Warn("the revocation list has forgotten "+news.Kept+", which stay revoked here: if the authority was restored from a copy, tell it (gopccl keys revoke --list)", "kind", "revoked", "number", news.Number)
		}
		s.machine.mu.Lock()
		begun := s.machine.fsm != nil // a machine that is made later has the list from the start
		s.machine.mu.Unlock()
		if begun {
			post(fsm.Revocations{Lists: s.door.guard.Listed()}) // in front of those that it names
		}
	}
	if len(news.Revoked) == 0 {
		return
	}
	of := map[net.Conn]*conn{}
	s.live.mu.Lock()
	for c := range s.live.conns {
		of[c.nc] = c
	}
	s.live.mu.Unlock()
	for _, r := range news.Revoked {
		c := of[r.Conn]
		if c == nil {
			r.End()
			continue
		}
		s.machine.mu.Lock()
		known := s.machine.conns[c.id] != nil
		s.machine.mu.Unlock()
		if known {
			post(fsm.Revoked{Client: c.id, Why: r.Err.Error()})
			continue
		}
		// Its handshake is just over, or it leaves.
		s.log.Warn("connection closed: "+r.Err.Error(), "kind", "revoked", "remote", c.remote.String())
		c.fail(r.Err.Error())
	}
}
