package determinism

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// Row is one comparison. Digests are the first eight bytes of a SHA-256 over
// the results, with one pattern for all NaNs, because which one arithmetic
// makes is the processor's choice.
type Row struct {
	Check    string  `json:"check"` // "reduce", "finalize", "quantize", "hash", "function", "exp"
	Case     string  `json:"case"`  // "sum float32", "minmax float32 to uint8", "NaN"
	On       string  `json:"on"`    // what computed
	Against  string  `json:"against"`
	Elements uint64  `json:"elements"`
	Value    string  `json:"value"` // digest, or count
	Want     string  `json:"want"`  // "" if nothing is known
	Differ   uint64  `json:"differ"`
	NaNs     uint64  `json:"differ_nan"` // of those that differ: NaN on both sides
	OK       bool    `json:"ok"`
	Seconds  float64 `json:"seconds"` // that the machine took
}

// Against what a row compares.
const (
	recorded = "recorded"
	report   = "PCCL report"
)

// processor is what rows call the reference where its backend is of no account.
const processor = "cpu"

// Elements is the number of elements per case for which results were recorded.
const Elements = 1 << 13

// Plan says what Run compares.
type Plan struct {
	// Reference comes first; what it computes is compared with what was
	// recorded, and the others with it, bit by bit.
	Reference Machine
	Others    []Machine
	// Rest says which of the others have quantizers, hash and exp of their own;
	// nil: all. The processor's backends share the process's.
	Rest func(Machine) bool
	// Hashers compute the simple hash, too.
	Hashers []digest.Hasher
	// Elements per case; results were recorded for the default, Elements.
	Elements int
	// Step: exp is evaluated at each step-th pattern; sums are known for 1. 0: not at all.
	Step uint64
}

// Run compares and tells emit the rows. It returns whether all are equal. An
// error of a machine, of emit or of ctx ends it.
func (p Plan) Run(ctx context.Context, emit func(Row) error) (bool, error) {
	r := &runner{Plan: p, ctx: ctx, emit: emit, ok: true}
	if r.Elements == 0 {
		r.Elements = Elements
	}
	for _, part := range []func() error{r.arithmetic, r.quantizers, r.hashes, r.functions, r.exp} {
		if err := part(); err != nil {
			return false, err
		}
	}
	return r.ok, nil
}

type runner struct {
	Plan
	ctx  context.Context
	emit func(Row) error
	ok   bool
}

func (r *runner) tell(row Row) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	r.ok = r.ok && row.OK
	return r.emit(row)
}

// rest returns the other machines that have a quantizer, hash and exp of their own.
func (r *runner) rest() (list []Machine) {
	for _, m := range r.Others {
		if r.Rest == nil || r.Rest(m) {
			list = append(list, m)
		}
	}
	return list
}

// outcome is what one machine made of one case: vectors of elements.
type outcome struct {
	parts []part
	took  time.Duration
}

type part struct {
	t dtype.Type
	b []byte
}

func (o *outcome) add(t dtype.Type, b []byte) { o.parts = append(o.parts, part{t, b}) }

func (o *outcome) digest() string {
	h := sha256.New()
	for _, p := range o.parts {
		b := append([]byte(nil), p.b...)
		oneNaN(p.t, b)
		h.Write(b)
	}
	return short(h)
}

func short(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:8]) }

// compare runs one case on all machines and tells the rows; the reference is called ours.
func (r *runner) compare(check, name, ours string, others []Machine, f func(m Machine, o *outcome) error) error {
	run := func(m Machine) (o outcome, err error) {
		start := time.Now()
		if err = f(m, &o); err != nil {
			err = fmt.Errorf("%s %s on %s: %w", check, name, m.Name(), err)
		}
		o.took = time.Since(start)
		return o, err
	}
	ref, err := run(r.Reference)
	if err != nil {
		return err
	}
	elements := uint64(0)
	for _, p := range ref.parts {
		elements += uint64(len(p.b) / p.t.Size())
	}
	row := Row{
		Check: check, Case: name, On: ours, Against: recorded,
		Elements: elements, Value: ref.digest(), OK: true, Seconds: ref.took.Seconds(),
	}
	if r.Elements == Elements {
		row.Want = known[check+" "+name]
		row.OK = row.Value == row.Want
	}
	if err := r.tell(row); err != nil {
		return err
	}
	for _, m := range others {
		o, err := run(m)
		if err != nil {
			return err
		}
		row := Row{
			Check: check, Case: name, On: m.Name(), Against: ours,
			Elements: elements, Value: o.digest(), Want: row.Value, Seconds: o.took.Seconds(),
		}
		for i, p := range o.parts {
			differ, nans := compare(p.t, p.b, ref.parts[i].b)
			row.Differ += differ
			row.NaNs += nans
		}
		_, device := m.(*GPU)
		row.OK = row.Differ == 0 || device && !sameNaNs && row.Differ == row.NaNs
		if err := r.tell(row); err != nil {
			return err
		}
	}
	return nil
}

// arithmetic compares every operation on every type, and the averages of groups.
func (r *runner) arithmetic() error {
	for t := range dtype.Type(dtype.NumTypes) {
		a, b := patterns(t, r.Elements, uint64(t)), patterns(t, r.Elements, uint64(t)+100)
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			err := r.compare("reduce", fmt.Sprintf("%v %v", op, t), r.Reference.Name(), r.Others, func(m Machine, o *outcome) error {
				dst := make([]byte, len(a))
				o.add(t, dst)
				return m.Reduce(t, op, dst, a, b)
			})
			if err != nil {
				return err
			}
		}
		err := r.compare("finalize", t.String(), r.Reference.Name(), r.Others, func(m Machine, o *outcome) error {
			for _, world := range []int{2, 3, 48} {
				dst := append([]byte(nil), a...)
				o.add(t, dst)
				if err := m.Finalize(t, dst, world); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// quantizers compares parameters, wire forms and values of every registered
// quantizer and all types it takes.
func (r *runner) quantizers() error {
	for _, name := range quant.Names() {
		q, err := quant.Lookup(name)
		if err != nil {
			return err
		}
		if q == nil {
			continue
		}
		for t := range dtype.Type(dtype.NumTypes) {
			for w := range dtype.Type(dtype.NumTypes) {
				if q.Check(t, w, dtype.Sum, r.Elements, true) != nil {
					continue
				}
				err := r.compare("quantize", fmt.Sprintf("%s %v to %v", name, t, w), processor, r.rest(), func(m Machine, o *outcome) error {
					return code(m, q, t, w, r.Elements, o)
				})
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// code encodes and decodes three chunks of n elements.
func code(m Machine, q quant.Quantizer, t, w dtype.Type, n int, o *outcome) error {
	for kind := range 3 {
		src, acc := numbers(t, n, kind, uint64(t)<<8|uint64(w)), numbers(t, n, 0, uint64(kind))
		meta, err := m.Params(q, t, w, src)
		if err != nil {
			return err
		}
		o.add(dtype.Uint64, describe(&meta))
		coded := make([]byte, n*w.Size())
		if err := m.Quantize(q, t, w, &meta, coded, src); err != nil {
			return err
		}
		o.add(w, coded)
		for op := dtype.Set; op < dtype.NumOps; op++ {
			if op != dtype.Set && q.Check(t, w, op, n, true) != nil {
				continue
			}
			dst := append([]byte(nil), acc...)
			o.add(t, dst)
			if err := m.Dequantize(q, t, w, &meta, op, dst, coded); err != nil {
				return err
			}
		}
	}
	return nil
}

func describe(m *quant.Meta) (b []byte) {
	for _, v := range []uint64{
		uint64(m.Kind), uint64(m.DType), math.Float64bits(m.Min), math.Float64bits(m.Max),
		uint64(m.ZeroPoint), uint64(math.Float32bits(m.Scale)),
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// hashes compares the simple hash of buffers of many lengths at all offsets
// below 16, and of a long one.
func (r *runner) hashes() error {
	data := patterns(dtype.Uint8, 1<<14, 7)
	others := r.rest()
	for _, h := range r.Hashers {
		others = append(others, hasher{r.Reference, h})
	}
	err := r.compare("hash", "short", processor, others, func(m Machine, o *outcome) error {
		out := make([]byte, 0, 4096)
		for n := 0; n < len(data); n += 1 + n/16 {
			h, err := m.Hash(data[:n], n%16)
			if err != nil {
				return err
			}
			out = binary.LittleEndian.AppendUint32(out, h)
		}
		o.add(dtype.Uint32, out)
		return nil
	})
	if err != nil {
		return err
	}
	long := patterns(dtype.Uint64, 4*r.Elements, 8)
	return r.compare("hash", "long", processor, others, func(m Machine, o *outcome) error {
		h, err := m.Hash(long, 0)
		o.add(dtype.Uint32, binary.LittleEndian.AppendUint32(nil, h))
		return err
	})
}

// exp compares the sums over float32 patterns with what is known of them.
func (r *runner) exp() error {
	if r.Step == 0 {
		return nil
	}
	for i, m := range append([]Machine{r.Reference}, r.rest()...) {
		start := time.Now()
		s, err := m.Exp(r.ctx, r.Step)
		if err != nil {
			return fmt.Errorf("exp on %s: %w", m.Name(), err)
		}
		took := time.Since(start).Seconds()
		on, want, from := m.Name(), Reported, report
		if i == 0 {
			on, want, from = processor, Ours, recorded
		}
		if r.Step != 1 {
			from = ""
		}
		n := below(Patterns, r.Step)
		for _, v := range []struct {
			name      string
			got, want uint64
			format    string
		}{
			{"NaN", s.NaN, want.NaN, "%d"},
			{"Inf", s.Inf, want.Inf, "%d"},
			{"finite", s.Finite, want.Finite, "%d"},
			{"sum of output bits", s.Sum, want.Sum, "%d"},
			{"XOR of output bits", uint64(s.XOR), uint64(want.XOR), "0x%08X"},
		} {
			row := Row{
				Check: "exp", Case: v.name, On: on, Against: from, Elements: n,
				Value: fmt.Sprintf(v.format, v.got), Seconds: took, OK: true,
			}
			if from != "" {
				row.Want, row.OK = fmt.Sprintf(v.format, v.want), v.got == v.want
			}
			if v.name == "NaN" && from == "" { // known for every step
				row.Against, row.Want = "NaN inputs", fmt.Sprint(nanInputs(r.Step))
				row.OK = row.Value == row.Want
			}
			if err := r.tell(row); err != nil {
				return err
			}
		}
	}
	return nil
}

// below counts the patterns below n in each step-th.
func below(n, step uint64) uint64 { return (n + step - 1) / step }

// nanInputs counts the NaNs in each step-th.
func nanInputs(step uint64) uint64 {
	return below(0x80000000, step) - below(0x7f800001, step) + below(Patterns, step) - below(0xff800001, step)
}

//go:embed recorded.txt
var recordedText string

// known holds the digests of Elements elements by check and case.
var known = func() map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(recordedText) {
		if name, digest, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			m[name] = digest
		}
	}
	return m
}()
