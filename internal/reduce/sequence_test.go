package reduce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// use is one use of a tag by all ranks, from the first launch to the last verdict.
type use struct {
	tag      uint64
	ops      []*Op // by rank; nil: not launched
	done     []chan error
	eager    []bool
	canceled []bool
	released []bool // the rank knows the verdict
	before   [][]byte
	began    bool // commenced
	failed   bool
}

// players are engines in a ring and what machines and a master would tell them,
// one step at a time, in any order that the protocol allows.
type players struct {
	t       *rapid.T
	r       *ring
	epoch   uint64
	due     []bool   // the rank knows of a failure in this epoch
	lazy    []bool   // the rank never begins eagerly
	uses    [][]*use // by tag, the oldest first
	inPlace bool
	prepare bool // a ring is being prepared: nobody begins eagerly
}

func (p *players) draw(n int, what string) int { return rapid.IntRange(0, n-1).Draw(p.t, what) }

// launch lets a rank use a tag, if it may.
func (p *players) launch(rank int, tag uint64) {
	var u *use
	for _, o := range p.uses[tag] {
		if o.ops[rank] != nil {
			if !o.released[rank] {
				return
			}
			continue
		}
		u = o
		break
	}
	n := len(p.r.eng)
	if u == nil {
		u = &use{
			tag: tag, ops: make([]*Op, n), done: make([]chan error, n), eager: make([]bool, n),
			canceled: make([]bool, n), released: make([]bool, n), before: make([][]byte, n),
		}
		p.uses[tag] = append(p.uses[tag], u)
	}
	src := make([]byte, 4*(3+7*tag))
	for i := range dtype.View[uint32](src) {
		dtype.View[uint32](src)[i] = rapid.Uint32().Draw(p.t, "element")
	}
	dst := src
	if !p.inPlace {
		dst = make([]byte, len(src))
	}
	op, err := p.r.eng[rank].NewOp(Spec{Tag: tag, Count: len(src) / 4, DType: dtype.Uint32, Op: dtype.Sum, Src: src, Dst: dst})
	require.NoError(p.t, err)
	u.ops[rank], u.done[rank], u.before[rank] = op, make(chan error, 2), append([]byte(nil), src...)
	if u.eager[rank] = !p.lazy[rank] && !p.due[rank] && !p.prepare; u.eager[rank] {
		op.Start(Start{Epoch: p.epoch, Eager: true, Ring: p.r.ids, Self: p.r.ids[rank], Done: func(err error) { u.done[rank] <- err }})
	}
	if p.draw(4, "gives up") == 0 {
		p.cancel(u, rank)
	}
	for _, o := range u.ops {
		if o == nil {
			return
		}
	}
	p.commence(u)
	for _, i := range p.order() {
		if p.draw(3, "hears later") > 0 {
			p.release(u, i)
		}
	}
}

// cancel lets the caller give up before the commence.
func (p *players) cancel(u *use, rank int) {
	if u.began || u.ops[rank] == nil || u.canceled[rank] {
		return
	}
	if u.eager[rank] {
		u.ops[rank].Abort(errTest)
		if err := p.verdict(u, rank); err == nil {
			u.done[rank] <- nil // all had come before: it is over, and there is nothing to give up
			return
		}
	}
	u.canceled[rank], u.failed = true, true
	u.ops[rank].Finish(true)
	require.Equal(p.t, u.before[rank], u.ops[rank].spec.Src)
}

func (p *players) verdict(u *use, rank int) error {
	select {
	case err := <-u.done[rank]:
		return err
	case <-time.After(patience):
		p.t.Fatalf("rank %d, tag %d: done was not called", rank, u.tag)
		return nil
	}
}

// commence tells all ranks the number of an operation, and ends the data phase.
func (p *players) commence(u *use) {
	u.began = true
	p.r.seq++
	for _, i := range p.order() {
		switch op := u.ops[i]; {
		case u.canceled[i]:
			p.r.eng[i].Skip(p.r.seq)
		case u.eager[i]:
			op.Commence(p.r.seq)
		default:
			op.Start(Start{Seq: p.r.seq, Epoch: p.epoch, Ring: p.r.ids, Self: p.r.ids[i], Native: true, Done: func(err error) { u.done[i] <- err }})
		}
	}
	for i, op := range u.ops {
		if u.canceled[i] {
			continue
		}
		if u.failed {
			op.Abort(errTest)
		}
		if err := p.verdict(u, i); !u.failed {
			require.NoError(p.t, err, "rank %d, tag %d", i, u.tag)
		}
	}
}

// release tells a rank the verdict, and compares with the model.
func (p *players) release(u *use, rank int) {
	if !u.began || u.released[rank] {
		return
	}
	u.released[rank] = true
	if u.failed {
		p.due[rank] = true
		p.r.eng[rank].Spoil(u.tag, p.epoch)
	}
	if u.canceled[rank] {
		return
	}
	op := u.ops[rank]
	op.Finish(u.failed)
	if u.failed {
		require.Equal(p.t, u.before[rank], op.spec.Src)
		return
	}
	want := make([]byte, len(u.before[0]))
	for _, b := range u.before {
		for i, v := range dtype.View[uint32](b) {
			dtype.View[uint32](want)[i] += v
		}
	}
	require.Equal(p.t, want, op.spec.Dst, "rank %d, tag %d, epoch %d", rank, u.tag, p.epoch)
}

func (p *players) order() []int {
	ranks := make([]int, len(p.r.eng))
	for i := range ranks {
		ranks[i] = i
	}
	return rapid.Permutation(ranks).Draw(p.t, "order")
}

// round ends what is under way and begins an epoch, of which some ranks hear by
// the operations and failures in it alone.
func (p *players) round() {
	for tag, uses := range p.uses {
		for _, u := range uses {
			for rank := range p.r.eng {
				if u.ops[rank] == nil {
					p.launch(rank, u.tag)
				}
			}
			for rank := range p.r.eng {
				p.release(u, rank)
			}
		}
		p.uses[tag] = nil
	}
	p.epoch++
	for _, i := range p.order() {
		p.due[i] = false
		if rapid.Bool().Draw(p.t, "told") {
			p.r.eng[i].BeginEpoch(p.epoch)
		}
	}
}

// Whatever peers launch, cancel before the commence and launch again with the
// same tags, some of them eagerly and some not: what succeeds is the sum of what
// was brought to it, and what fails leaves the buffers as they were.
func TestTagsInAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 3).Draw(rt, "ranks")
		r := newRing(t, shape{n: n, native: true, knows: true, cfg: Config{Link: link.Config{FrameBytes: 64}}, link: memory(transporttest.Options{})})
		defer r.close()
		p := &players{t: rt, r: r, epoch: 1, due: make([]bool, n), uses: make([][]*use, 2), inPlace: rapid.Bool().Draw(rt, "in place")}
		for range n {
			p.lazy = append(p.lazy, rapid.Bool().Draw(rt, "lazy"))
		}
		for range rapid.IntRange(1, 100).Draw(rt, "steps") {
			rank, tag := p.draw(n, "rank"), uint64(p.draw(len(p.uses), "tag"))
			switch what := p.draw(20, "step"); {
			case what < 15:
				p.launch(rank, tag)
			case what < 18:
				for _, u := range p.uses[tag] {
					p.release(u, rank)
				}
			case what < 19:
				p.prepare = !p.prepare
			default:
				p.round()
			}
		}
		p.round()
	})
}
