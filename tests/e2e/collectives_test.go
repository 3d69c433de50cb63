package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// everyKind does one of each collective with blocks of n elements, and checks what came.
func everyKind(ctx context.Context, c *core.Communicator, n, round int) error {
	a := c.Attributes()
	members, me := len(a.Members), a.Index
	root := round % members
	// block is what member from gives to member to.
	block := func(from, to int) []float32 {
		b := make([]float32, n)
		for i := range b {
			b[i] = float32(1000*round + 100*from + 10*to + i%7)
		}
		return b
	}
	var row, column, sums []float32
	for m := range members {
		row, column = append(row, block(me, m)...), append(column, block(m, me)...)
	}
	sum := func(to int) []float32 {
		s := make([]float32, n)
		for m := range members {
			for i, v := range block(m, to) {
				s[i] += v
			}
		}
		return s
	}
	for m := range members {
		sums = append(sums, sum(m)...)
	}
	check := func(what string, got, want []float32, err error) error {
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("%s of %d with %d members: member %d has a wrong result", what, n, members, me)
		}
		return err
	}
	var gathered []float32
	for m := range members {
		gathered = append(gathered, block(m, 0)...)
	}
	all, own := make([]float32, n*members), make([]float32, n)
	if _, err := core.AllGather(ctx, c, all, block(me, 0)); check("all-gather", all, gathered, err) != nil {
		return check("all-gather", all, gathered, err)
	}
	_, err := core.ReduceScatter(ctx, c, own, row, core.Sum)
	if err := check("reduce-scatter", own, sum(me), err); err != nil {
		return err
	}
	buffer := block(me, 3)
	_, err = core.Broadcast(ctx, c, buffer, root)
	if err := check("broadcast", buffer, block(root, 3), err); err != nil {
		return err
	}
	total := slices.Clone(row)
	_, err = core.ReduceTo(ctx, c, total, total, core.Sum, root)
	want := row
	if me == root {
		want = sums
	}
	if err := check("reduce", total, want, err); err != nil {
		return err
	}
	all = make([]float32, n*members)
	_, err = core.Gather(ctx, c, all, block(me, 0), root)
	if want = make([]float32, n*members); me == root {
		want = gathered
	}
	if err := check("gather", all, want, err); err != nil {
		return err
	}
	_, err = core.Scatter(ctx, c, own, row, root)
	if err := check("scatter", own, block(root, me), err); err != nil {
		return err
	}
	if err := quantized(ctx, c, block, n, round); err != nil {
		return err
	}
	_, err = core.AllToAll(ctx, c, all, row)
	return check("all-to-all", all, column, err)
}

// quantized gathers and reduces block(me, 0) and the row of blocks by any quantizer. What
// comes back is what that gives, and inputs are as before if nothing does.
func quantized(ctx context.Context, c *core.Communicator, block func(from, to int) []float32, n, round int) error {
	a := c.Attributes()
	members, me := len(a.Members), a.Index
	z := quantizations[round%len(quantizations)]
	how := func(call *core.Collective) { call.Quantize = z }
	var gathered, parts [][]float32
	var row []float32
	for m := range members {
		gathered, parts = append(gathered, block(m, 0)), append(parts, block(m, me))
		row = append(row, block(me, m)...)
	}
	place := make([]float32, n*members)
	mine := place[me*n : (me+1)*n]
	copy(mine, gathered[me])
	if _, err := core.AllGather(ctx, c, place, mine, how); err != nil {
		if !slices.Equal(mine, gathered[me]) {
			return fmt.Errorf("the input was written: %v", err)
		}
		return err
	}
	if !slices.Equal(place, gatheredOf(z, gathered)) {
		return fmt.Errorf("%v all-gather: member %d has what the owners have not encoded", z, me)
	}
	before := slices.Clone(row)
	own := row[me*n : (me+1)*n]
	if _, err := core.ReduceScatter(ctx, c, own, row, core.Sum, how); err != nil {
		if !slices.Equal(row, before) {
			return fmt.Errorf("the input was written: %v", err)
		}
		return err
	}
	return isSum(z, own, parts, me)
}

func init() {
	roles["collectives"] = func(ctx context.Context, o order, say func(report)) error {
		comm, err := join(ctx, o)
		if err != nil {
			return err
		}
		defer comm.Close()
		for n := uint64(1); ; n++ {
			// The number of the round is the same everywhere: it is the largest that a member has.
			round, now := make([]float64, 1), []float64{float64(n)}
			_, err := core.AllReduceSlice(ctx, comm, round, now, core.Max)
			if err == nil {
				n = uint64(round[0])
				err = everyKind(ctx, comm, 20_000, int(n%50))
			}
			switch errs.CodeOf(err) {
			case errs.Success:
				say(report{Event: "step", Step: n, World: comm.Attributes().LocalWorldSize})
			case errs.RankConnectionLost:
				say(report{Event: "lost", Step: n, Text: err.Error()})
			default:
				return err
			}
		}
	}
}

// Every kind among all members, with data small enough to begin early and large enough
// not to, in groups whose members are connected with each other, or in a ring alone.
func TestEveryCollective(t *testing.T) {
	for name, bytes := range map[string]int{"eager": 0, "not eager": -1} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c := world(t, ctx, localMaster(t), 4, func(_ int, o *core.Options) { o.EagerBytes = bytes })
			for _, err := range each(c, func(_ int, c *core.Communicator) error {
				for round := range 2 {
					for _, n := range []int{1, 1000, 150_000} {
						if err := everyKind(ctx, c, n, round); err != nil {
							return err
						}
					}
				}
				return nil
			}) {
				require.NoError(t, err)
			}
			require.True(t, c[0].Attributes().Mesh)
			require.Len(t, c[0].Attributes().Members, 4)
			sums(t, ctx, c)
		})
	}
}

// A member that is killed ends the collectives of the others, which go on without it.
func TestCollectivesOfTheDead(t *testing.T) {
	_, master := startMaster(t)
	var cs []*child
	for id := range 4 { // so that not all are neighbours
		cs = append(cs, start(t, order{Role: "collectives", Master: master, ID: id, World: 4}))
	}
	for _, c := range cs {
		c.await("step", patience)
	}
	cs[2].kill()
	for _, c := range append(cs[:2:2], cs[3]) {
		for c.await("step", patience).World == 4 {
		}
	}
}

// Members that pass different roots, counts or types are told so, and nothing is written.
func TestMismatchOfCollectives(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 3, nil)
	for name, call := range map[string]func(i int) core.Collective{
		"root": func(i int) core.Collective {
			return core.Collective{Kind: core.KindBroadcast, Root: min(i, 1), Src: make([]byte, 64), Dst: make([]byte, 64)}
		},
		"count": func(i int) core.Collective {
			return core.Collective{Kind: core.KindAllGather, Src: make([]byte, 8+8*(i/2)), Dst: make([]byte, 3*(8+8*(i/2)))}
		},
		"counts": func(i int) core.Collective {
			counts := [][]int{{2, 3, 3}, {2, 3, 3}, {2, 2, 4}}[i]
			return core.Collective{Kind: core.KindAllGather, Src: make([]byte, counts[i]), Dst: make([]byte, 8), Counts: counts}
		},
		"kind": func(i int) core.Collective {
			return core.Collective{Kind: core.Kind(1 + i/2), Op: core.Sum, Src: make([]byte, 24), Dst: make([]byte, 72*(1-i/2)+8*(i/2))}
		},
	} {
		for _, err := range each(c, func(_ int, c *core.Communicator) error {
			_, err := c.Collect(ctx, call(c.Attributes().Index))
			return err
		}) {
			require.Equal(t, errs.Mismatch, errs.CodeOf(err), "%s: %v", name, err)
		}
	}
	for _, err := range each(c, func(_ int, c *core.Communicator) error { return everyKind(ctx, c, 10, 1) }) {
		require.NoError(t, err)
	}

	// Of the counts of one pair, the two ends alone know.
	for _, err := range each(c, func(_ int, c *core.Communicator) error {
		send, recv := []int{4, 4, 4}, []int{4, 4, 4}
		if c.Attributes().Index == 1 {
			recv[0] = 3
		}
		_, err := c.Collect(ctx, core.Collective{
			Kind: core.KindAllToAll, Src: make([]byte, 12), Dst: make([]byte, 4+4+recv[0]), SendCounts: send, RecvCounts: recv,
		})
		return err
	}) {
		require.Equal(t, errs.Mismatch, errs.CodeOf(err), err)
		require.ErrorContains(t, err, "the peer sends 4 bytes, 3 are expected of it")
	}
}

// The retry helper describes a collective anew for those that are left, and ends with the
// error of a description.
func TestCollectivesAreRetried(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 4, nil)
	rank := make([]core.UUID, len(c))
	for i := range c {
		rank[i] = c[i].Attributes().UUID
	}
	require.NoError(t, c[3].Close()) // and nobody has heard of it in a round
	for i, err := range each(c[:3], func(i int, c *core.Communicator) error {
		var got []byte
		info, err := c.CollectWithRetry(ctx, func(a core.Attributes) (core.Collective, error) {
			got = make([]byte, 8*len(a.Members))
			return core.Collective{Kind: core.KindAllGather, Src: make([]byte, 8), Dst: got}, nil
		})
		if err == nil && (len(got) != 24 || info.Retries == 0) {
			return fmt.Errorf("%d bytes after %d retries", len(got), info.Retries)
		}
		return err
	}) {
		require.NoError(t, err, i)
	}
	_, err := c[0].CollectWithRetry(ctx, func(a core.Attributes) (core.Collective, error) {
		if !slices.Contains(a.Members, rank[3]) {
			return core.Collective{}, errors.New("the root has left")
		}
		return core.Collective{}, nil
	})
	require.ErrorContains(t, err, "the root has left")
}
