package bench

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
)

// kindNames are the kinds that can be measured, by number; the one without a core.Kind
// is the barrier.
var kindNames = [...]string{
	"barrier", core.KindAllGather: "all-gather", core.KindReduceScatter: "reduce-scatter", core.KindBroadcast: "broadcast",
	core.KindReduce: "reduce", core.KindGather: "gather", core.KindScatter: "scatter", core.KindAllToAll: "all-to-all",
}

// KindNames returns the names of all kinds of collectives besides all-reduce.
func KindNames() []string { return append(slices.Clone(kindNames[1:]), kindNames[0]) }

// ParseKind returns the kind with a name; ok is false if there is none.
func ParseKind(name string) (k core.Kind, ok bool) {
	i := slices.Index(kindNames[:], name)
	return core.Kind(max(i, 0)), i >= 0
}

// Exchange is one job: a collective besides all-reduce. Count elements are in the buffer
// of all blocks, or in that of a broadcast or reduce; member 0 is the root. Kind 0 is the
// barrier.
type Exchange struct {
	Kind     core.Kind
	Count    int
	DType    dtype.Type
	Quantize core.Quantize // of all-gather and reduce-scatter
	Rounds   int           // timed, after one that warms up and is verified
}

// Bytes of the buffer of all blocks.
func (j Exchange) Bytes() int {
	if j.Kind == 0 {
		return 0
	}
	return j.Count * j.DType.Size()
}

// fill makes the buffers of member me of n.
func (j Exchange) fill(n, me int) core.Collective {
	c := core.Collective{Kind: j.Kind, DType: j.DType, Op: core.Sum, Quantize: j.Quantize}
	size := j.DType.Size()
	whole, own := j.Count*size, j.Count/n*size
	var src, dst int
	switch root := me == 0; j.Kind {
	case core.KindAllGather:
		src, dst = own, whole
	case core.KindReduceScatter:
		src, dst = whole, own
	case core.KindBroadcast:
		src = whole
	case core.KindReduce:
		src, dst = whole, whole
	case core.KindGather:
		src, dst = own, whole
	case core.KindScatter:
		src, dst = 0, own
		if root {
			src = whole
		}
	case core.KindAllToAll:
		src, dst = whole, whole
	}
	c.Src, c.Dst = make([]byte, src), make([]byte, dst)
	for i := range src / size {
		put(j.DType, c.Src, i, element(i, me))
	}
	if j.Kind == core.KindBroadcast {
		c.Dst = c.Src
	}
	return c
}

// want is element i of dst of member me of n.
func (j Exchange) want(n, me, i int) (v int) {
	block := j.Count / n
	switch j.Kind {
	case core.KindAllGather, core.KindGather:
		return element(i%block, i/block)
	case core.KindBroadcast:
		return element(i, 0)
	case core.KindScatter:
		return element(me*block+i, 0)
	case core.KindAllToAll:
		return element(me*block+i%block, i/block)
	case core.KindReduceScatter:
		i += me * block
	}
	for p := range n {
		v += element(i, p)
	}
	if j.DType.Size() == 1 { // world sizes above 255 wrap
		v &= 0xff
	}
	return v
}

// verify compares what the warm-up round has left with what it must be.
func (j Exchange) verify(n, me int, got []byte) error {
	if me != 0 && (j.Kind == core.KindReduce || j.Kind == core.KindGather) {
		return nil
	}
	tolerance := lost(j.Quantize, n)
	for i := range len(got) / j.DType.Size() {
		if v, want := get(j.DType, got, i), j.want(n, me, i); !(math.Abs(v-float64(want)) <= tolerance) {
			return fmt.Errorf("wrong result of %s: element %d at member %d is %v, want %d", kindNames[j.Kind], i, me, v, want)
		}
	}
	return nil
}

func (j Exchange) run(ctx context.Context, comm *core.Communicator) (Report, error) {
	var rep Report
	n, me := comm.Attributes().LocalWorldSize, comm.Attributes().Index
	round := func() error { return comm.Barrier(ctx) }
	if j.Kind != 0 {
		c := j.fill(n, me)
		round = func() error {
			info, err := comm.Collect(ctx, c)
			rep.Tx, rep.Rx = info.TxBytes, info.RxBytes
			return err
		}
		if err := round(); err != nil {
			return rep, err
		}
		if err := j.verify(n, me, c.Dst); err != nil {
			return rep, err
		}
	} else if err := round(); err != nil {
		return rep, err
	}
	for range j.Rounds {
		if err := barrier(ctx, comm); err != nil {
			return rep, err
		}
		c := startClock()
		if err := round(); err != nil {
			return rep, err
		}
		c.stop(&rep)
	}
	return rep, nil
}

// ExchangeResult is one line of `gopccl bench collective`. Seconds are those of the
// slowest peer in each round, rx_bytes and tx_bytes the payload bytes of one peer in one
// round, the largest over the peers, and mb_per_s the bytes of all blocks by the median
// time.
type ExchangeResult struct {
	Kind     string  `json:"kind"`
	World    int     `json:"world"`
	Bytes    int     `json:"bytes"`
	DType    string  `json:"dtype"`
	Quantize string  `json:"quantize"`
	Wire     string  `json:"wire,omitempty"`
	Rounds   int     `json:"rounds"`
	Median   float64 `json:"median_s"`
	Min      float64 `json:"min_s"`
	Max      float64 `json:"max_s"`
	Rx       uint64  `json:"rx_bytes"`
	Tx       uint64  `json:"tx_bytes"`
	Rate     float64 `json:"mb_per_s"`
}

// Collective measures jobs in a world of processes and calls emit for each result.
func (w World) Collective(ctx context.Context, jobs []Exchange, emit func(ExchangeResult) error) error {
	return w.run(ctx, Order{Exchange: jobs}, func(k int, reports []Report) error {
		j, t := jobs[k], combine(reports)
		res := ExchangeResult{
			Kind: kindNames[j.Kind], World: w.Size, Bytes: j.Bytes(), DType: j.DType.String(), Rounds: j.Rounds, Quantize: j.Quantize.Algorithm,
			Median: t.median, Min: t.min, Max: t.max, Rx: t.rx, Tx: t.tx, Rate: float64(j.Bytes()) / 1e6 / t.median,
		}
		if res.Quantize == "" {
			res.Quantize = "none"
		}
		if res.Quantize != "none" {
			res.Wire = j.Quantize.Type.String()
		}
		return emit(res)
	})
}
