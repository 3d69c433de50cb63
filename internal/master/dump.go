package master

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
)

// WriteState writes the state of a master at an address as text, a line for
// each group and client. The error is w's.
func (s *Server) WriteState(w io.Writer, at netip.AddrPort) error {
	b, st := bufio.NewWriter(w), s.Snapshot()
	fmt.Fprintf(b, "gopccl: master at %s: %d clients, %d connections that did not register, %d collectives so far",
		at, len(st.Clients), st.Unregistered, st.Collectives)
	if st.RoundActive {
		fmt.Fprint(b, ", in a connection round")
	}
	fmt.Fprintln(b)
	if s.opt.HeartbeatTimeout > 0 {
		fmt.Fprintf(b, "  heartbeats every %v, who is silent for %v is dropped\n", s.opt.HeartbeatInterval, s.opt.HeartbeatTimeout)
	}
	for _, g := range st.Groups {
		fmt.Fprintf(b, "  group %d: %d members, %d wait to be let in\n", g.ID, g.Members, g.Waiting)
	}
	for _, c := range st.Clients {
		fmt.Fprintf(b, "  client %s at %s, group %d: %v, %v", c.UUID, c.Remote, c.Group, c.Phase, c.State)
		for _, o := range c.Collectives {
			fmt.Fprintf(b, ", %v tag %d %v", o.Kind, o.Tag, o.State)
		}
		fmt.Fprintln(b)
	}
	return b.Flush()
}
