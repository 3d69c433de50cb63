package master

import (
	"bufio"
	"context"
	"encoding/json"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Bulletin is what a master says of itself to operators (M2C 79). It travels as JSON, so
// fields may be added, and keep their names and meaning.
type Bulletin struct {
	// Role is Leads, Recovers or Follows.
	Role string `json:"role"`
	Term uint32 `json:"term"`
	// Masters is what the authority says about all masters, a line for each.
	Masters []string `json:"masters,omitempty"`
	// Leader is where peers find the master that leads, "": this master does not know.
	Leader   string            `json:"leader,omitempty"`
	Clients  int               `json:"clients"`
	Total    int               `json:"total_groups"`
	Groups   []GroupBulletin   `json:"groups,omitempty"` // the first of them
	Recovery *RecoveryBulletin `json:"recovery,omitempty"`
}

// Roles of a Bulletin.
const (
	Leads    = "leads"
	Recovers = "recovers" // it leads, and waits for members to come back
	Follows  = "follows"  // another master leads, or nobody
)

// GroupBulletin is a group of a master that leads.
type GroupBulletin struct {
	ID           uint32 `json:"group"`
	Members      int    `json:"members"`
	Waiting      int    `json:"waiting"` // to be let in
	NextRevision uint64 `json:"next_revision"`
}

// RecoveryBulletin says whom a master that recovers waits for, and how long it still does.
type RecoveryBulletin struct {
	WaitedMS int64 `json:"waited_ms"`
	LeftMS   int64 `json:"left_ms"`
	// Stuck: it waits until they come, or an operator says that they may be dropped
	// (master.lost_members).
	Stuck bool `json:"stuck"`
	// Silent have come back, and have not said what they hold.
	Silent int                  `json:"silent"`
	Groups []RecoveringBulletin `json:"groups,omitempty"`
}

// RecoveringBulletin is a group of a master that recovers.
type RecoveringBulletin struct {
	ID      uint32            `json:"group"`
	Members int               `json:"members"`
	Lacks   int               `json:"lacks"`             // so many of them
	Missing []MissingBulletin `json:"missing,omitempty"` // the first of them
}

// MissingBulletin is a member that has not come back. Peer is the beginning of its uuid: in
// plaintext, all of it may be what a session is proved with. Broken: its neighbours say that
// the connections to it have ended.
type MissingBulletin struct {
	Peer   string `json:"peer"`
	Broken bool   `json:"broken"`
}

const (
	// maxMissing bounds the members that are named for each group, maxGroups the groups.
	maxMissing = 64
	maxGroups  = 256
	// fresh is how long a bulletin is given out again: those who ask may be many.
	fresh = 100 * time.Millisecond
	// maxAudience bounds the connections that a master which does not lead listens to.
	maxAudience = 64
	// audienceTime bounds each of them.
	audienceTime = 5 * time.Second
)

// press makes one bulletin for all who ask at a time.
type press struct {
	turn chan struct{} // has one element, which is taken by the goroutine that has the fields below
	made time.Time
	text string
}

func newPress() press {
	p := press{turn: make(chan struct{}, 1)}
	p.turn <- struct{}{}
	return p
}

// bulletin returns a Bulletin as JSON, "" if ctx ends.
func (s *Server) bulletin(ctx context.Context) string {
	p := &s.press
	select {
	case <-p.turn:
	case <-ctx.Done():
		return ""
	}
	if p.text == "" || time.Since(p.made) > fresh {
		b, err := json.Marshal(s.compose())
		if err != nil {
			panic(err) // of numbers and strings
		}
		p.text, p.made = string(b), time.Now()
	}
	text := p.text
	p.turn <- struct{}{}
	return text
}

// compose asks the machine and the authority.
func (s *Server) compose() Bulletin {
	b := Bulletin{Role: Follows}
	if a, ok := s.helm.authority.(interface{ Describe() []string }); ok {
		b.Masters = a.Describe()
	}
	s.machine.mu.Lock()
	if s.machine.fsm == nil {
		s.machine.mu.Unlock()
		if at := s.leader(); at.IsValid() {
			b.Leader = at.String()
		}
		return b
	}
	st, now := s.machine.fsm.Snapshot(), time.Since(s.start)
	s.machine.mu.Unlock()
	b.Role, b.Term, b.Clients = Leads, st.Term, len(st.Clients)
	b.Total = len(st.Groups)
	for _, g := range st.Groups[:min(b.Total, maxGroups)] {
		b.Groups = append(b.Groups, GroupBulletin{g.ID, g.Members, g.Waiting, g.NextRevision})
	}
	if r := st.Recovery; r != nil {
		b.Role = Recovers
		out := &RecoveryBulletin{
			WaitedMS: (now - r.Began).Milliseconds(), LeftMS: max(0, r.Until-now).Milliseconds(), Stuck: r.Stuck, Silent: r.Silent,
		}
		for _, g := range r.Groups[:min(len(r.Groups), maxGroups)] {
			o := RecoveringBulletin{ID: g.ID, Members: g.Members, Lacks: len(g.Missing)}
			for _, m := range g.Missing[:min(len(g.Missing), maxMissing)] {
				o.Missing = append(o.Missing, MissingBulletin{m.UUID.Short(), m.Broken})
			}
			out.Groups = append(out.Groups, o)
		}
		b.Recovery = out
	}
	return b
}

// publish answers an operator, unless something waits for that connection anyway.
func (s *Server) publish(ctx context.Context, c *conn) {
	if n, _ := c.out.held(); n > 0 {
		return
	}
	if text := s.bulletin(ctx); text != "" {
		c.out.add(wire.M2CStatus{JSON: text}, s.opt.MaxQueue)
		c.out.wake()
	}
}

// leader returns where peers find the master that leads, the zero AddrPort if this one
// does not know.
func (s *Server) leader() netip.AddrPort {
	if a, ok := s.helm.authority.(interface{ Leader() netip.AddrPort }); ok {
		return a.Leader()
	}
	return netip.AddrPort{}
}

// listen reads what an endpoint wants of a master that does not lead: to know how it
// stands, or the master that does. The writer closes the connection behind the answer.
func (s *Server) listen(ctx context.Context, c *conn) {
	c.nc.SetReadDeadline(time.Now().Add(audienceTime))
	r := bufio.NewReaderSize(transport.Source(c.nc), readBuffer)
	n, err := wire.ReadLength(r, strangerLimit)
	if err != nil {
		return
	}
	p, err := wire.ReadBody(r, wire.C2M, n)
	if err != nil {
		return
	}
	switch p := p.(type) {
	case wire.C2MAskStatus:
		s.publish(ctx, c)
	case wire.C2MRequestSessionRegistration:
		if at := s.leader(); p.Ext.Native && reaches(c.remote.Addr(), at.Addr()) {
			c.out.add(wire.M2CSessionRegistrationResponse{Ext: wire.Ext{
				Native: true, Reason: "another master leads", Resuming: wire.Resuming{Leader: []netip.AddrPort{at}},
			}}, s.opt.MaxQueue)
		}
	}
	c.out.finish(c.nc)
	for err == nil { // it is not closed in front of what the other end has sent
		_, err = r.Discard(1)
	}
}

// reaches reports whether an address at which this master reaches another one may be one
// for an endpoint that comes from there, too: a private one is none for the world.
func reaches(from, at netip.Addr) bool {
	switch {
	case !at.IsValid():
		return false
	case at.IsLoopback():
		return from.IsLoopback()
	case at.IsLinkLocalUnicast():
		return from.IsLinkLocalUnicast()
	case at.IsPrivate():
		return from.IsPrivate() || from.IsLoopback()
	}
	return true
}
