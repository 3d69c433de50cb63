package compat

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// random returns count elements of type t: any bits for integers, values
// between -8 and 8 with zeros of both signs for floating point numbers.
// Long tensors repeat themselves, to be made quickly.
func (w *world) random(t dtype.Type, count int) []byte {
	const period = 10007
	if count > period {
		b := make([]byte, 0, count*t.Size())
		for once := w.random(t, period); len(b) < cap(b); {
			b = append(b, once[:min(len(once), cap(b)-len(b))]...)
		}
		return b
	}
	b := make([]byte, count*t.Size())
	if !t.IsFloat() || t.Size() == 2 {
		for i := range b {
			b[i] = byte(w.rng.Uint32())
		}
		return b
	}
	v := make([]float64, count)
	for i := range v {
		switch v[i] = w.rng.Float64()*16 - 8; w.rng.IntN(20) {
		case 0:
			v[i] = 0
		case 1:
			v[i] = math.Copysign(0, -1)
		}
	}
	if t == f64 {
		return encode(v)
	}
	f := make([]float32, count)
	for i := range f {
		f[i] = float32(v[i])
	}
	return encode(f)
}

// operation is one all-reduce of one group, with the input of each member.
type operation struct {
	pccl.Reduce
	group  uint32
	inputs map[*peer][]byte
}

// newOperation gives every member of the group random input of count elements.
func (w *world) newOperation(group uint32, r pccl.Reduce, count int) *operation {
	o := &operation{Reduce: r, group: group, inputs: map[*peer][]byte{}}
	o.Tag = w.nextTag()
	for _, p := range w.members(group) {
		o.inputs[p] = w.random(r.DType, count)
	}
	return o
}

func (o *operation) String() string {
	return fmt.Sprintf("%v of %d %v, tag %d, %v %v, in place %v, group %d", o.Op,
		len(firstOf(o.inputs))/o.DType.Size(), o.DType, o.Tag, o.Algorithm, o.QType, o.InPlace, o.group)
}

func firstOf(m map[*peer][]byte) []byte {
	for _, b := range m {
		return b
	}
	return nil
}

func (o *operation) of(p *peer) pccl.Reduce {
	r := o.Reduce
	r.Data = o.inputs[p]
	return r
}

// reduce runs all operations at once, each on all members of its group, and
// compares buffers and counters with the model.
func (w *world) reduce(ops ...*operation) {
	w.t.Helper()
	results := make([]map[*peer]pccl.Reduced, len(ops))
	for i := range results {
		results[i] = map[*peer]pccl.Reduced{}
	}
	got := make([][]pccl.Reduced, len(w.peers))
	require.NoError(w.t, all(w.peers, func(i int, p *peer) error {
		got[i] = make([]pccl.Reduced, len(ops))
		if len(ops) == 1 && ops[0].group == p.group {
			var err error
			got[i][0], err = p.Reduce(ops[0].of(p))
			return err
		}
		for _, o := range ops {
			if o.group == p.group {
				if err := p.Launch(o.of(p)); err != nil {
					return fmt.Errorf("launch %v: %w", o, err)
				}
			}
		}
		for k, o := range ops {
			if o.group == p.group {
				var err error
				if got[i][k], err = p.Await(o.Tag); err != nil {
					return fmt.Errorf("await %v: %w", o, err)
				}
			}
		}
		return nil
	}))
	for i, p := range w.peers {
		for k, o := range ops {
			if o.group == p.group {
				results[k][p] = got[i][k]
			}
		}
	}
	for k, o := range ops {
		w.check(o, results[k])
	}
}

// check compares the results of one operation, bit by bit, with each other and
// with the model of at least one ring that earlier results left possible.
func (w *world) check(o *operation, results map[*peer]pccl.Reduced) {
	w.t.Helper()
	members := w.members(o.group)
	first := results[members[0]]
	for _, p := range members {
		require.Equal(w.t, len(members), results[p].World, "%v at %s", o, p.Name)
		require.Len(w.t, results[p].Data, len(o.inputs[p]), "%v at %s", o, p.Name)
		require.True(w.t, bytes.Equal(first.Data, results[p].Data), "%v: %s and %s differ\n%s", o,
			members[0].Name, p.Name, difference(first.Data, results[p].Data))
	}
	var possible []ring
	var reason string
	for _, r := range w.rings[o.group] {
		inputs := make([][]byte, len(r))
		for i, p := range r {
			inputs[i] = o.inputs[p]
		}
		if why := w.fits(o, r, predict(&o.Reduce, inputs), results); why != "" {
			reason = why
			continue
		}
		possible = append(possible, r)
	}
	require.NotEmpty(w.t, possible, "%v: no ring order explains the results: %s", o, reason)
	w.rings[o.group] = possible
	// PCCL overflows when it quantizes float32 to uint32: equal everywhere, but wrong (quirk Q31).
	if overflows := o.DType == f32 && o.QType == dtype.Uint32; o.Algorithm != pccl.NoQuantization && !overflows {
		w.checkPrecision(o, first.Data)
	}
}

// fits returns "" if the results are those that the model gives for ring r.
func (w *world) fits(o *operation, r ring, want []outcome, results map[*peer]pccl.Reduced) string {
	for i, p := range r {
		got := results[p]
		if got.Tx != want[i].tx || got.Rx != want[i].rx {
			return fmt.Sprintf("%s counted tx %d rx %d, model: %d %d", p.Name, got.Tx, got.Rx, want[i].tx, want[i].rx)
		}
		if want[i].data != nil && !bytes.Equal(want[i].data, got.Data) {
			return p.Name + ": " + difference(want[i].data, got.Data)
		}
	}
	return ""
}

func difference(want, got []byte) string {
	n := min(len(want), len(got))
	for i := range n {
		if want[i] != got[i] {
			at := i &^ 7
			to := min(at+8, n)
			return fmt.Sprintf("first difference at byte %d: %x and %x", i, want[at:to], got[at:to])
		}
	}
	return fmt.Sprintf("%d and %d bytes", len(want), len(got))
}

// checkPrecision compares a quantized result with the exact one; the bound is
// the largest step of the quantization at each of the hops.
func (w *world) checkPrecision(o *operation, got []byte) {
	w.t.Helper()
	exact := o.Reduce
	exact.Algorithm = pccl.NoQuantization
	var inputs [][]byte
	for _, p := range w.members(o.group) {
		inputs = append(inputs, o.inputs[p])
	}
	n := float64(len(inputs))
	reach := 8 * n
	if o.Op == prod {
		reach = math.Pow(8, n)
	}
	bits := float64(8 * o.QType.Size())
	if o.QType.IsSigned() {
		bits--
	}
	step := 2 * reach / math.Exp2(bits)
	if o.Algorithm == pccl.ZeroPoint {
		step = 12 * reach / math.Exp2(bits)
	}
	bound := n*step + 1e-5*reach
	if o.Op == prod {
		bound = n * step * math.Pow(8, n-1)
	}
	require.LessOrEqual(w.t, spread(o.DType, predict(&exact, inputs)[0].data, got), bound, "%v", o)
}

// reduceEverything runs all ten types with all five operations, in and out of
// place, several at once (data spec, section 3).
func (w *world) reduceEverything(group uint32) {
	w.t.Helper()
	for i, op := range allOps {
		for some := range slices.Chunk(allTypes, 4) {
			var ops []*operation
			for k, t := range some {
				r := pccl.Reduce{Op: op, DType: t, InPlace: (i+k)%2 == 0}
				ops = append(ops, w.newOperation(group, r, 500+w.rng.IntN(500)))
			}
			w.reduce(ops...)
		}
	}
}

// reduceSizes runs sizes from none at all to more than a frame holds: chunks
// are empty for some members at first (data spec, section 2.1).
func (w *world) reduceSizes(group uint32) {
	w.t.Helper()
	for _, count := range []int{1, 2, 3, 4, 5, 1 << 20} {
		w.reduce(w.newOperation(group, pccl.Reduce{Op: sum, DType: f32, InPlace: count%2 == 0}, count))
	}
}

// reduceMinMax runs every combination of section 4.1 of the data spec.
func (w *world) reduceMinMax(group uint32) {
	w.t.Helper()
	for _, t := range []dtype.Type{f32, f64} {
		for _, q := range []dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Uint32} {
			var ops []*operation
			for i, op := range allOps {
				r := pccl.Reduce{Op: op, DType: t, Algorithm: pccl.MinMax, QType: q, InPlace: i%2 == 0}
				ops = append(ops, w.newOperation(group, r, 300+w.rng.IntN(300)))
			}
			w.reduce(ops...)
		}
	}
}

// reduceZeroPoint runs every combination of section 4.1 of the data spec.
func (w *world) reduceZeroPoint(group uint32) {
	w.t.Helper()
	qs := []dtype.Type{dtype.Int8, dtype.Uint8, dtype.Int16, dtype.Uint16, dtype.Int32, dtype.Uint32, dtype.Int64}
	for _, t := range []dtype.Type{f32, f64} {
		for some := range slices.Chunk(qs, 4) {
			var ops []*operation
			for i, q := range some {
				r := pccl.Reduce{Op: []dtype.Op{sum, avg}[i%2], DType: t, Algorithm: pccl.ZeroPoint, QType: q, InPlace: i%3 == 0}
				ops = append(ops, w.newOperation(group, r, 300+w.rng.IntN(300)))
			}
			w.reduce(ops...)
		}
	}
}

// retryHelper runs many operations by the helper that retries (control spec, section 13.5).
func (w *world) retryHelper(group uint32) {
	w.t.Helper()
	var ops []*operation
	for range 8 {
		ops = append(ops, w.newOperation(group, pccl.Reduce{Op: avg, DType: f32}, 2000))
	}
	members := w.members(group)
	totals := make([]pccl.Reduced, len(members))
	buffers := make([][][]byte, len(members))
	require.NoError(w.t, all(members, func(i int, p *peer) (err error) {
		var rs []pccl.Reduce
		for _, o := range ops {
			rs = append(rs, o.of(p))
		}
		totals[i], buffers[i], err = p.Retry(rs, 3)
		return err
	}))
	r := w.rings[group][0]
	require.Len(w.t, w.rings[group], 1, "the ring is not known yet")
	counted := map[*peer][2]uint64{}
	for k, o := range ops {
		inputs := make([][]byte, len(r))
		for i, p := range r {
			inputs[i] = o.inputs[p]
		}
		for i, want := range predict(&o.Reduce, inputs) {
			at := slices.Index(members, r[i])
			require.True(w.t, bytes.Equal(want.data, buffers[at][k]), "%v at %s", o, r[i].Name)
			c := counted[r[i]]
			counted[r[i]] = [2]uint64{c[0] + want.tx, c[1] + want.rx}
		}
	}
	for i, p := range members {
		require.Equal(w.t, counted[p], [2]uint64{totals[i].Tx, totals[i].Rx}, "counters of %s", p.Name)
	}
}

// state is the shared state of one peer in a sync.
type state struct {
	revision uint64
	strategy wire.Strategy
	tensors  []pccl.Tensor
}

// sync synchronizes the states of the members, given in the order of joining.
// holder is the index of the member whose tensors everybody must hold
// afterwards; dirty[i] names the tensors that member i must have received.
func (w *world) sync(group uint32, holder int, states []state, dirty [][]string) {
	w.t.Helper()
	members := w.members(group)
	got := make([]pccl.Synced, len(members))
	require.NoError(w.t, all(members, func(i int, p *peer) (err error) {
		got[i], err = p.Sync(states[i].revision, states[i].strategy, states[i].tensors)
		return err
	}))
	var sent, received uint64
	for i, p := range members {
		require.Equal(w.t, w.revision[group], got[i].Revision, "revision of %s", p.Name)
		var wantRx uint64
		for k, tensor := range states[i].tensors {
			want := tensor.Data
			if slices.Contains(dirty[i], tensor.Key) {
				want = states[holder].tensors[k].Data
				wantRx += uint64(len(want))
			}
			require.True(w.t, bytes.Equal(want, got[i].Tensors[k]), "tensor %s at %s", tensor.Key, p.Name)
		}
		require.Equal(w.t, wantRx, got[i].Rx, "rx of %s", p.Name)
		sent += got[i].Tx
		received += got[i].Rx
	}
	require.Equal(w.t, received, sent, "bytes sent and received in all")
	w.revision[group]++
}

// contentless are the types that PCCL neither compares nor transfers (quirk Q33).
var contentless = []dtype.Type{dtype.Int16, dtype.Float16, dtype.BFloat16}

// tensors makes one tensor of each type, and one that may differ.
func (w *world) tensors(group uint32) []pccl.Tensor {
	var ts []pccl.Tensor
	for t := range dtype.Type(dtype.NumTypes) {
		ts = append(ts, pccl.Tensor{Key: fmt.Sprintf("g%d/%v", group, t), DType: t, Data: w.random(t, 100*(int(t)+1)+int(t))})
	}
	return append(ts, pccl.Tensor{Key: "own", DType: f32, AllowInequality: true, Data: w.random(f32, 10)})
}

// changed returns a copy of ts in which the tensors of the given indices, all
// if none is given, have other contents.
func (w *world) changed(ts []pccl.Tensor, which ...int) []pccl.Tensor {
	out := slices.Clone(ts)
	for i := range out {
		if len(which) == 0 || slices.Contains(which, i) {
			out[i].Data = w.random(out[i].DType, len(out[i].Data)/out[i].DType.Size())
		}
	}
	return out
}

func keys(ts []pccl.Tensor, which ...int) []string {
	var out []string
	for i, t := range ts {
		if !t.AllowInequality && !slices.Contains(contentless, t.DType) && (len(which) == 0 || slices.Contains(which, i)) {
			out = append(out, t.Key)
		}
	}
	return out
}

// syncOutdated synchronizes a group whose last member holds other contents:
// first in some tensors (not all of which count), then at an old revision, then by strategy (control
// spec, section 9; data spec, section 7).
func (w *world) syncOutdated(group uint32) {
	w.t.Helper()
	n := len(w.members(group))
	last := n - 1
	states := make([]state, n)
	dirty := make([][]string, n)
	set := func(revision uint64, ts []pccl.Tensor) {
		for i := range states {
			states[i] = state{revision, wire.EnforcePopular, ts}
			dirty[i] = nil
		}
	}

	// Most hold the same; the last one differs in two tensors and in the one that may differ.
	ts := w.tensors(group)
	set(w.revision[group], ts)
	states[last].tensors = w.changed(ts, 2, 4, 7, 12)
	dirty[last] = keys(ts, 2, 4, 7, 12)
	if n == 2 { // one against one has no majority
		states[0].strategy, states[1].strategy = wire.SendOnly, wire.ReceiveOnly
	}
	w.sync(group, 0, states, dirty)

	// One step on; the last one stayed behind with the old revision and other contents everywhere.
	ts = w.changed(ts)
	set(w.revision[group], ts)
	states[last] = state{w.revision[group] - 1, wire.EnforcePopular, w.changed(ts)}
	dirty[last] = keys(ts)
	w.sync(group, 0, states, dirty)

	// Nobody differs.
	set(w.revision[group], ts)
	w.sync(group, 0, states, dirty)

	// The first one decides alone, the others only receive.
	ts = w.changed(ts)
	set(w.revision[group], ts)
	states[0].strategy = wire.SendOnly
	for i := 1; i < n; i++ {
		states[i] = state{w.revision[group], wire.ReceiveOnly, w.changed(ts, 0, 8, 11)}
		dirty[i] = keys(ts, 0, 8, 11)
	}
	w.sync(group, 0, states, dirty)
}

// syncNewcomer lets the last member, which starts at revision 0, adopt the state of the others.
func (w *world) syncNewcomer(group uint32) {
	w.t.Helper()
	n := len(w.members(group))
	ts := w.tensors(group)
	states := make([]state, n)
	dirty := make([][]string, n)
	for i := range states {
		states[i] = state{w.revision[group], wire.EnforcePopular, ts}
	}
	states[n-1] = state{0, wire.EnforcePopular, w.changed(ts)}
	dirty[n-1] = keys(ts)
	w.sync(group, 0, states, dirty)
}

// optimize measures the links and reduces once in the ring that came of it
// (control spec, section 10).
func (w *world) optimize() {
	w.t.Helper()
	turns.done()
	turns.measure()
	err := all(w.peers, func(_ int, p *peer) error { return p.Optimize() })
	turns.measured()
	turns.compute()
	require.NoError(w.t, err)
	w.roundDone()
	w.checkAttributes(w.peers...)
	for _, g := range w.groups() {
		w.reduce(w.newOperation(g, pccl.Reduce{Op: sum, DType: f32}, 1000))
	}
}
