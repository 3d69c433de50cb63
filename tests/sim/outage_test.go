package sim

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// phases are what a master says to several peers at once, and what a fault of it may
// find on its way to them.
var phases = []struct {
	id   wire.ID
	name string
}{
	{2, "round begins"},
	{3, "ring stands"},
	{4, "query answered"},
	{5, "optimization begins"},
	{6, "optimization ends"},
	{7, "state elected"},
	{8, "synchronisation ends"},
	{9, "collective commences"},
	{11, "verdict"},
	{10, "collective ends"},
	{70, "ring offered"},
	{71, "ring switched"},
	{74, "leaver announced"},
	{76, "leaver gone"},
	{88, "mesh offered"},
	{89, "mesh stands"},
}

// said is something that a master has said to several peers in one step.
type said struct {
	id          wire.ID
	tag         uint64
	at          time.Duration
	sent, heard uint64 // to and by which peers, a bit each
}

// caught is what was on its way when a fault struck.
type caught struct {
	*said
	by kind
}

// says notes what m says to one more peer; nil if that is of no interest.
func (m *master) says(p *peer, pkt wire.Packet) *said {
	if !m.w.heirs.on {
		return nil
	}
	s := said{id: pkt.ID(), at: m.w.now}
	switch pkt := pkt.(type) {
	case wire.M2CCollectiveCommsCommence:
		s.tag = pkt.Tag
	case wire.M2CCollectiveCommsAbort:
		s.tag = pkt.Tag
	case wire.M2CCollectiveCommsComplete:
		s.tag = pkt.Tag
	case wire.M2CHeartbeat:
		return nil
	}
	for _, o := range m.saying {
		if o.id == s.id && o.tag == s.tag {
			o.sent |= 1 << p.id
			return o
		}
	}
	s.sent = 1 << p.id
	m.saying = append(m.saying, &s)
	return &s
}

// heardBy notes that p has heard it.
func (s *said) heardBy(p *peer) {
	if s != nil {
		s.heard |= 1 << p.id
	}
}

// struck lets faults strike that wait for what m has said in this step.
func (m *master) struck() {
	w := m.w
	if len(m.saying) == 0 {
		return
	}
	m.said = slices.DeleteFunc(m.said, func(s *said) bool { return s.heard == s.sent || w.now > s.at+10*time.Millisecond })
	for _, s := range m.saying {
		if bits.OnesCount64(s.sent) > 1 {
			m.said = append(m.said, s)
		}
	}
	if m != w.master {
		return
	}
	for _, s := range m.saying {
		w.heirs.times[s.id]++
		for i, f := range w.heirs.aimed {
			if f.aim == s.id && f.nth == w.heirs.times[s.id] {
				w.heirs.aimed = slices.Delete(w.heirs.aimed, i, i+1)
				at := time.Duration(0)
				if f.share == anybody {
					at = w.rng.between(0, w.within(time.Millisecond))
				}
				w.after(at, nil, func() { w.inject(f) })
				break
			}
		}
	}
}

// catch notes what is on its way when a fault strikes.
func (w *world) catch(by kind) {
	for _, s := range w.master.said {
		if s.heard != s.sent {
			w.heirs.caught = append(w.heirs.caught, caught{s, by})
		}
	}
	w.master.said = nil
}

// unheard takes p, which is gone, out of what counts.
func (w *world) unheard(p *peer) {
	for _, c := range w.heirs.caught {
		c.sent &^= 1 << p.id
		c.heard &^= 1 << p.id
	}
}

// cell is a place in the table of what was seen.
type cell struct {
	id    wire.ID
	share string // how many have heard it
	by    kind
}

// tally counts what the faults of w have caught.
func (w *world) tally(table map[cell]int) {
	for _, c := range w.heirs.caught {
		if c.sent == 0 {
			continue
		}
		share := "some"
		switch c.heard {
		case 0:
			share = "none"
		case c.sent:
			share = "all"
		}
		table[cell{c.id, share, c.by}]++
	}
}

var faultNames = map[kind]string{
	killMaster: "kill", replaceMaster: "replace", killBoth: "kill both", pauseBriefly: "pause", pauseMaster: "long pause",
	blip: "blip", holdUp: "hold-up", cutOff: "cut off",
}

// covered checks that faults have found every phase heard by none, by some and by all.
func covered(t *testing.T, table map[cell]int, seeds int) {
	t.Helper()
	var b strings.Builder
	for _, p := range phases {
		for by := killMaster; by < mostKinds; by++ {
			fmt.Fprintf(&b, "%22s %-10s", p.name, faultNames[by])
			for _, share := range []string{"none", "some", "all"} {
				n := table[cell{p.id, share, by}]
				fmt.Fprintf(&b, " %s %d", share, n)
				if seeds >= 20000 && n*1000 < seeds {
					t.Errorf("%s, heard by %s, %s: only %d times in %d seeds", p.name, share, faultNames[by], n, seeds)
				}
			}
			b.WriteByte('\n')
		}
	}
	t.Logf("%d seeds\n%s", seeds, b.String())
}

// recovered checks how long a recovery takes: hardly longer than the second in which
// nobody comes back whose neighbours miss it.
func (m *master) recovered(f mfsm.Fact) {
	const most = 1500 * time.Millisecond
	w, dead := m.w, 0
	for _, p := range w.peers {
		if p.native && (p.dead || p.over) {
			dead++
		}
	}
	if f.Kind == "recovered" && w.heirs.on && dead == w.heirs.lost && w.heirs.interrupts == 0 && !w.heirs.unmissed && w.now > max(m.began, w.heirs.killed)+most {
		w.failf("a master has recovered %v after its start", w.now-m.began)
	}
}
