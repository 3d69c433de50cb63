package plan

import "fmt"

// Kind is what a collective operation promises. Its number is the one on the wire.
type Kind uint8

const (
	AllReduce Kind = iota
	AllGather
	ReduceScatter
	Broadcast
	Reduce
	Gather
	Scatter
	AllToAll
	Barrier // no data: the vote and its verdict are all

	// NumKinds is the number of kinds; every Kind is below it.
	NumKinds = 9
)

var kindNames [NumKinds]string = [...]string{
	"all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "gather", "scatter", "all-to-all", "barrier",
}

// Valid reports whether k is one of the kinds.
func (k Kind) Valid() bool { return k < NumKinds }

// String returns the field's name of the kind, such as "all-gather".
func (k Kind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("collective %d", uint8(k))
	}
	return kindNames[k]
}

// Rooted reports whether one member has a part of its own: the root.
func (k Kind) Rooted() bool {
	return k == Broadcast || k == Reduce || k == Gather || k == Scatter
}

// Combines reports whether data of several members is combined, so that the element
// type and the reduce operation matter; the others move bytes.
func (k Kind) Combines() bool { return k == AllReduce || k == ReduceScatter || k == Reduce }

// Direct reports whether the members exchange blocks in pairs, for which they want a
// mesh. Over a ring each block passes through the members between.
func (k Kind) Direct() bool { return k == Gather || k == Scatter || k == AllToAll }
