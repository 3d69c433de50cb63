package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/topo/topofile"
	"github.com/gopccl/gopccl/internal/plan"
)

func newTopologyExplainCmd() *cobra.Command {
	var rtt time.Duration
	var delays string
	cmd := &cobra.Command{
		Use:   "explain [FILE]",
		Short: "Say which plan an all-reduce takes, by size, and why",
		Long: `Compare the plans of an all-reduce: along the ring, directly from each member to each
other one, and over trees: stars and grids for small ones of many members, unequal
parts ("shares"), slow members behind others, members that pass on what others cannot
send ("relays"), and sums inside of sites first.

Without FILE the master (peer.master of the configuration) is asked for the ring and the
bandwidths of a group (peer.group). FILE is a bandwidth matrix as topology solve reads
it; where it has no link, nothing is sent; the ring is the best one that is found in a
second.

The master does not tell round trips to observers. --rtt says how long one is, and is
taken for all of them: the answer is what the master would choose if that were so.
--delays names a file with all of them, as a matrix like FILE, in milliseconds. Without
either the times of no plan are known. Here plans of large ones need rates that
were measured (OptimizeTopology); what members have shown in all-reduces, by which the
master plans as well, it tells its log and the members alone. Sites are not known from
one round trip. In a group with a PCCL peer all
all-reduces go along the ring; so do quantized ones. What an all-reduce took in a run
is in its ReduceInfo (Plan, Why).`,
		Example: `  gopccl topology explain --master 10.0.0.1:48148
  gopccl topology explain --rtt 80ms
  gopccl topology explain matrix.json --delays roundtrips.csv`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if rtt < 0 || rtt > time.Minute {
				return errs.New(errs.InvalidConfig, "explain topology", fmt.Errorf("--rtt %v: it is more than 0s, and at most 1m", rtt))
			}
			var m measured
			if len(args) == 1 {
				m, err = ringOf(cmd.Context(), args[0])
			} else {
				m, err = askMaster(cmd.Context(), c)
			}
			if err != nil {
				return err
			}
			ways := m.sameDelay(rtt)
			if delays != "" {
				if ways, err = m.readDelays(delays); err != nil {
					return err
				}
			}
			return m.explainWith(cmd.OutOrStdout(), ways)
		},
	}
	fl := cmd.Flags()
	fl.String("master", "", "`HOST:PORT` of the master (default 127.0.0.1:48148)")
	peerFlags(cmd)
	fl.DurationVar(&rtt, "rtt", 0, "`DURATION` of a round trip between two peers, taken for all of them")
	fl.StringVar(&delays, "delays", "", "`FILE` with the round trips between all peers, in milliseconds")
	return cmd
}

// ringOf reads a bandwidth matrix, and finds a ring in it.
func ringOf(ctx context.Context, file string) (m measured, err error) {
	f, err := topofile.Open(file)
	if err != nil {
		return m, err
	}
	s, err := topo.Lookup("auto")
	if err != nil {
		return m, err
	}
	found, err := solve(ctx, s, f, topo.Problem{Matrix: f.Matrix, Objective: topo.BottleneckThenSum}, time.Second, io.Discard)
	if err != nil {
		return m, err
	}
	m = measured{Name: f.Name, N: f.Matrix.N, Ring: found.Ring, whole: true}
	for i := range m.N {
		row := make([]*float64, m.N)
		for j := range m.N {
			if v, ok := f.Matrix.At(i, j); ok {
				row[j] = &v
			}
		}
		m.Mbps = append(m.Mbps, row)
	}
	return m, nil
}

// sameDelay returns one-way delays that are all half of a round trip; nil: it is not known.
func (m measured) sameDelay(rtt time.Duration) []time.Duration {
	if rtt == 0 {
		return nil
	}
	return slices.Repeat([]time.Duration{rtt / 2}, m.N*m.N)
}

// readDelays reads the round trips of a file.
func (m measured) readDelays(file string) ([]time.Duration, error) {
	f, err := topofile.Open(file)
	if err != nil {
		return nil, err
	}
	if f.Matrix.N != m.N {
		return nil, errs.New(errs.InvalidConfig, "explain topology", fmt.Errorf("--delays %s: round trips of %d peers, and %d take part", file, f.Matrix.N, m.N))
	}
	list := slices.Repeat([]time.Duration{-1}, m.N*m.N)
	for i := range m.N {
		for j := range m.N {
			if ms, ok := f.Matrix.At(i, j); ok {
				list[i*m.N+j] = time.Duration(min(ms, 60_000) * float64(time.Millisecond) / 2)
			}
		}
	}
	return list, nil
}

// explainedSizes are those of the table, in bytes.
var explainedSizes = []uint64{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}

// explain is explainWith round trips that are all the same, 0: not known.
func (m measured) explain(out io.Writer, rtt time.Duration) error {
	return m.explainWith(out, m.sameDelay(rtt))
}

// explainWith compares the plans of an all-reduce in the group, as far as it is known, with
// these delays from each to each other one; nil: they are not known.
func (m measured) explainWith(out io.Writer, delays []time.Duration) error {
	p := plan.Problem{N: m.N, Ring: m.Ring, Delay: slices.Clone(delays)}
	if p.Delay == nil {
		p.Delay = make([]time.Duration, m.N*m.N)
	}
	rates := make([]float64, m.N*m.N)
	for i := range m.N {
		for j := range m.N {
			switch at := i*m.N + j; {
			case i < len(m.Mbps) && j < len(m.Mbps[i]) && m.Mbps[i][j] != nil:
				rates[at] = *m.Mbps[i][j]
			case i != j && m.whole:
				rates[at], p.Delay[at] = -1, -1
			}
		}
	}
	p.Mbps, p.Rates = plan.Slowest(rates, m.N), rates
	meshed := m.N <= plan.MostMeshed && !slices.Contains(rates, -1)
	c, large := plan.Choose(p), plan.Options{}
	if delays != nil && len(m.Ring) == m.N {
		large = plan.Small(p, meshed).With(plan.Large(p))
	}
	if !meshed {
		c.Most = 0
	}

	how := "not measured, this is assumed"
	if p.Mbps > 0 {
		how = "as measured, at best"
	}
	var wrong error
	say := func(format string, args ...any) {
		_, err := fmt.Fprintf(out, format+"\n", args...)
		wrong = errors.Join(wrong, err)
	}
	say("%s: %d peers", m.Name, m.N)
	say("rate      %.4g Mbit/s of the slowest peer (%s)", c.Mbps, how)
	switch {
	case m.N < 3:
		say("ring      for all sizes: between %d peers there is no other plan", m.N)
		return wrong
	case len(m.Ring) != m.N:
		say("ring      not known: a round is under way, ask again after it")
		return wrong
	case delays == nil:
		say("missing   round trips: the master does not tell them; with --rtt DURATION or --delays FILE the plans are compared")
		return wrong
	case c.Most == 0 && len(large.List) == 0 && !meshed:
		say("ring      for all sizes: no plan is predicted to be faster by a tenth")
	case c.Most == 0 && len(large.List) == 0:
		say("ring      for all sizes: %s", c.Why())
	case !meshed:
		say("ring      for other sizes, and where the group has a PCCL peer or the operation is quantized")
	case c.Most == 0:
		say("ring      for other sizes, and where the group has a PCCL peer or the operation is quantized: %s", c.Why())
	default:
		say("direct    up to %d bytes: %s", c.Most, c.Why())
		say("ring      above, and where the group has a PCCL peer or the operation is quantized")
	}
	for i := range large.List {
		o := &large.List[i]
		name := "ring"
		if o.Scheme != nil {
			name = o.Scheme.Name
		}
		say("%-9s from %d bytes: %s", name, o.From, large.Why(o, o.From))
	}
	say("")
	wrong = errors.Join(wrong, m.predict(out, c, &large, meshed))
	say("")
	for _, size := range []uint64{1 << 10, 256 << 10, 16 << 20} {
		list := plan.Compared(p, meshed, size)
		if len(list) == 0 {
			continue
		}
		var others []string
		for i, x := range list {
			if i < 4 || x.Name == "ring" {
				others = append(others, fmt.Sprintf("%s %s", x.Name, millis(x.At(size))))
			}
		}
		bound := ""
		if b := plan.Bound(p, size); b > 0 && size >= plan.LeastLarge {
			bound = fmt.Sprintf("; no plan sends the bytes in less than %s", millis(b))
		}
		say("%-9s of %d plans: %s%s", conf.Bytes(size), len(list), strings.Join(others, ", "), bound)
	}
	return wrong
}

// predict writes how long each plan takes by size, and marks the one that is used.
func (m measured) predict(out io.Writer, c plan.Choice, large *plan.Options, meshed bool) error {
	sizes := explainedSizes
	if c.Most > 0 && !slices.Contains(sizes, c.Most) {
		sizes = append(slices.Clone(sizes), c.Most)
		slices.Sort(sizes)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "bytes\tring\tdirect\ttrees\tplan\t\n")
	for _, n := range sizes {
		ring, direct := c.Predict(n, m.N)
		name := "ring"
		if n <= c.Most {
			name = "direct"
		}
		trees := "-"
		if o := large.For(n); o != nil {
			name, trees, ring = o.Scheme.Name, millis(o.At(n)), large.Ring.At(n)
		}
		exchange := "-"
		if meshed {
			exchange = millis(direct)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", conf.Bytes(n), millis(ring), exchange, trees, name)
	}
	return w.Flush()
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }
