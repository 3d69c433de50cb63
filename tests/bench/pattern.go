package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/tests/internal/moves"
)

// barrier is the pattern without data.
const barrier = "barrier"

// reduces reports whether the options ask for all-reduces.
func (o options) reduces() bool {
	return o.patterns == "" || o.patterns == "all" || slices.Contains(strings.Split(o.patterns, ","), plan.AllReduce.String())
}

// chosenPatterns are those besides all-reduce that the options ask for.
func (o options) chosenPatterns() (names []string, err error) {
	switch {
	case o.patterns == "all", o.patterns == "" && o.sizes == "":
		return moves.Names(), nil
	case o.patterns == "":
		return nil, nil
	}
	for name := range strings.SplitSeq(o.patterns, ",") {
		if name == plan.AllReduce.String() {
			continue
		}
		if _, err := moves.KindOf(name); err != nil {
			return nil, fmt.Errorf("-pattern: %w", err)
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

// blocks are the buffers of one member.
type blocks struct{ *moves.Buffers }

func newBlocks(pattern string, world, me, bytes int) (*blocks, error) {
	b, err := moves.New(pattern, world, me, bytes)
	return &blocks{b}, err
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
		pair := small
		pair.World = 2
		if k == plan.AllGather || k == plan.ReduceScatter || k == plan.Reduce {
			list = append(list, target{small, nameGloo, "time", 2, true}, target{pair, nameGloo, "time", 2, true})
		} else {
			list = append(list, target{small, nameGloo, "time", 1, true}, target{pair, nameGloo, "behind", 1e-3, false})
		}
	}
	list = append(list, target{job{World: 2, Quantize: "none", Concurrent: 1, Pattern: barrier}, nameOurs, "took", 0.6e-3, false})
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
