package collective

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// Every kind, in worlds of two to eight, over rings in any order and over meshes, with
// equal and unequal blocks, in and out of place, against what a program without any
// network computes. What was sent is what the plan says, to the byte.
func TestEveryKindMatchesItsOracle(t *testing.T) {
	for n := 1; n <= 8; n++ {
		for _, mesh := range []bool{false, true} {
			t.Run(fmt.Sprintf("world %d, mesh %v", n, mesh), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, uint64(n)))
				w := newWorld(t, shape{n: n, mesh: mesh, order: rng.Perm(n), frame: 256})
				for _, kind := range allKinds {
					for range 12 {
						w.run(rng, draw(rng, w, kind, 150))
					}
				}
			})
		}
	}
}

// Every element type with every operation.
func TestEveryTypeAndOperation(t *testing.T) {
	for _, mesh := range []bool{false, true} {
		w := newWorld(t, shape{n: 3, mesh: mesh, frame: 128})
		for _, kind := range allKinds {
			for dt := range dtype.Type(dtype.NumTypes) {
				for _, op := range allOps {
					rng := rand.New(rand.NewPCG(uint64(dt), uint64(op)))
					k := draw(rng, w, kind, 100)
					k.dt, k.op, k.code = dt, op, nil
					w.run(rng, k)
					if !kind.Combines() {
						break
					}
				}
			}
		}
		w.close()
	}
}

// Real sockets, the default frame, and pools of several connections, over which large
// lanes are striped.
func TestOverLoopback(t *testing.T) {
	longest := 200_000
	if testing.Short() {
		longest = 50_000
	}
	for _, s := range []shape{{n: 2}, {n: 4, mesh: true}, {n: 3, pool: 3}, {n: 3, pool: 2, mesh: true, cfg: Config{minStripe: 4096}}} {
		s.link = loopback
		w := newWorld(t, s)
		rng := rand.New(rand.NewPCG(7, uint64(s.n)))
		for _, kind := range allKinds {
			for _, most := range []int{1, 1000, longest} {
				w.run(rng, draw(rng, w, kind, most))
			}
		}
		w.close()
	}
}

// Connections that deliver in crumbs and hold almost nothing: progress must not depend
// on any buffer.
func TestTinyBuffers(t *testing.T) {
	for _, o := range []transporttest.Options{{Buffer: 1}, {Buffer: 7, Piece: 3}, {Buffer: 100, Piece: 1}} {
		for _, mesh := range []bool{false, true} {
			w := newWorld(t, shape{n: 4, mesh: mesh, link: memoryLink(o), frame: 64})
			rng := rand.New(rand.NewPCG(3, 3))
			for _, kind := range allKinds {
				w.run(rng, draw(rng, w, kind, 60))
			}
			w.close()
		}
	}
}

// Members cut their lanes in different ways: pieces of one lane end in the middle of
// those of the next.
func TestPiecesOfDifferentSizes(t *testing.T) {
	for _, mesh := range []bool{false, true} {
		w := newWorld(t, shape{n: 5, mesh: mesh, pool: 2, vary: func(m int, c *Config, frame *int) {
			*frame, c.piece, c.minStripe = 1024, []int{64, 192, 128, 320, 1024}[m], []int{64, 1 << 20}[m%2]
		}})
		rng := rand.New(rand.NewPCG(5, 5))
		for _, kind := range allKinds {
			for range 6 {
				w.run(rng, draw(rng, w, kind, 600))
			}
		}
		w.close()
	}
}

// Many at once, with roots and rings that depend on each other in circles.
func TestManyAtOnce(t *testing.T) {
	defer invariants.WatchLocks()()
	for _, mesh := range []bool{false, true} {
		w := newWorld(t, shape{n: 4, mesh: mesh, frame: 64, link: memoryLink(transporttest.Options{Buffer: 50})})
		rng := rand.New(rand.NewPCG(9, 9))
		var tasks []*task
		var all []*started
		for i := range 40 {
			k := draw(rng, w, allKinds[i%len(allKinds)], 200)
			k.fill(w, rng)
			for m := range k.specs {
				k.specs[m].Tag = uint64(i)
			}
			tasks, all = append(tasks, k), append(all, w.start(k.specs))
		}
		for i, s := range all {
			s.ok(t)
			tasks[i].right(t, "operation %d", i)
			s.finish(false)
		}
		w.close()
	}
}

// An all-reduce as direct exchange may give members unequal shares.
func TestShares(t *testing.T) {
	w := newWorld(t, shape{n: 4, mesh: true, frame: 256})
	rng := rand.New(rand.NewPCG(2, 2))
	for _, weights := range [][]uint32{{1, 1, 1, 1}, {5, 0, 1, 2}, {0, 0, 0, 7}, {1 << 31, 1, 3, 1 << 30}} {
		for range 4 {
			w.runScheme(rng, plan.Direct(4, weights), 1, 700)
		}
	}
}

// An all-reduce goes along any trees, in any number of stripes, with the bits that
// follow from them; no member keeps more than a window of what others send ahead.
func TestSchemes(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, n := range []int{2, 3, 5, 8} {
		w := newWorld(t, shape{n: n, mesh: true, frame: 256, pool: 1 + n%2, cfg: Config{minStripe: 256}})
		for range 12 {
			s := &plan.Scheme{Name: "trees"}
			for range 1 + rng.IntN(2*n) {
				owner := rng.IntN(n)
				s.Trees = append(s.Trees, plan.Tree{Weight: uint32(rng.IntN(3)), Up: anyTree(rng, n, owner), Down: anyTree(rng, n, owner)})
			}
			s.Trees[0].Weight = 1
			w.runScheme(rng, s, 1+rng.IntN(40), 9000)
		}
		w.close()
	}
}

// anyTree returns a tree of chance of n members: to whom each leads, the owner to -1.
func anyTree(rng *rand.Rand, n, owner int) []int {
	next := slices.Repeat([]int{-1}, n)
	in := []int{owner}
	for _, i := range rng.Perm(n) {
		if i != owner {
			next[i] = in[rng.IntN(len(in))]
			in = append(in, i)
		}
	}
	return next
}

// runScheme does an all-reduce of up to most elements and compares.
func (w *world) runScheme(rng *rand.Rand, scheme *plan.Scheme, stripes, most int) {
	w.t.Helper()
	k := draw(rng, w, plan.AllReduce, most)
	k.fill(w, rng)
	for i := range k.specs {
		k.specs[i].Scheme, k.specs[i].Stripes = scheme, stripes
	}
	k.want = make([][]byte, w.shape.n)
	k.expectAll(w, nil)
	s := w.start(k.specs)
	s.ok(w.t)
	k.right(w.t, "%v, %d stripes", scheme, stripes)
	w.counted(k, s)
	s.finish(false)
}

// The blocks of a reduce-scatter have the bits of an all-reduce over the same ring.
func TestReduceScatterHasTheBitsOfAnAllReduce(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	w := newWorld(t, shape{n: 5, order: []int{3, 0, 4, 1, 2}, frame: 128})
	counts := []int{320, 320, 320, 320, 320} // whole lines: both cut alike
	all := (&task{kind: plan.AllReduce, dt: dtype.Float32, op: dtype.Sum, counts: counts}).fill(w, rng)
	parts := (&task{kind: plan.ReduceScatter, dt: dtype.Float32, op: dtype.Sum, counts: counts}).fill(w, rng)
	for i := range parts.specs {
		copy(parts.specs[i].Src, all.specs[i].Src)
	}
	w.start(all.specs).ok(t)
	w.start(parts.specs).ok(t)
	for i := range parts.specs {
		require.Equal(t, all.specs[i].Dst[i*1280:(i+1)*1280], parts.specs[i].Dst)
	}
}

// Memory of an operation is at most the data, and none is left.
func TestMemoryIsBoundedAndGivenBack(t *testing.T) {
	for _, mesh := range []bool{false, true} {
		for _, kind := range allKinds {
			w := newWorld(t, shape{n: 4, mesh: mesh, frame: 4096})
			rng := rand.New(rand.NewPCG(1, 1))
			k := draw(rng, w, kind, 1)
			k.varied, k.dt, k.inPlace, k.code = false, dtype.Float32, false, nil
			const block = 64 << 10
			for i := range k.counts {
				k.counts[i] = block
				for j := range k.pairs[i] {
					k.pairs[i][j] = block
				}
			}
			k.fill(w, rng)
			s := w.start(k.specs)
			s.ok(t)
			for _, op := range s.ops {
				require.LessOrEqual(t, op.mem.temp.size+op.mem.wait.size, 4*4*block, "%v, mesh %v", kind, mesh)
				require.Nil(t, op.undo.backup.b)
			}
			s.finish(false)
			w.close()
			for _, e := range w.eng {
				require.Zero(t, e.link.Pool.Stats().InUse, "%v, mesh %v", kind, mesh)
			}
		}
	}
}

func TestSpecIsChecked(t *testing.T) {
	b := make([]byte, 256)
	good := map[plan.Kind]Spec{
		plan.AllReduce:     {Src: b[:32], Dst: b[:32]},
		plan.AllGather:     {Src: b[:8], Dst: b[32:64]},
		plan.ReduceScatter: {Src: b[:32], Dst: b[32:40]},
		plan.Broadcast:     {Src: b[:32]},
		plan.Reduce:        {Src: b[:32], Dst: b[32:64]},
		plan.Gather:        {Src: b[:8], Dst: b[32:64]},
		plan.Scatter:       {Src: b[:32], Dst: b[32:40]},
		plan.AllToAll:      {Src: b[:32], Dst: b[32:64]},
	}
	for kind, s := range good {
		s.Kind, s.DType, s.Op = kind, dtype.Float32, dtype.Sum
		require.NoError(t, s.Check(4, 0, true), kind)
		bad := map[string]func(*Spec){
			"type":   func(s *Spec) { s.DType = 12 },
			"ragged": func(s *Spec) { s.Src = b[:31] },
		}
		if kind.Rooted() {
			bad["root"] = func(s *Spec) { s.Root = 4 }
			bad["negative root"] = func(s *Spec) { s.Root = -1 }
		} else {
			bad["a root"] = func(s *Spec) { s.Root = 1 }
		}
		if kind.Combines() {
			bad["operation"] = func(s *Spec) { s.Op = 0 }
		}
		if kind != plan.Broadcast {
			bad["partial overlap"] = func(s *Spec) {
				s.Src, s.Dst = b[4:4+len(s.Src)], b[:len(s.Dst)]
			}
			bad["another size"] = func(s *Spec) { s.Dst = b[100 : 100+len(s.Dst)+4] }
		}
		switch kind {
		case plan.AllGather, plan.ReduceScatter, plan.Gather, plan.Scatter:
			bad["too few counts"] = func(s *Spec) { s.Counts = []int{2, 3} }
			bad["counts beyond the buffer"] = func(s *Spec) { s.Counts = []int{2, 2, 2, 3} }
			bad["counts below the buffer"] = func(s *Spec) { s.Counts = []int{2, 2, 2, 1} }
			bad["a negative count"] = func(s *Spec) { s.Counts = []int{2, -1, 2, 5} }
		case plan.AllToAll:
			bad["half the counts"] = func(s *Spec) { s.SendCounts = []int{2, 2, 2, 2} }
			bad["to itself"] = func(s *Spec) { s.SendCounts, s.RecvCounts = []int{2, 2, 2, 2}, []int{1, 3, 2, 2} }
			bad["in place"] = func(s *Spec) { s.Dst = s.Src }
		default:
			bad["counts"] = func(s *Spec) { s.Counts = []int{2, 2, 2, 2} }
		}
		for what, change := range bad {
			c := s
			change(&c)
			require.ErrorContains(t, c.Check(4, 0, true), "invalid argument", "%v: %s", kind, what)
		}
	}
	e := newWorld(t, shape{n: 1}).eng[0]
	_, err := e.New(Spec{Kind: plan.NumKinds})
	require.ErrorContains(t, err, "no such kind")
	varied := Spec{Kind: plan.AllToAll, DType: dtype.Uint8, Src: b[:4], Dst: b[4:8], SendCounts: []int{2, 2}, RecvCounts: []int{2, 2}}
	require.NoError(t, varied.Check(2, 1, true))
	require.ErrorContains(t, varied.Check(2, 1, false), "connections between all members")
}

// What depends on the group is told by the done function.
func TestStartIsChecked(t *testing.T) {
	w := newWorld(t, shape{n: 3})
	spec := Spec{Kind: plan.AllGather, DType: dtype.Uint8, Src: []byte{1}, Dst: make([]byte, 4)}
	for _, err := range w.start([]Spec{spec, spec, spec}).wait(t) {
		require.ErrorContains(t, err, "3 equal blocks")
	}
	spec.Dst = spec.Dst[:3]
	for _, s := range []Start{
		{Members: w.ids, Ring: w.ids, Self: uuid(9)},
		{Members: w.ids, Ring: w.ids[:2], Self: uuid(0)},
		{Members: w.ids[:2], Ring: []wire.UUID{uuid(0), uuid(2)}, Self: uuid(0)},
	} {
		op, err := w.eng[0].New(spec)
		require.NoError(t, err)
		c := make(chan error, 1)
		s.Seq, s.Done = 50, func(err error) { c <- err }
		op.Start(s)
		require.ErrorContains(t, verdict(t, c), "does not belong to")
		op.Finish(true)
	}
}

// A barrier moves nothing.
func TestBarrier(t *testing.T) {
	w := newWorld(t, shape{n: 3})
	s := w.start([]Spec{{Kind: plan.Barrier}, {Kind: plan.Barrier}, {Kind: plan.Barrier}})
	s.ok(t)
	s.finish(false)
	for _, e := range w.eng {
		require.Zero(t, e.link.Stats.Snapshot().TxFrames)
	}
}

// Two members that both sum all of it up have the same bits, also where an operation has
// others if its operands change places.
func TestTwoHaveTheSameBits(t *testing.T) {
	bits := [2][]uint32{
		{0, 1 << 31, 0x7fc00001, 0x7fc00002, 0x3f800000, 0x7fc00001},
		{1 << 31, 0, 0x7fc00002, 0x7fc00001, 0x7fc00001, 0x3f800000},
	}
	w := newWorld(t, shape{n: 2, mesh: true})
	for _, op := range allOps {
		var specs []Spec
		for _, b := range bits {
			s := Spec{Kind: plan.AllReduce, Tag: 5, DType: dtype.Float32, Op: op, Dst: make([]byte, 4*len(b))}
			for _, v := range b {
				s.Src = binary.LittleEndian.AppendUint32(s.Src, v)
			}
			specs = append(specs, s)
		}
		run := w.start(specs)
		run.ok(t)
		require.Equal(t, specs[0].Dst, specs[1].Dst, "%v", op)
		run.finish(false)
	}
}
