package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/ports"
	"github.com/gopccl/gopccl/internal/quorum/node"
)

func init() { roles["one-of-masters"] = oneOfMasters }

// oneOfMasters is what gopccl master --peers does.
func oneOfMasters(ctx context.Context, o order, say func(report)) error {
	n, err := node.New(node.Options{Masters: strings.Split(o.Peers, ","), Self: o.Self, Listen: o.Listen, Dir: o.State, Logger: childLogger(o.ID)})
	if err != nil {
		return err
	}
	defer n.Close()
	for {
		m, err := newMaster(core.MasterOptions{Listen: o.Master, Authority: speaking{n, say}, HeartbeatInterval: o.Silence / 4, HeartbeatTimeout: o.Silence, Logger: childLogger(o.ID)})
		if err != nil {
			return err
		}
		err = m.Run(ctx)
		m.Close()
		if !errors.Is(err, errs.NotLeading) {
			return err
		}
		say(report{Event: "lost", Text: err.Error()})
	}
}

// speaking tells the parent when its master leads.
type speaking struct {
	core.Authority
	say func(report)
}

func (s speaking) Lead(ctx context.Context) (uint32, []byte, <-chan error, error) {
	term, kept, lost, err := s.Authority.Lead(ctx)
	if err == nil {
		s.say(report{Event: "leads", Step: uint64(term)})
	}
	return term, kept, lost, err
}

// council are the masters of a run, as processes.
type council struct {
	t       *testing.T
	orders  []order
	masters []*child
	leads   chan report // of all
	lost    chan report
	term    uint64
	known   []string // where peers find them; nil: where they listen
}

// freeAddresses are on the loopback interface. Nobody else takes them while a master is gone.
func freeAddresses(t *testing.T, n int) (list []string) {
	t.Helper()
	for range n {
		at, err := ports.Address()
		require.NoError(t, err)
		list = append(list, at)
	}
	return list
}

func convene(t *testing.T) *council {
	t.Helper()
	c := &council{t: t, masters: make([]*child, 3), leads: make(chan report, 1000), lost: make(chan report, 1000)}
	addrs, dir := freeAddresses(t, 6), t.TempDir()
	for i := range 3 {
		c.orders = append(c.orders, order{
			Role: "one-of-masters", ID: i, Master: addrs[i], Self: addrs[3+i], Peers: strings.Join(addrs[3:], ","),
			State: filepath.Join(dir, fmt.Sprint(i)),
		})
		c.start(i)
	}
	return c
}

func (c *council) start(i int) {
	m := start(c.t, c.orders[i])
	c.masters[i] = m
	go func() {
		for r := range m.lines {
			switch r.Event {
			case "leads":
				c.leads <- r
			case "lost":
				c.lost <- r
			}
		}
	}()
}

// after waits for a leader other than one that was killed or stopped. Before that it may
// have lost the lead and taken it again.
func (c *council) after(killed int) int {
	c.t.Helper()
	for {
		if at := c.leader(); at != killed {
			return at
		}
	}
}

// leader waits for a leader with a higher term than those before.
func (c *council) leader() int {
	c.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case r := <-c.leads:
			if r.Step > c.term {
				c.term = r.Step
				return r.ID
			}
		case <-deadline:
			c.t.Fatalf("nobody leads\n%s", autopsy(c.masters))
		}
	}
}

// givesUp waits until a master says that it leads no longer.
func (c *council) givesUp(at int) {
	c.t.Helper()
	for limit, lost := time.After(patience), -1; lost != at; {
		select {
		case r := <-c.lost:
			lost = r.ID
		case <-limit:
			c.t.Fatalf("it goes on to lead\n%s", autopsy(c.masters))
		}
	}
}

// endpoints are the masters' addresses for peers.
func (c *council) endpoints() string {
	list := slices.Clone(c.known)
	if list != nil {
		return strings.Join(list, ",")
	}
	for _, o := range c.orders {
		list = append(list, o.Master)
	}
	return strings.Join(list, ",")
}

// The leader is killed again and again. Another master leads, with a higher term, and no
// call of any peer fails.
func TestLeadersAreKilled(t *testing.T) {
	c := convene(t)
	at := c.leader()
	k := newCrew(t, c.endpoints())
	for range 4 {
		k.add(order{World: 4})
	}
	for range 4 {
		<-k.up
	}
	for range counts(100) {
		k.progress()
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond) // what is under way is up to chance
		c.masters[at].kill()
		k.mu.Lock()
		k.kills = append(k.kills, time.Now().UnixMicro())
		k.mu.Unlock()
		next := c.after(at)
		c.start(at)
		at = next
		if k.failed() != "" {
			break
		}
	}
	tell(t, k.conclude())
}
