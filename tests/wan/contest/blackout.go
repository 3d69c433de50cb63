package main

import (
	"fmt"
	"time"

	"github.com/gopccl/gopccl/tests/internal/lab"
	"github.com/gopccl/gopccl/tests/internal/lab/netem"
)

// blackoutAfter is when a blackout begins, in an operation.
const blackoutAfter = 20 * time.Millisecond

// darken makes the network lose everything between two of the peers for a while, another
// pair in each round that counts, and returns what ends that.
func (g game) darken(l *lab.Lab, round int) (end func()) {
	if g.blackout == 0 || round == 0 {
		return func() {}
	}
	peers := len(l.Hosts) - 1
	from := round % peers
	to := (from + 1 + round/peers%(peers-1)) % peers
	set := func(down bool) {
		l.Change(func(n *netem.Net) {
			n.Change(from, to, func(p *netem.Path) { p.Down = down })
			n.Change(to, from, func(p *netem.Path) { p.Down = down })
		})
	}
	begin := time.AfterFunc(blackoutAfter, func() { set(true) })
	over := time.AfterFunc(blackoutAfter+g.blackout, func() { set(false) })
	return func() {
		begin.Stop()
		over.Stop()
		set(false)
	}
}

// endured says how a contestant of ours has taken a blackout. One that had to repeat
// the operation more than once has failed.
func (g game) endured(c *contestant, round int) error {
	s, ours := c.side.(*own)
	if !ours || g.blackout == 0 || round == 0 {
		return nil
	}
	fmt.Printf("%s, blackout %v: %v, repeats: %d\n", c.name, g.blackout, c.turns[len(c.turns)-1].took.Round(time.Millisecond), s.retries)
	if s.retries > 1 {
		return fmt.Errorf("an operation was repeated %d times after a blackout of %v", s.retries, g.blackout)
	}
	return nil
}
