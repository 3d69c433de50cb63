package master

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
)

// WriteStatus writes the status of a master at an address as text, a line for
// each group and client. The error is w's.
func WriteStatus(w io.Writer, at netip.AddrPort, st Status) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "gopccl: master at %s: %d clients, %d connections that did not register, %d collectives so far",
		at, len(st.Clients), st.Unregistered, st.Collectives)
	if st.RoundActive {
		fmt.Fprint(b, ", in a connection round")
	}
	fmt.Fprintln(b)
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
