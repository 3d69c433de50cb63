package sim

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// Finishing forward: trainers get results before the verdict. What one of them has returned, everybody
// who lives and goes on has in the end.

// landings are what was seen of it, of one peer each.
type landings struct {
	landed  int // operations that returned before their verdict
	rescued int // ... whose result came from the master
	gave    int // results that the master asked for
	lone    int // peers that had returned what the others repeat, and that are gone
}

func (l *landings) add(o *landings) {
	l.landed, l.rescued, l.gave, l.lone = l.landed+o.landed, l.rescued+o.rescued, l.gave+o.gave, l.lone+o.lone
}

// forwards reports whether the trainer of p wants an operation finished forward. It costs no random
// number of the world's.
func (p *peer) forwards(tag uint64) bool {
	if !p.w.plan.forward {
		return false
	}
	r := rng(p.w.seed<<24 ^ p.memory.revision<<8 ^ tag)
	return !r.chance(3) && (!r.chance(6) || p.id != 0) // where one does not want it, nobody gets it
}

// result is what op would send to others: the buffer, and zeros for what it stands for.
func (op *op) result() []byte {
	b := make([]byte, 8*op.count)
	for i, v := range op.buf {
		binary.BigEndian.PutUint64(b[8*i:], uint64(v))
	}
	return b
}

// takeResult puts the result of others into the buffer.
func (op *op) takeResult(b []byte) {
	for i := range op.buf {
		op.buf[i] = int64(binary.BigEndian.Uint64(b[8*i:]))
	}
	op.p.w.collector.rescued++
}

// settles ends an operation, or does something with the result of one that has ended.
func (p *peer) settles(e pfsm.Effect) {
	switch e := e.(type) {
	case pfsm.Finish:
		p.op(e.Op).finish(e)
	case pfsm.GiveResult:
		p.give(e)
	case pfsm.DropResult:
		delete(p.trainer.kept, e.Op)
	}
}

// keep remembers the result of an operation that returns now.
func (p *peer) keep(o *op) {
	if p.trainer.kept == nil {
		p.trainer.kept = map[pfsm.OpID]op{}
	}
	p.trainer.kept[o.id] = op{p: p, buf: slices.Clone(o.buf), count: o.count}
	p.w.collector.landed++
}

// give sends a result to the master.
func (p *peer) give(e pfsm.GiveResult) {
	w := p.w
	o, kept := p.trainer.kept[e.Op]
	if !kept {
		o = *p.op(e.Op)
	}
	data := o.result()
	if w.bug == resultWrong {
		data = make([]byte, len(data))
	}
	w.collector.gave++
	p.say(wire.C2MResult{Tag: e.Tag, Seq: e.Seq, Data: data})
}

// returned notes that p has returned the result of an operation.
func (b *book) returned(op *op) {
	r := b.ops[op.seq]
	r.landed = append(r.landed, op.p)
}

// contradicts reports whether a failure at another member is one although somebody has returned the
// result, who must be gone then, or find out that it is.
func (b *book) contradicts(w *world, r *record, by *peer) bool {
	for _, p := range r.landed {
		if p == by {
			w.failf("peer %d has returned an operation that fails", p.id)
		}
		if !p.trainer.lone {
			b.lone++
		}
		p.trainer.lone = true
		p.goesOn()
	}
	return len(r.landed) < r.successes
}

// goesOn is called when p does something together with others.
func (p *peer) goesOn() {
	if p.trainer.lone && !p.dead && !p.over && !p.line.cut && !p.line.hole && !p.suspect && !p.w.forgotten(p.id) {
		p.w.failf("peer %d is with the others, and has returned what they repeat", p.id)
	}
}

// forwarding is a world of gopccl peers that finish forward.
func forwarding(seed uint64, bug mutation, n, loops int) *world {
	w := emptyWorld(4*seed, bug)
	if seed%2 == 0 {
		w.eagerBytes = 1 << 20
	}
	w.plan = scenario{groups: 1, natives: 2, loops: loops, overlap: seed%3 == 0, older: seed%5 == 0, forward: true}
	for range n {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(0, true, loops) })
	}
	return w
}

// TestFinishingForward kills, cuts off and stops peers at every event of runs in which operations return
// before their verdict, by one fault and by two.
func TestFinishingForward(t *testing.T) {
	t.Parallel()
	var seen landings
	for _, n := range []int{2, 3, 5} {
		for _, k := range []kind{kill, powerLoss, cutMaster, cutPeers, closeNow} {
			for seed := uint64(1); seed <= 2; seed++ {
				whole := forwarding(seed, noBug, n, 3)
				require.Empty(t, whole.run())
				require.Positive(t, whole.collector.landed)
				require.Zero(t, whole.unprovoked)
				require.Zero(t, whole.collector.rescued)
				stride := n
				if raceEnabled {
					stride = 11
				}
				for at := 1; at < whole.count; at += stride {
					w := forwarding(seed, noBug, n, 3)
					w.faults = []fault{{at: at, kind: k}}
					if at%3 == 0 {
						w.faults = append(w.faults, fault{at: at + 1 + at%17, kind: []kind{kill, cutPeers, join}[at%9/3]})
					}
					require.Empty(t, w.run(), "%d peers, kind %d, seed %d, at event %d", n, k, seed, at)
					seen.add(&w.collector.landings)
				}
			}
		}
	}
	t.Logf("%+v", seen)
	require.Positive(t, seen.rescued)
	require.Positive(t, seen.gave)
	require.Positive(t, seen.lone, "nobody was ever lost with a result")
}

// TestForwardBugsAreFound: the sentences above would notice.
func TestForwardBugsAreFound(t *testing.T) {
	t.Parallel()
	for name, bug := range map[string]mutation{
		"a result that is not offered": resultUnsaid,
		"a wrong result":               resultWrong,
		"a grant by nobody":            forwardUngranted,
	} {
		t.Run(name, func(t *testing.T) {
			for _, seed := range []uint64{1, 2, 5} {
				whole := forwarding(seed, bug, 3, 3)
				if failure := whole.run(); failure != "" {
					t.Log(failure)
					return
				}
				for at := 1; at < whole.count; at++ {
					for _, k := range []kind{kill, cutPeers} {
						w := forwarding(seed, bug, 3, 3)
						w.faults = []fault{{at: at, kind: k}}
						if failure := w.run(); failure != "" {
							t.Logf("seed %d, kind %d, at event %d: %s", seed, k, at, failure)
							return
						}
					}
				}
			}
			t.Fatal("not found")
		})
	}
}

// TestMasterDiesAmidARescue: a peer dies, so that others need its results, and then the master, at every event from
// there on, for everybody at once or for some earlier.
func TestMasterDiesAmidARescue(t *testing.T) {
	t.Parallel()
	mortal := func(seed uint64, faults ...fault) *world {
		w := emptyWorld(4*seed, noBug)
		w.heirs = newHeirs(seed%2 == 0)
		w.master = w.newMaster(w.masterConfig(0))
		w.plan = scenario{groups: 1, natives: 2, loops: 2, forward: true}
		for range 4 {
			w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(0, true, 2) })
		}
		w.faults = faults
		return w
	}
	var seen landings
	worlds, most := 0, 3
	if raceEnabled {
		most = 1
	}
	for seed := uint64(1); seed <= 3; seed++ {
		whole := mortal(seed)
		require.Empty(t, whole.run())
		found := 0
		for at := 1; at < whole.count && found < most; at++ {
			k := []kind{kill, cutPeers}[at%2]
			w := mortal(seed, fault{at: at, kind: k})
			require.Empty(t, w.run(), "seed %d, at event %d", seed, at)
			if w.collector.rescued == 0 {
				continue
			}
			found++
			for after := 1; after < 90; after++ {
				for _, s := range []share{nobody, somebody, everybody} {
					w := mortal(seed, fault{at: at, kind: k}, fault{at: at + after, kind: killMaster, share: s})
					require.Empty(t, w.run(), "seed %d, at event %d and %d, kind %d, share %d", seed, at, at+after, k, s)
					seen.add(&w.collector.landings)
					worlds++
				}
			}
		}
		require.Equal(t, most, found, "seed %d", seed)
	}
	t.Logf("%d worlds: %+v", worlds, seen)
	require.Positive(t, seen.rescued)
}
