package trainers

import (
	"fmt"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/examples/charlm"
)

// reference trains two peers' shares one after the other in one process, without
// gopccl, and notes the hash of the state after every step. Two addends have one
// sum, so the trainers must agree with it to the bit.
type reference struct {
	o      Options
	text   *charlm.Corpus
	model  *charlm.Model
	hashes []string // after 0, 1, 2, ... steps
}

const world = 2

func newReference(o Options) *reference {
	text, err := charlm.Opticks()
	if err != nil {
		panic(err)
	}
	o.Shape.Vocab = len(text.Vocab)
	model, err := charlm.New(o.Shape)
	if err != nil {
		panic(err)
	}
	return &reference{o: o, text: text, model: model}
}

func (f *reference) note(vectors map[string][]float32, order []string, more ...core.Tensor) {
	state := &core.SharedState{}
	for _, prefix := range order {
		for _, v := range f.model.Views(vectors[prefix]) {
			state.Tensors = append(state.Tensors, core.TensorOf(prefix+v.Name, v.Data))
		}
	}
	state.Tensors = append(state.Tensors, more...)
	f.hashes = append(f.hashes, fmt.Sprintf("%016x", core.StateHash(state)))
}

func (f *reference) sampler(rank, step int) *charlm.Sampler {
	return f.text.Sampler(f.o.Shape.Context, rank, world, f.o.Seed<<32+uint64(step))
}

// learned returns what each rank's inner steps from outer come to: outer - local.
func (f *reference) learned(outer []float32, inner []charlm.Optimizer, step int) [world][]float32 {
	var pseudo [world][]float32
	for rank := range world {
		local, grad := append([]float32{}, outer...), make([]float32, len(outer))
		data := f.sampler(rank, step)
		for range f.o.Inner {
			f.model.Gradient(local, grad, data.Next(f.o.Batch))
			inner[rank].Step(local, grad)
		}
		pseudo[rank] = make([]float32, len(outer))
		for i := range local {
			pseudo[rank][i] = outer[i] - local[i]
		}
	}
	return pseudo
}

func mean(v [world][]float32) []float32 {
	m := make([]float32, len(v[0]))
	for i := range m {
		m[i] = (v[0][i] + v[1][i]) / world
	}
	return m
}

func (f *reference) inner() []charlm.Optimizer {
	n := f.model.NumParams()
	return []charlm.Optimizer{f.o.Local(n), f.o.Local(n)}
}

func (f *reference) diloco(steps int) {
	outer, inner := f.model.Init(f.o.Seed), f.inner()
	momentum := charlm.NewNesterov(len(outer), f.o.OuterRate, f.o.OuterMomentum)
	state := map[string][]float32{"outer.": outer, "momentum.": momentum.Velocity}
	f.note(state, []string{"outer.", "momentum."})
	for step := range steps {
		momentum.Step(outer, mean(f.learned(outer, inner, step)))
		f.note(state, []string{"outer.", "momentum."})
	}
}

// async is DiLoCo with every average applied one step late.
func (f *reference) async(steps int) {
	outer, inner := f.model.Init(f.o.Seed), f.inner()
	momentum := charlm.NewNesterov(len(outer), f.o.OuterRate, f.o.OuterMomentum)
	state := map[string][]float32{"outer.": outer, "momentum.": momentum.Velocity}
	clock := make([]uint64, 2)
	note := func() { f.note(state, []string{"outer.", "momentum."}, core.TensorOf("clock", clock)) }
	note()
	var late []float32
	for step := range steps {
		now := mean(f.learned(outer, inner, step))
		if late != nil {
			momentum.Step(outer, late)
		}
		late = now
		clock[0]++
		note()
	}
}

func (f *reference) ddp(steps int) {
	params := f.model.Init(f.o.Seed)
	adam := charlm.NewAdamW(len(params), innerRate)
	state := map[string][]float32{"model.": params, "adam.mean.": adam.M, "adam.square.": adam.V}
	order := []string{"model.", "adam.mean.", "adam.square."}
	f.note(state, order)
	for step := range steps {
		var grads [world][]float32
		for rank := range world {
			grads[rank] = make([]float32, len(params))
			f.model.Gradient(params, grads[rank], f.sampler(rank, step).Next(f.o.Batch))
		}
		adam.Step(params, mean(grads))
		f.note(state, order)
	}
}
