package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gopccl/gopccl/internal/plan"
)

// barrier is the pattern without data.
const barrier = "barrier"

// patternNames are the collectives besides all-reduce.
func patternNames() (names []string) {
	for k := plan.AllReduce + 1; k.Valid(); k++ {
		names = append(names, k.String())
	}
	return names
}

func kindOf(pattern string) (plan.Kind, error) {
	at := slices.Index(patternNames(), pattern)
	if at < 0 {
		return 0, fmt.Errorf("-pattern %q: want all-reduce, all, or some of %s", pattern, strings.Join(patternNames(), ", "))
	}
	return plan.AllReduce + 1 + plan.Kind(at), nil
}

// reduces reports whether the options ask for all-reduces.
func (o options) reduces() bool {
	return o.patterns == "" || o.patterns == "all" || slices.Contains(strings.Split(o.patterns, ","), plan.AllReduce.String())
}

// chosenPatterns are those besides all-reduce that the options ask for.
func (o options) chosenPatterns() (names []string, err error) {
	switch {
	case o.patterns == "all", o.patterns == "" && o.sizes == "":
		return patternNames(), nil
	case o.patterns == "":
		return nil, nil
	}
	for name := range strings.SplitSeq(o.patterns, ",") {
		if name == plan.AllReduce.String() {
			continue
		}
		if _, err := kindOf(name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// patternJobs are those of a world; sizes that nobody has chosen are a small and a large one.
func patternJobs(world int, names []string, sizes []int, chosen bool) (jobs []job) {
	if !chosen {
		sizes = []int{400000, 64 << 20}
	}
	for _, name := range names {
		for i, n := range sizes {
			if name == barrier {
				n = 0
			}
			if i == 0 || name != barrier {
				jobs = append(jobs, job{World: world, Bytes: n, Quantize: "none", Concurrent: 1, Pattern: name})
			}
		}
	}
	return jobs
}

// blocks are the buffers of one member of a collective, in elements. Member 0 is the root.
type blocks struct {
	kind      plan.Kind
	world, me int
	count     int // of the buffer that has the blocks of all, or of the one buffer
	src, dst  []float32
}

// newBlocks makes buffers whose larger one has at most so many bytes, in whole blocks.
func newBlocks(pattern string, world, me, bytes int) (*blocks, error) {
	kind, err := kindOf(pattern)
	if err != nil {
		return nil, err
	}
	b := &blocks{kind: kind, world: world, me: me, count: max(bytes/4/world, 1) * world}
	own := b.count / world
	src, dst := 0, 0
	switch root := me == 0; kind {
	case plan.AllGather:
		src, dst = own, b.count
	case plan.ReduceScatter:
		src, dst = b.count, own
	case plan.Broadcast:
		if src = b.count; !root {
			src, dst = 0, b.count
		}
	case plan.Reduce:
		if src = b.count; root {
			dst = b.count
		}
	case plan.Gather:
		if src = own; root {
			dst = b.count
		}
	case plan.Scatter:
		if dst = own; root {
			src = b.count
		}
	case plan.AllToAll:
		src, dst = b.count, b.count
	}
	b.src, b.dst = make([]float32, src), make([]float32, dst)
	for i := range b.src {
		b.src[i] = value(i, me)
	}
	return b, nil
}

// value is element i of the source of a member. Sums of them are exact.
func value(i, member int) float32 { return float32(i%8191 + 10000*member) }

// want is element i of the destination.
func (b *blocks) want(i int) (v float32) {
	own := b.count / b.world
	switch b.kind {
	case plan.AllGather, plan.Gather:
		return value(i%own, i/own)
	case plan.Broadcast:
		return value(i, 0)
	case plan.Scatter:
		return value(b.me*own+i, 0)
	case plan.AllToAll:
		return value(b.me*own+i%own, i/own)
	case plan.ReduceScatter:
		i += b.me * own
	}
	for m := range b.world {
		v += value(i, m)
	}
	return v
}

// check looks at elements all over the destination.
func (b *blocks) check() error {
	for i := 0; i < len(b.dst); i += max(1, len(b.dst)/10007) {
		if got, want := b.dst[i], b.want(i); got != want {
			return fmt.Errorf("wrong result of %v: element %d of %d at member %d is %v, want %v", b.kind, i, len(b.dst), b.me, got, want)
		}
	}
	return nil
}

// patternTargets are the marks of the collectives besides all-reduce.
func patternTargets() (list []target) {
	large := func(k plan.Kind) job {
		return job{World: 4, Bytes: 64 << 20, Quantize: "none", Concurrent: 1, Pattern: k.String()}
	}
	for k, least := range map[plan.Kind]float64{
		plan.AllGather: 2.5, plan.ReduceScatter: 2.5, plan.Gather: 2, plan.Reduce: 1.2,
		plan.Broadcast: 1 / 1.05, plan.Scatter: 1 / 1.05, plan.AllToAll: 1 / 1.05,
	} {
		list = append(list, target{large(k), nameGloo, "time", least, true}, target{large(k), nameFloor, "time", 1 / 1.3, true})
		small := large(k)
		small.Bytes = 400000
		if least >= 1.2 && k != plan.Gather {
			list = append(list, target{small, nameGloo, "time", 2, true})
			small.World = 2
			list = append(list, target{small, nameGloo, "time", 2, true})
		} else {
			list = append(list, target{small, nameGloo, "time", 1, true})
		}
	}
	slices.SortFunc(list, func(a, b target) int { return strings.Compare(a.job.String()+a.who, b.job.String()+b.who) })
	return list
}

// others is the table of the collectives besides all-reduce.
func (r results) others() string {
	var b strings.Builder
	names := slices.DeleteFunc(r.present(), func(n string) bool { return n == namePCCL })
	for _, c := range r.Cases {
		if c.Pattern == "" {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("\nOther collectives, float32. The size is that of the buffer with the blocks of all, or of the one buffer. Times are those of the last member to finish; in brackets how many times as long as gopccl it took, and the time of member 0, the root, for which some libraries are done before the others.\n\n| |")
			for _, n := range names {
				b.WriteString(" " + titles[n] + " |")
			}
			b.WriteString("\n|---|" + strings.Repeat("---:|", len(names)) + "\n")
		}
		fmt.Fprintf(&b, "| %v |", c.job)
		for _, n := range names {
			e, ok := c.Entries[n]
			switch {
			case !ok:
				b.WriteString(" |")
			case n == nameOurs:
				fmt.Fprintf(&b, " %s (%s) |", seconds(e.Median), seconds(e.Root))
			default:
				fmt.Fprintf(&b, " %s (%s, %s) |", seconds(e.Median), times(e.Ratio), seconds(e.Root))
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
