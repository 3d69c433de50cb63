package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// untold reports whether all-reduces would be faster over the mesh, and the members
// were not told so yet (docs/spec/extensions.md, "Direct exchange").
func (x *mesh) untold() bool { return x.spares && x.direct == (wire.Direct{}) }

// waysOf returns with whom each member of g has to be connected for plans beside a mesh, if
// there is one, in the order of the roster.
func (g *group) waysOf(d wire.Direct) [][]wire.UUID {
	n := len(g.roster)
	list := make([][]wire.UUID, n)
	o, err := plan.ParseOptions([]byte(d.Schemes), n)
	if g.mesh.state == meshDirect || err != nil {
		return list
	}
	for at := range o.List {
		s := o.List[at].Scheme
		if s == nil {
			continue
		}
		for i, with := range s.Ways(n) {
			for _, k := range with {
				if u := g.roster[k]; !slices.Contains(list[i], u) {
					list[i] = append(list[i], u)
				}
			}
		}
	}
	return list
}

// take notes what the members, n of them, were told.
func (x *mesh) take(d wire.Direct, n int) {
	x.direct, x.large = d, plan.Options{}
	if d.Schemes == "" {
		return
	}
	if o, err := plan.ParseOptions([]byte(d.Schemes), n); err == nil {
		x.large = *o
	}
}

// exchanged reports whether an all-reduce of so many bytes, as they are, uses the mesh.
func (x *mesh) exchanged(bytes uint64) bool {
	return bytes <= x.direct.Most || x.large.For(bytes) != nil
}

// maxRTT bounds what is believed of a way.
const maxRTT = 10 * time.Second

// placesOf says where each of ms is.
func placesOf(ms []*client) map[wire.UUID]int {
	at := make(map[wire.UUID]int, len(ms))
	for i, c := range ms {
		at[c.uuid] = i
	}
	return at
}

// delays returns the delays between ms, as those that have connected for the mesh
// told them: half of the round trip, and of what both ends say the less.
func (x *mesh) delays(ms []*client) []time.Duration {
	n, place := len(ms), placesOf(ms)
	out := slices.Repeat([]time.Duration{-1}, n*n)
	for i, c := range ms {
		if c.place.meshed != x.change {
			continue
		}
		for _, w := range c.place.ways {
			k, known := place[w.To]
			if !known || k == i {
				continue
			}
			d := min(time.Duration(w.RTT)*time.Microsecond, maxRTT) / 2
			for _, at := range []int{i*n + k, k*n + i} {
				if out[at] < 0 || d < out[at] {
					out[at] = d
				}
			}
		}
	}
	return out
}

// chosen notes what the members of g were told.
func (m *Machine) chosen(g *group, d wire.Direct) {
	was := g.mesh.direct
	// Plans that are being made are made by what was in force.
	again := g.mesh.draft.job != 0
	g.mesh.draft = draft{}
	g.mesh.take(d, len(g.roster))
	g.adopted(was, m.now)
	if d != was {
		for i := range g.mesh.large.List {
			if o := &g.mesh.large.List[i]; o.Scheme != nil {
				m.tell(g, "plan", false, "all-reduces of %d bytes and more take the plan %q: %s", o.From, o.Scheme.Name, g.mesh.large.Why(o, o.From))
			}
		}
	}
	if d != was && d.Most > 0 {
		m.tell(g, "plan", false, "all-reduces of up to %d bytes go directly from each member to each other: %s", d.Most, why(d))
	}
	if again {
		m.reviewPlans(g)
	}
}

// why says what a direct exchange spares.
func why(d wire.Direct) string {
	return fmt.Sprintf("delays add up to %v, to %v along the ring", time.Duration(d.ExchangeUS)*time.Microsecond, time.Duration(d.RingUS)*time.Microsecond)
}

// offerAgain repeats, when nothing is under way, an offer that could not be made, or
// that some had not answered in time: those that begin eagerly answer when the others
// have begun, too.
func (m *Machine) offerAgain(g *group) {
	if g.mesh.untold() || g.learned.want {
		g.mesh.late = false
		m.offer(g)
	}
}

// adopted notes what large all-reduces take now.
func (g *group) adopted(was wire.Direct, now time.Duration) {
	l := &g.learned
	l.last, l.want = g.mesh.large, false
	if g.mesh.direct == was {
		return
	}
	l.hoped = l.hopes
	// Nothing has to be told any more, also if no all-reduce leaves the ring.
	g.mesh.spares = g.mesh.direct != (wire.Direct{})
	if l.bytes == 0 || was.Schemes == g.mesh.direct.Schemes {
		return
	}
	if at := l.last.For(l.bytes); at == nil || at.Scheme.Name != plan.TrialName {
		l.changed, l.calm = now, min(max(2*l.calm, leastCalm), mostCalm)
	}
}
