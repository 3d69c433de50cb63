package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
)

func newTopologyExplainCmd() *cobra.Command {
	var rtt time.Duration
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Say which plan an all-reduce takes, by size, and why",
		Long: `Ask the master (peer.master of the configuration) for the ring and the bandwidths
of a group (peer.group), and compare the plans of an all-reduce: along the ring,
directly from each member to each other one, and for large ones over trees: with more
for members with fast links to do ("shares"), or summed up inside of sites first.

The master does not tell round trips to observers. --rtt says how long one is, and is
taken for all of them: the answer is what the master would choose if that were so.
Without it the times of no plan are known. Here plans of large ones need rates that
were measured (OptimizeTopology); what members have shown in all-reduces, by which the
master plans as well, it tells its log and the members alone. Sites are not known from
one round trip. In a group with a PCCL peer all
all-reduces go along the ring; so do quantized ones. What an all-reduce took in a run
is in its ReduceInfo (Plan, Why).`,
		Example: `  gopccl topology explain --master 10.0.0.1:48148
  gopccl topology explain --rtt 80ms`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if rtt < 0 || rtt > time.Minute {
				return errs.New(errs.InvalidConfig, "explain topology", fmt.Errorf("--rtt %v: it is more than 0s, and at most 1m", rtt))
			}
			m, err := askMaster(cmd.Context(), c)
			if err != nil {
				return err
			}
			return m.explain(cmd.OutOrStdout(), rtt)
		},
	}
	fl := cmd.Flags()
	fl.String("master", "", "`HOST:PORT` of the master (default 127.0.0.1:48148)")
	peerFlags(cmd)
	fl.DurationVar(&rtt, "rtt", 0, "`DURATION` of a round trip between two peers, taken for all of them")
	return cmd
}

// explainedSizes are those of the table, in bytes.
var explainedSizes = []uint64{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}

// explain compares the plans of an all-reduce in the group, as far as it is known; rtt
// is between each two peers, 0: not known.
func (m measured) explain(out io.Writer, rtt time.Duration) error {
	p := plan.Problem{N: m.N, Ring: m.Ring, Delay: make([]time.Duration, m.N*m.N)}
	for i := range p.Delay {
		p.Delay[i] = rtt / 2
	}
	rates := make([]float64, m.N*m.N)
	for i, row := range m.Mbps {
		for j, v := range row {
			if v != nil {
				rates[i*m.N+j] = *v
			}
		}
	}
	p.Mbps, p.Rates = plan.Slowest(rates, m.N), rates
	c, large := plan.Choose(p), plan.Large(p)

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
	case rtt == 0:
		say("missing   round trips: the master does not tell them; with --rtt DURATION the plans are compared")
		return wrong
	case c.Most == 0 && len(large.List) == 0:
		say("ring      for all sizes: %s", c.Why())
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
	return errors.Join(wrong, m.predict(out, c, &large))
}

// predict writes how long each plan takes by size, and marks the one that is used.
func (m measured) predict(out io.Writer, c plan.Choice, large *plan.Options) error {
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", conf.Bytes(n), millis(ring), millis(direct), trees, name)
	}
	return w.Flush()
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }
