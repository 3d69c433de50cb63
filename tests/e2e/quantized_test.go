package e2e

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
)

// quantizations are those of the quantizers that are built in, one of each.
var quantizations = []core.Quantize{
	{Algorithm: "minmax", Type: dtype.Uint8}, {Algorithm: "zeropoint", Type: dtype.Int16}, inBlocks,
}

func wireBytes(t *testing.T, z core.Quantize, count int) uint64 {
	q, err := quant.Lookup(z.Algorithm)
	require.NoError(t, err)
	return uint64(quant.FormOf(q, dtype.Float32, z.Type).Size(count))
}

// Quantized gathers and reductions by blocks, in and out of place, with equal and unequal
// blocks, begun early and not, two at once: all members have the bits that the quantizer
// gives, and send the encoded blocks and no more.
func TestQuantizedCollectives(t *testing.T) {
	const n = 4
	for name, early := range map[string]int{"eager": 0, "not eager": -1} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			comms := world(t, ctx, localMaster(t), n, func(_ int, o *core.Options) { o.EagerBytes = early })
			for _, z := range quantizations {
				for _, counts := range [][]int{{1, 1, 1, 1}, {500, 0, 77, 1}, {60_000, 60_000, 60_000, 60_000}} {
					testQuantized(t, ctx, comms, z, counts)
				}
			}
		})
	}
}

func testQuantized(t *testing.T, ctx context.Context, comms []*core.Communicator, z core.Quantize, counts []int) {
	const n = 4
	total := counts[0] + counts[1] + counts[2] + counts[3]
	value := func(member, k int) float32 { return float32(math.Sin(float64(member+1) * float64(k+1))) }
	var gathered, places [n][]float32
	var sent [n][2]uint64
	for _, err := range each(comms, func(i int, c *core.Communicator) error {
		me := c.Attributes().Index
		at := 0
		for _, count := range counts[:me] {
			at += count
		}
		all, src, place := make([]float32, total), make([]float32, counts[me]), make([]float32, total)
		for k := range place {
			place[k] = value(me, k)
		}
		copy(src, place[at:])
		gathered[me], places[me] = all, place[at:at+counts[me]]
		gather, err := c.CollectAsync(ctx, core.Collective{
			Kind: core.KindAllGather, Tag: 1, Src: dtype.AsBytes(src), Dst: dtype.AsBytes(all), Counts: counts, DType: dtype.Float32, Quantize: z,
		})
		if err != nil {
			return err
		}
		reduce, err := c.CollectAsync(ctx, core.Collective{
			Kind: core.KindReduceScatter, Tag: 2, Src: dtype.AsBytes(place), Dst: dtype.AsBytes(places[me]), Counts: counts,
			DType: dtype.Float32, Op: core.Avg, Quantize: z,
		})
		if err != nil {
			return err
		}
		for k, h := range []*core.Handle{gather, reduce} {
			info, err := h.Wait(ctx)
			if err != nil {
				return err
			}
			sent[me][k] = info.TxBytes
		}
		for k, v := range src {
			if v != value(me, at+k) {
				return fmt.Errorf("element %d of the source was written", k)
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	at, least := 0, uint64(0)
	var own [][]float32 // blocks that are gathered
	rings := ringsOf(n) // that all sums may have come by
	for m, count := range counts {
		parts := make([][]float32, n)
		for i := range parts {
			for k := range count {
				parts[i] = append(parts[i], value(i, at+k))
			}
		}
		own = append(own, parts[m])
		rings = slices.DeleteFunc(rings, func(ring []int) bool {
			mean := sumOf(z, ring, parts, m)
			for k := range mean {
				mean[k] /= n
			}
			return !slices.Equal(mean, places[m])
		})
		at += count
		least += wireBytes(t, z, count)
	}
	require.True(t, slices.Equal(gatheredOf(z, own), gathered[0]), "%v: what was gathered is not what the owners have encoded", z)
	require.NotEmpty(t, rings, "%v: no ring gives these sums", z)
	var all [2]uint64
	for m := range n {
		require.True(t, slices.Equal(gathered[0], gathered[m]), "%v: member %d has other bits", z, m)
		all[0], all[1] = all[0]+sent[m][0], all[1]+sent[m][1]
		require.Equal(t, least-wireBytes(t, z, counts[m]), sent[m][1], "%v: member %d", z, m)
	}
	require.Equal(t, []uint64{(n - 1) * least, (n - 1) * least}, all[:], "%v", z)
}

// Members that pass different quantizations are all told so, and nothing is written.
func TestMismatchOfQuantizations(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 3, nil)
	for name, other := range map[string]core.Quantize{
		"quantizer": {Algorithm: "zeropoint", Type: dtype.Uint8},
		"type":      {Algorithm: "minmax", Type: dtype.Uint16},
		"none":      {},
		"groups":    inBlocks,
	} {
		for _, kind := range []core.Kind{core.KindAllGather, core.KindReduceScatter} {
			for rank, err := range each(c, func(_ int, c *core.Communicator) error {
				me := c.Attributes().Index
				call := callOf(kind, 3, me, 0, 400)
				call.Quantize = quantizations[0]
				if me == 2 {
					call.Quantize = other
				}
				before := kept(call)
				_, err := c.Collect(ctx, call)
				if fmt.Sprint(before) != fmt.Sprint(kept(call)) {
					return fmt.Errorf("the buffers were written: %w", err)
				}
				return err
			}) {
				require.Equal(t, errs.Mismatch, errs.CodeOf(err), "%s, kind %d, peer %d: %v", name, kind, rank, err)
				require.ErrorContains(t, err, "called with different quantizations:", name)
				require.ErrorContains(t, err, "uint8 by minmax", name)
				require.NotContains(t, err.Error(), "the buffers were written")
			}
		}
	}
	for _, err := range each(c, func(_ int, c *core.Communicator) error { return everyKind(ctx, c, 10, 1) }) {
		require.NoError(t, err)
	}
}

func quantizedGather() core.Collective {
	return core.Collective{Kind: core.KindAllGather, Src: make([]byte, 8), Dst: make([]byte, 16), DType: dtype.Float32, Op: core.Sum, Quantize: quantizations[0]}
}

// What a quantizer cannot do is refused at the launch.
func TestQuantizedCollectivesAreRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 2, nil)[0]
	for says, change := range map[string]func(*core.Collective){
		"unknown quantizer":                           func(c *core.Collective) { c.Quantize.Algorithm = "gzip" },
		"minmax quantizes float32 and float64":        func(c *core.Collective) { c.DType = dtype.Int32 },
		"minmax quantizes to uint8, uint16 or uint32": func(c *core.Collective) { c.Quantize.Type = dtype.Float32 },
		"a quantizer belongs to an all-reduce":        func(c *core.Collective) { c.Kind, c.Dst = core.KindReduce, make([]byte, 8) },
	} {
		wrong := quantizedGather()
		change(&wrong)
		_, err := c.Collect(ctx, wrong)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), err)
		require.ErrorContains(t, err, says)
	}
}

// Beside a PCCL peer the kind is refused, quantized as well as not.
func TestQuantizedBesidePCCL(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := besidePCCL(t, ctx, localMaster(t)).Collect(ctx, quantizedGather())
	require.Equal(t, errs.Unsupported, errs.CodeOf(err), err)
	require.ErrorContains(t, err, "is a PCCL peer")
}
