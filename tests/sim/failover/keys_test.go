package failover

import (
	"fmt"
	"slices"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// In a run in TLS peers connect to those whose names they have been told, and take a
// connection of one when they have been told its name.

var inTLS = issued.On()

// secured returns the configuration of a master, in TLS if runs are.
func secured(cfg mfsm.Config) mfsm.Config {
	if inTLS {
		cfg.IdentityKey, cfg.Revocations = []byte("of the credential that all masters have"), []string{"nobody"}
	}
	return cfg
}

// who is what the shell of the master knows of p.
func (p *peer) who() (id mfsm.Identity) {
	if inTLS {
		id.Name = fmt.Sprint("gpu-", p.id)
	}
	return id
}

// patient is how often an end looks whether it has been told the name of who has connected.
const patient = 200

// opening are connections that wait for their other ends.
type opening struct {
	to    []wire.PeerEndpoint
	then  func(failed []wire.UUID) pfsm.Event
	looks int
}

// opens connects p with others, and says then that it has.
func (p *peer) opens(to []wire.PeerEndpoint, then func(failed []wire.UUID) pfsm.Event) {
	for _, e := range to {
		if inTLS && !slices.Contains(p.names, e.UUID) {
			p.r.fail("peer %d is to connect with %v, of whom it has been told no name", p.id, e.UUID)
		}
	}
	p.opening = append(p.opening, &opening{to: to, then: then})
}

// opened goes on with connections that their other ends have taken.
func (p *peer) opened() bool {
	if len(p.opening) == 0 {
		return false
	}
	o := p.opening[0]
	var failed []wire.UUID
	for _, e := range o.to {
		for _, other := range p.r.peers {
			if inTLS && other.m.View().UUID == e.UUID && !slices.Contains(other.names, p.m.View().UUID) {
				failed = append(failed, e.UUID)
			}
		}
	}
	if o.looks++; len(failed) > 0 && o.looks < patient {
		return false
	}
	p.opening = p.opening[1:]
	p.events = append(p.events, o.then(failed))
	return true
}

// told takes the names of members.
func (p *peer) told(e pfsm.Names) {
	p.names = p.names[:0]
	for _, m := range e.Members {
		p.names = append(p.names, m.UUID)
		for _, o := range p.r.peers {
			if o.m.View().UUID == m.UUID && m.Name != o.who().Name {
				p.r.fail("peer %d is told that peer %d is %q", p.id, o.id, m.Name)
			}
		}
	}
}
