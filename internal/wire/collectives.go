package wire

import "encoding/binary"

// CollectivesVersion is what this version announces as Ext.Collectives.
const CollectivesVersion = 1

// Call is what the members of a collective other than all-reduce have to agree
// on, beside count, type and operation. The zero value is an all-reduce, of which
// the wire says nothing.
type Call struct {
	Kind     uint8 // a number of internal/plan
	Flags    CallFlags
	WireType uint16 // element type on the wire
	Root     uint32 // index of a member
	Sum      uint64 // of all counts that the sender knows
	Digest   uint64 // of all that must be equal, see docs/spec/extensions.md
}

// CallFlags say more about a Call.
type CallFlags uint8

// Flags of a Call.
const (
	CallMesh      CallFlags = 1 // it wants connections between all members
	CallQuantized CallFlags = 2
	CallCounts    CallFlags = 4 // every member has a count of its own
)

// Agrees reports whether members that say c and d call the same collective.
func (c Call) Agrees(d Call) bool {
	c.Sum, d.Sum = 0, 0 // what a member knows of the counts is in Digest if all know it
	return c == d
}

// DigestOf returns the digest of a collective (docs/spec/extensions.md,
// "Collectives"). counts are those of all members where every member knows them,
// nil elsewhere; quantizer is "" where the data travels as it is.
func DigestOf(kind uint8, root uint32, wireType uint16, quantizer string, counts []int) uint64 {
	h := uint64(14695981039346656037) // FNV-1a
	add := func(b ...byte) {
		for _, c := range b {
			h = (h ^ uint64(c)) * 1099511628211
		}
	}
	var field [8]byte
	add(kind)
	add(binary.BigEndian.AppendUint32(field[:0], root)...)
	add(binary.BigEndian.AppendUint16(field[:0], wireType)...)
	add([]byte(quantizer)...)
	add(0)
	for _, n := range counts {
		add(binary.BigEndian.AppendUint64(field[:0], uint64(n))...)
	}
	return h
}

// appendCollectives appends the entries about collectives other than all-reduce.
func appendCollectives(dst []byte, x *Ext) []byte {
	if x.Collectives != 0 {
		dst = append(appendU16(appendU16(dst, extCollectives), 1), x.Collectives)
	}
	if x.GroupCollectives {
		dst = appendU16(appendU16(dst, extGroupCollectives), 0)
	}
	if n := len(x.Members); n > 0 && n <= MaxMembers {
		dst = appendU16(appendU16(dst, extMembers), uint16(n*minUUID))
		for _, u := range x.Members {
			dst = append(dst, u[:]...)
		}
	}
	if c := &x.Call; c.Kind != 0 {
		dst = append(appendU16(appendU16(dst, extKind), 24), c.Kind, byte(c.Flags))
		dst = appendU64(appendU64(appendU32(appendU16(dst, c.WireType), c.Root), c.Sum), c.Digest)
	}
	return dst
}

// members reads uuids to the end. A list that is too long, or ends within a uuid,
// is damaged.
func (r *reader) members() []UUID {
	n := len(r.b) / minUUID
	if n > MaxMembers || len(r.b)%minUUID != 0 {
		r.short = true
		return nil
	}
	var out []UUID
	for range n {
		out = append(out, r.uuid())
	}
	return out
}

// call reads a kind of collective. The kind of an all-reduce has no entry, so one
// that says it says nothing.
func (r *reader) call() Call {
	c := Call{Kind: r.u8(), Flags: CallFlags(r.u8()), WireType: r.u16(), Root: r.u32(), Sum: r.u64(), Digest: r.u64()}
	if c.Kind == 0 {
		return Call{}
	}
	return c
}
