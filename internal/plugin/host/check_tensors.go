package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
)

// CheckBackend compares a backend plugin with a built-in backend, bit by bit,
// for every operation on every element type.
func CheckBackend(_ context.Context, p *BackendPlugin, builtIn backend.Backend, report func(Result)) {
	began := time.Now()
	if err := p.Probe(); err != nil {
		report(Result{Name: "starts", Err: err})
		return
	}
	report(Result{Name: "starts", Detail: fmt.Sprintf("in %v", time.Since(began).Round(time.Millisecond))})
	p.Small = 0
	rng := rand.New(rand.NewPCG(1, 1))
	for t := range dtype.Type(dtype.NumTypes) {
		report(Result{Name: t.String(), Err: sameAs(p, builtIn, t, rng)})
	}
	const size, rounds = 16 << 20, 8
	x, y := make([]byte, size), make([]byte, size)
	began = time.Now()
	for range rounds {
		p.Reduce(dtype.Float32, dtype.Sum, x, x, y)
	}
	rate := float64(size*rounds) / time.Since(began).Seconds() / 1e9
	var err error
	if p.Lost() > 0 {
		err = fmt.Errorf("%d pieces were not computed by the plugin", p.Lost())
	}
	report(Result{Name: "answers every call", Detail: fmt.Sprintf("float32 sum at %.1f GB/s", rate), Err: err})
}

// sameAs compares results on numbers that are not special: which NaN results
// from two is the conformance suite's matter.
func sameAs(p *BackendPlugin, builtIn backend.Backend, t dtype.Type, rng *rand.Rand) error {
	for _, n := range []int{1, 7, 1000, 300_000} {
		a, b := numbers(t, n, rng), numbers(t, n, rng)
		want, got := make([]byte, len(a)), make([]byte, len(a))
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			builtIn.Reduce(t, op, want, a, b)
			p.Reduce(t, op, got, a, b)
			if !bytes.Equal(want, got) {
				return fmt.Errorf("%v of %d elements gives other bits than %s", op, n, builtIn.Name())
			}
		}
		builtIn.Finalize(t, want, 3)
		p.Finalize(t, got, 3)
		if !bytes.Equal(want, got) {
			return fmt.Errorf("division of %d elements by 3 gives other bits than %s", n, builtIn.Name())
		}
	}
	return nil
}

// numbers gives n ordinary elements of t.
func numbers(t dtype.Type, n int, rng *rand.Rand) []byte {
	b := make([]byte, n*t.Size())
	for i := range n {
		at := b[i*t.Size():]
		f := float32(rng.NormFloat64())
		switch t {
		case dtype.Float16:
			binary.LittleEndian.PutUint16(at, dtype.Float16FromFloat32(f))
		case dtype.BFloat16:
			binary.LittleEndian.PutUint16(at, dtype.BFloat16FromFloat32(f))
		case dtype.Float32:
			binary.LittleEndian.PutUint32(at, math.Float32bits(f))
		case dtype.Float64:
			binary.LittleEndian.PutUint64(at, math.Float64bits(float64(f)))
		default:
			if t.IsFloat() {
				dtype.Unhandled("ordinary numbers", t)
			}
			for k := range t.Size() {
				at[k] = byte(rng.Uint32())
			}
		}
	}
	return b
}

// CheckQuantizer checks of every combination that the plugin describes that its
// metadata are taken, and that the same values come back wherever they lie and
// however a chunk is cut, with the error that this makes.
func CheckQuantizer(p *QuantizerPlugin, report func(Result)) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, e := range p.table.Load().list {
		detail, err := checkCodec(p, e, rng)
		if err == nil && p.Retried() > 0 {
			err = errors.New("the plugin had to be restarted")
		}
		report(Result{Name: fmt.Sprintf("%v as %v, %v", e.t, e.w, e.op), Detail: detail, Err: err})
	}
}

func checkCodec(p *QuantizerPlugin, e entry, rng *rand.Rand) (detail string, err error) {
	defer func() { // a call that the plugin does not answer
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	worst := 0.0
	for _, n := range []int{e.minChunk, e.minChunk + 1000, e.minChunk + 200_000} {
		src := numbers(e.t, n, rng)
		m := p.Params(e.t, e.w, src)
		if err := p.CheckMeta(e.t, e.w, &m); err != nil {
			return "", fmt.Errorf("its own metadata: %w", err)
		}
		coded := make([]byte, e.form.Size(n))
		p.Quantize(e.t, e.w, &m, coded, src)
		set := make([]byte, len(src))
		p.Dequantize(e.t, e.w, &m, dtype.Set, set, coded)
		cut := make([]byte, len(src)+1)[1:] // and at an odd address
		k := n / 3 / e.form.Elements * e.form.Elements
		p.Dequantize(e.t, e.w, &m, dtype.Set, cut[:k*e.t.Size()], coded[:e.form.Size(k)])
		p.Dequantize(e.t, e.w, &m, dtype.Set, cut[k*e.t.Size():], coded[e.form.Size(k):])
		if !bytes.Equal(set, cut) {
			return "", errors.New("a chunk that is cut gives other values")
		}
		sum := bytes.Clone(src)
		p.Dequantize(e.t, e.w, &m, e.op, sum, coded)
		again := bytes.Clone(src)
		p.Dequantize(e.t, e.w, &m, e.op, again, coded)
		if !bytes.Equal(sum, again) {
			return "", errors.New("the same call gives other values")
		}
		for i := range n {
			worst = math.Max(worst, math.Abs(element(e.t, src, i)-element(e.t, set, i)))
		}
	}
	return fmt.Sprintf("normal values come back within %.2g", worst), nil
}

func element(t dtype.Type, b []byte, i int) float64 {
	if t == dtype.Float32 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
}
