package ptxtest

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// clock is how much of each stream's work is known to be done: a vector clock
// with the streams' numbers as indices.
type clock []uint64

func (c clock) at(i int) uint64 {
	if i < len(c) {
		return c[i]
	}
	return 0
}

// join is what is known if both are.
func (c clock) join(o clock) clock {
	if len(c) < len(o) {
		c, o = o, c
	}
	var d clock
	for i, v := range o {
		if v > c[i] {
			if d == nil {
				d = slices.Clone(c)
			}
			d[i] = v
		}
	}
	if d == nil {
		return c
	}
	return d
}

// with is c after work n of stream i.
func (c clock) with(i int, n uint64) clock {
	d := make(clock, max(len(c), i+1))
	copy(d, c)
	d[i] = n
	return d
}

// usage is a use of a part of an allocation by a piece of work.
type usage struct {
	lo, hi uint64
	write  bool
	stream int
	n      uint64
	what   string
}

// logged bounds how many accesses of an allocation are remembered.
const logged = 1024

// note adds an access of w to what is known of an allocation. It is a fault if
// an earlier one, of which one of the two writes, is not ordered before it by
// the stream, an event, or somebody who waited for it: on a device both would
// happen in any order.
func (a *allocation) note(lo, hi uint64, write bool, w *work) *fault {
	kept := a.log[:0]
	for _, p := range a.log {
		before := p.n <= w.clock.at(p.stream)
		if !before && (write || p.write) && p.lo < hi && lo < p.hi {
			return &fault{driver.LaunchFailed, fmt.Sprintf("race: %s and %s use bytes %d to %d of an allocation of %d, and no event orders their streams",
				p.what, w.what, max(lo, p.lo), min(hi, p.hi), len(a.data))}
		}
		if !before || p.lo < lo || p.hi > hi || p.write && !write {
			kept = append(kept, p)
		}
	}
	if len(kept) >= logged {
		kept = kept[len(kept)-logged/2:]
	}
	a.log = append(kept, usage{lo, hi, write, w.stream, w.n, w.what})
	return nil
}

// footprint is the bytes of an allocation that a kernel read or wrote, a bit each.
type footprint struct {
	bits   []uint64
	lo, hi int // words that may have bits
}

//go:norace
func (f *footprint) mark(size int, at, n uint64) {
	if f.bits == nil {
		f.bits = make([]uint64, (size+63)/64)
		f.lo, f.hi = len(f.bits), 0
	}
	i := int(at >> 6)
	f.bits[i] |= (1<<n - 1) << (at & 63) // n is at most 16, and divides at
	f.lo, f.hi = min(f.lo, i), max(f.hi, i+1)
}

// spans calls each with the ranges of marked bytes, and removes the marks.
//
//go:norace
func (f *footprint) spans(each func(lo, hi uint64) *fault) *fault {
	var bad *fault
	open, from := false, uint64(0)
	for i := f.lo; i < f.hi; i++ {
		w := f.bits[i]
		f.bits[i] = 0
		base := uint64(i) * 64
		if open && w == ^uint64(0) || !open && w == 0 {
			continue
		}
		for at := 0; at < 64; {
			run := w >> at
			if open {
				run = ^run
			}
			n := bits.TrailingZeros64(run)
			if at += n; at >= 64 {
				break
			}
			if open && bad == nil {
				bad = each(from, base+uint64(at))
			}
			open, from = !open, base+uint64(at)
		}
	}
	if open && bad == nil {
		bad = each(from, uint64(f.hi)*64)
	}
	f.lo, f.hi = len(f.bits), 0
	return bad
}

// settle checks and logs what a kernel used.
func (b *block) settle(w *work) *fault {
	var bad *fault
	for _, a := range b.touched {
		a.seen = false
		for i, f := range []*footprint{&a.reads, &a.writes} {
			if got := f.spans(func(lo, hi uint64) *fault { return a.note(lo, hi, i == 1, w) }); bad == nil {
				bad = got
			}
		}
	}
	return bad
}

// watch notes an access to global memory.
//
//go:norace
func (b *block) watch(in *instr, a *allocation, at, n uint64) {
	if !a.seen {
		a.seen = true
		b.touched = append(b.touched, a)
	}
	if in.stores {
		a.writes.mark(len(a.data), at, n)
	} else {
		a.reads.mark(len(a.data), at, n)
	}
}
