// Package moves has what programs need that measure the collectives besides all-reduce:
// their names, buffers with data, and what a member must have behind them. The program of
// tests/internal/gloo has the same data.
package moves

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/plan"
)

// Names are the collectives besides all-reduce.
func Names() (names []string) {
	for k := plan.AllReduce + 1; k.Valid(); k++ {
		names = append(names, k.String())
	}
	return names
}

// KindOf returns the collective of a name.
func KindOf(name string) (plan.Kind, error) {
	at := slices.Index(Names(), name)
	if at < 0 {
		return 0, fmt.Errorf("%q is none of the collectives %s", name, strings.Join(Names(), ", "))
	}
	return plan.AllReduce + 1 + plan.Kind(at), nil
}

// Buffers are those of one member of a collective, in elements. Member 0 is the root.
type Buffers struct {
	Kind      plan.Kind
	World, Me int
	Count     int // of the buffer that has the blocks of all, or of the one buffer
	Src, Dst  []float32
}

// New makes buffers whose larger one has at most so many bytes, in whole blocks.
func New(name string, world, me, bytes int) (*Buffers, error) {
	kind, err := KindOf(name)
	if err != nil {
		return nil, err
	}
	b := &Buffers{Kind: kind, World: world, Me: me, Count: max(bytes/4/world, 1) * world}
	own := b.Count / world
	src, dst := 0, 0
	switch root := me == 0; kind {
	case plan.AllGather:
		src, dst = own, b.Count
	case plan.ReduceScatter:
		src, dst = b.Count, own
	case plan.Broadcast:
		if src = b.Count; !root {
			src, dst = 0, b.Count
		}
	case plan.Reduce:
		if src = b.Count; root {
			dst = b.Count
		}
	case plan.Gather:
		if src = own; root {
			dst = b.Count
		}
	case plan.Scatter:
		if dst = own; root {
			src = b.Count
		}
	case plan.AllToAll:
		src, dst = b.Count, b.Count
	}
	b.Src, b.Dst = make([]float32, src), make([]float32, dst)
	for i := range b.Src {
		b.Src[i] = value(i, me)
	}
	return b, nil
}

// value is element i of the source of a member. Sums of them are exact.
func value(i, member int) float32 { return float32(i%8191 + 10000*member) }

// Want is element i of the destination.
func (b *Buffers) Want(i int) (v float32) {
	own := b.Count / b.World
	switch b.Kind {
	case plan.AllGather, plan.Gather:
		return value(i%own, i/own)
	case plan.Broadcast:
		return value(i, 0)
	case plan.Scatter:
		return value(b.Me*own+i, 0)
	case plan.AllToAll:
		return value(b.Me*own+i%own, i/own)
	case plan.ReduceScatter:
		i += b.Me * own
	}
	for m := range b.World {
		v += value(i, m)
	}
	return v
}

// Check looks at elements all over the destination.
func (b *Buffers) Check() error {
	for i := 0; i < len(b.Dst); i += max(1, len(b.Dst)/10007) {
		if got, want := b.Dst[i], b.Want(i); got != want {
			return fmt.Errorf("wrong result of %v: element %d of %d at member %d is %v, want %v", b.Kind, i, len(b.Dst), b.Me, got, want)
		}
	}
	return nil
}

// Chunk returns the bytes of what a plan of the collective calls a chunk.
func (b *Buffers) Chunk() int {
	if b.Kind == plan.Broadcast || b.Kind == plan.Reduce {
		return 4 * b.Count
	}
	return 4 * (b.Count / b.World)
}

// Call describes the collective, which is a sum where it reduces. A barrier has a call of its own.
func (b *Buffers) Call() core.Collective {
	return core.Collective{Kind: core.Kind(b.Kind), Src: dtype.AsBytes(b.Src), Dst: dtype.AsBytes(b.Dst), DType: dtype.Float32, Op: core.Sum}
}
