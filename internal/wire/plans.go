package wire

// PlansVersion is what this version announces as Ext.Plans.
const PlansVersion = PairPlans

// SchemePlans is the version of Ext.Plans from which on an end knows Direct.Schemes.
const SchemePlans = 3

// RatePlans is the version of Ext.Plans from which on an end knows C2MRates.
const RatePlans = 4

// WayPlans is the version of Ext.Plans from which on an end uses Direct.Schemes without a
// mesh, over connections that M2C 70 lists behind those to the neighbours, and for small
// all-reduces, too.
const WayPlans = 5

// PairPlans is the version of Ext.Plans from which on Direct.Most may be told to a group of two,
// whose exchange is of one hop.
const PairPlans = 6

// MaxSchemes bounds Direct.Schemes, in bytes.
const MaxSchemes = 48 << 10

// Paths are about the ways between members.
type Paths struct {
	// Ways are round trips to members of the group, at most MaxWays (on C2M 89).
	Ways []Way
	// Direct says which all-reduces take the direct exchange (on M2C 71).
	Direct Direct
}

// Way is the round trip to a peer over an empty queue, in microseconds.
type Way struct {
	To  UUID
	RTT uint32
}

// PathRate is the most that the connections to a peer gave over a moment, in Mbit/s.
type PathRate struct {
	To   UUID
	Mbps float64
}

// C2MRates (id 76) says what the sender's connections to distant peers gave at most over a
// moment of its collectives, in Mbit/s: all together, in both directions, and to each peer
// to whom more than words went. 0: not known. Each is a lower bound of what could be had. Told to a master that announced
// Plans of RatePlans.
type C2MRates struct {
	Up, Down float64
	Pairs    []PathRate
}

func (C2MRates) Proto() Proto { return C2M }
func (C2MRates) ID() ID       { return 76 }

// Direct says which all-reduces of a group take the direct exchange, and why. The
// zero value says that none does, and has no entry on the wire.
type Direct struct {
	Most       uint64 // bytes of the largest one
	RingUS     uint32 // microseconds that the longest way of a chunk takes along the ring
	ExchangeUS uint32 // ... and in the exchange
	Kbps       uint32 // rate of the slowest member's connections that was assumed
	// Schemes are the plans of larger ones (plan.ParseOptions), as an entry of its own;
	// "": those use the ring.
	Schemes string
}

// isZero reports whether d has no entry.
func (d *Direct) isZero() bool {
	return d.Most == 0 && (len(d.Schemes) == 0 || len(d.Schemes) > MaxSchemes)
}

const (
	minWay    = minUUID + 4
	minRate   = minUUID + 8
	directLen = 20
)

// appendPlans appends the entries about plans of an all-reduce.
func appendPlans(dst []byte, x *Ext) []byte {
	if x.Plans != 0 {
		dst = append(appendU16(appendU16(dst, extPlans), 1), x.Plans)
	}
	if d := x.Direct; d.Most != 0 {
		dst = appendU64(appendU16(appendU16(dst, extDirect), directLen), d.Most)
		dst = appendU32(appendU32(appendU32(dst, d.RingUS), d.ExchangeUS), d.Kbps)
	}
	if n := len(x.Direct.Schemes); n > 0 && n <= MaxSchemes {
		dst = append(appendU16(appendU16(dst, extSchemes), uint16(n)), x.Direct.Schemes...)
	}
	if n := len(x.Ways); n > 0 && n <= MaxWays {
		dst = appendU16(appendU16(dst, extWays), uint16(n*minWay))
		for _, w := range x.Ways {
			dst = appendU32(append(dst, w.To[:]...), w.RTT)
		}
	}
	return dst
}

// direct reads which all-reduces take the direct exchange, beside schemes that are
// known. That none does has no entry, so one that says it says nothing.
func (r *reader) direct(schemes string) Direct {
	d := Direct{r.u64(), r.u32(), r.u32(), r.u32(), schemes}
	if d.Most == 0 {
		return Direct{Schemes: schemes}
	}
	return d
}

// schemes reads plans to the end. Too many are damaged.
func (r *reader) schemes() string {
	if len(r.b) > MaxSchemes {
		r.short = true
		return ""
	}
	return string(r.b)
}

// ways reads ways to the end. A list that is too long, or ends within one, is damaged.
func (r *reader) ways() []Way {
	n := len(r.b) / minWay
	if n > MaxWays || len(r.b)%minWay != 0 {
		r.short = true
		return nil
	}
	var out []Way
	for range n {
		out = append(out, Way{To: r.uuid(), RTT: r.u32()})
	}
	return out
}

// appendRates appends the body of C2MRates.
func appendRates(dst []byte, p *C2MRates) []byte {
	dst = appendU64(appendF64(appendF64(dst, p.Up), p.Down), uint64(len(p.Pairs)))
	for _, x := range p.Pairs {
		dst = appendF64(append(dst, x.To[:]...), x.Mbps)
	}
	return dst
}

func (r *reader) rates() C2MRates {
	return C2MRates{Up: r.f64(), Down: r.f64(), Pairs: list(r, minRate, func(r *reader) PathRate {
		return PathRate{To: r.uuid(), Mbps: r.f64()}
	})}
}
