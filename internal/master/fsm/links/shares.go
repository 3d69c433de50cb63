package links

import (
	"math"
	"net/netip"
	"slices"

	"github.com/gopccl/gopccl/core/topo"
)

const (
	// sharedBy is how much faster a link must be alone than together with others
	// from or to its host to count as shared.
	sharedBy = 1.25
	// nearly is how close to the fastest of its round a link must be, and the
	// round to the most that the host ever gave, for the host to be what held the
	// link back.
	nearly = 0.85
)

// Way is one of the two directions that the peers of a host may share.
type Way uint8

// Ways.
const (
	Out Way = iota // the way out of the host
	In             // the way into it
)

// String returns the word used in facts.
func (w Way) String() string {
	if w == In {
		return "in"
	}
	return "out"
}

// Measured is a link with what it gave, in Mbit/s.
type Measured struct {
	Edge
	Mbps float64
}

// sound reports whether the rate can be a measurement.
func (l Measured) sound() bool { return l.Mbps > 0 && !math.IsInf(l.Mbps, 0) }

// Joint is a set of links that left, or entered, one host and were measured at
// the same time.
type Joint struct {
	Host  netip.Addr
	Way   Way
	Links []Measured
	Total float64 // Mbit/s of all
}

// Together returns the sets of two links and more of a round that left, or
// entered, the same host.
func Together(round []Measured, hosts Hosts) (joints []Joint) {
	var sets []Joint
	add := func(host netip.Addr, way Way, l Measured) {
		i := slices.IndexFunc(sets, func(j Joint) bool { return j.Host == host && j.Way == way })
		if i < 0 {
			i = len(sets)
			sets = append(sets, Joint{Host: host, Way: way})
		}
		sets[i].Links = append(sets[i].Links, l)
		sets[i].Total += l.Mbps
	}
	for _, l := range round {
		if from, to, ok := hosts(l.Edge); ok && l.sound() {
			add(from, Out, l)
			add(to, In, l)
		}
	}
	for _, j := range sets {
		if len(j.Links) > 1 {
			joints = append(joints, j)
		}
	}
	return joints
}

func (j Joint) like(o Joint) bool { return o.Host == j.Host && o.Way == j.Way }

func (j Joint) fastest() (best Measured) {
	for _, l := range j.Links {
		if l.Mbps > best.Mbps {
			best = l
		}
	}
	return best
}

// Suspects returns one link for every host from, or to, which several were
// measured together: of the sets that gave the most, the fastest link of the
// one that was divided most evenly.
func Suspects(sets []Joint) (edges []Edge) {
	for i, j := range sets {
		if slices.IndexFunc(sets, j.like) < i {
			continue
		}
		most := 0.0
		for _, o := range sets {
			if j.like(o) {
				most = max(most, o.Total)
			}
		}
		var pick Edge
		least := math.Inf(1)
		for _, o := range sets {
			if f := o.fastest(); j.like(o) && o.Total >= nearly*most && f.Mbps/o.Total < least {
				pick, least = f.Edge, f.Mbps/o.Total
			}
		}
		edges = append(edges, pick)
	}
	return edges
}

// Verdict is what one link that was measured alone says about a host.
type Verdict struct {
	Shared   bool
	Together float64 // what the link gave together with others of the host, Mbit/s
	Most     float64 // what the host gave at most
}

// Judge compares what a link gave alone with what it gave in the sets of a host.
// ok is false if it is in none of them, which says nothing.
func Judge(sets []Joint, host netip.Addr, way Way, alone Measured) (v Verdict, ok bool) {
	if !alone.sound() {
		return v, false
	}
	v.Most = alone.Mbps
	for _, j := range sets {
		if j.Host != host || j.Way != way {
			continue
		}
		v.Most = max(v.Most, j.Total)
		for _, l := range j.Links {
			if l.Edge == alone.Edge {
				v.Together = l.Mbps
			}
		}
	}
	v.Shared = alone.Mbps > sharedBy*v.Together
	return v, v.Together > 0
}

// HeldBack returns the links that gave what a shared host has left them, which
// says nothing about the links, but for those that were measured alone. shared
// is the rate of the host of a set, 0 if it is not shared.
func HeldBack(sets []Joint, shared func(Joint) float64, alone []Measured) (edges []Edge) {
	for _, j := range sets {
		all := shared(j)
		if all == 0 || j.Total < nearly*all {
			continue
		}
		for _, l := range j.Links {
			if l.Mbps >= nearly*j.fastest().Mbps && !slices.ContainsFunc(alone, func(k Measured) bool { return k.Edge == l.Edge }) {
				edges = append(edges, l.Edge)
			}
		}
	}
	return edges
}

// Shares are the hosts whose peers are known to share what leads out or in. The
// zero value knows none.
type Shares []share

// share is one host; rates in Mbit/s for all of its peers together, 0: not
// shared as far as is known.
type share struct {
	host netip.Addr
	mbps [2]float64 // by Way
}

// Mbps is what the peers of host share, 0 if nothing is known to be shared.
func (s Shares) Mbps(host netip.Addr, way Way) float64 {
	for _, k := range s {
		if k.host == host {
			return k.mbps[way]
		}
	}
	return 0
}

// Set notes what the peers of host share; 0: nothing.
func (s *Shares) Set(host netip.Addr, way Way, mbps float64) {
	i := slices.IndexFunc(*s, func(k share) bool { return k.host == host })
	if i < 0 {
		i = len(*s)
		*s = append(*s, share{host: host})
	}
	k := &(*s)[i]
	if k.mbps[way] = mbps; k.mbps[Out] <= 0 && k.mbps[In] <= 0 {
		*s = slices.Delete(*s, i, i+1)
	}
}

// Keep forgets the hosts that are not in use any more.
func (s *Shares) Keep(used func(host netip.Addr) bool) {
	*s = slices.DeleteFunc(*s, func(k share) bool { return !used(k.host) })
}

// Sharing returns what members at these hosts share, in their order, nil if
// nothing is known to be shared by several of them.
func (s Shares) Sharing(at []netip.Addr) *topo.Sharing {
	if len(s) == 0 {
		return nil
	}
	out := &topo.Sharing{}
	var hosts []netip.Addr
	shared := false
	for _, a := range at {
		h := slices.Index(hosts, a)
		if h < 0 {
			h = len(hosts)
			hosts = append(hosts, a)
			out.Out, out.In = append(out.Out, s.Mbps(a, Out)), append(out.In, s.Mbps(a, In))
		} else {
			shared = shared || out.Out[h] > 0 || out.In[h] > 0
		}
		out.Host = append(out.Host, h)
	}
	if !shared {
		return nil
	}
	return out
}
