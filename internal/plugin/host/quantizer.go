package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/plugin/shm"
	"github.com/gopccl/gopccl/plugins/proto"
)

// QuantizerPlugin is a quant.Quantizer whose codec is in a plugin. All peers of
// a run must have the same plugin; PCCL peers have none. A call that the plugin
// does not answer is put again to the next process of it, since nothing but a
// plugin knows its bits; if there is none in time the operation fails with an
// internal error.
type QuantizerPlugin struct {
	t       *tensors
	table   atomic.Pointer[table]
	retried atomic.Int64
}

// table is what a plugin said of itself.
type table struct {
	kind quant.Kind
	size uint8 // of metadata of its own kind
	list []entry
}

type entry struct {
	t, w     dtype.Type
	op       dtype.Op
	minChunk int
	form     quant.Form
}

// StartQuantizer starts a quantizer plugin and waits until it has described
// itself, at most its start timeout.
func StartQuantizer(spec Spec) (*QuantizerPlugin, error) {
	spec.Kind = Quantizer
	p := &QuantizerPlugin{}
	t, err := startTensors(spec, func(in *instance) error {
		ctx, cancel := context.WithTimeout(context.Background(), in.spec.StartTimeout)
		defer cancel()
		d, err := proto.NewQuantizerClient(in.conn).Describe(ctx, &proto.DescribeRequest{})
		if err != nil {
			return fmt.Errorf("it does not describe itself: %w", err)
		}
		table, err := readTable(d)
		if err != nil {
			return err
		}
		if old := p.table.Load(); old != nil && (old.kind != table.kind || old.size != table.size || !slices.Equal(old.list, table.list)) {
			return errors.New("it is not the quantizer that it was before")
		}
		p.table.Store(table)
		return nil
	})
	if err != nil {
		return nil, err
	}
	p.t = t
	ctx, cancel := context.WithTimeout(context.Background(), t.spec.StartTimeout)
	defer cancel()
	if err := t.Wait(ctx); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// readTable reads what a plugin says, which may be anything.
func readTable(d *proto.QuantizerDescription) (*table, error) {
	out := &table{}
	switch d.Metadata {
	case "minmax":
		out.kind = quant.MinMax
	case "zeropoint":
		out.kind = quant.ZeroPoint
	case "own":
		if d.OwnKind < uint32(quant.Own) || d.OwnKind > math.MaxUint8 {
			return nil, fmt.Errorf("the kind of its own metadata, %d, is not from %d to 255", d.OwnKind, quant.Own)
		}
		if d.OwnSize > quant.MaxOwn {
			return nil, fmt.Errorf("its own metadata have %d bytes, %d are the most", d.OwnSize, quant.MaxOwn)
		}
		out.kind, out.size = quant.Kind(d.OwnKind), uint8(d.OwnSize)
	default:
		return nil, fmt.Errorf("its metadata %q is not minmax, zeropoint or own", clip(d.Metadata))
	}
	for _, c := range d.Combinations {
		t, err := dtype.ParseType(c.DataType)
		w, err2 := dtype.ParseWireType(c.WireType)
		op, err3 := dtype.ParseOp(c.Op)
		if err := errors.Join(err, err2, err3); err != nil {
			return nil, fmt.Errorf("it describes itself wrongly: %w", err)
		}
		if t != dtype.Float32 && t != dtype.Float64 || w.IsFloat() || t == w || c.MinChunk == 0 {
			return nil, fmt.Errorf("it describes itself wrongly: %v as %v, chunks of %d", t, w, c.MinChunk)
		}
		form := quant.Form{Elements: 1, Bytes: w.Size(), Kind: out.kind}
		if c.GroupElements != 0 {
			form.Elements, form.Bytes = int(min(c.GroupElements, math.MaxInt16)), int(min(c.GroupBytes, math.MaxUint16))
		}
		if err := form.Check(); err != nil {
			return nil, fmt.Errorf("it describes itself wrongly: %v as %v: %w", t, w, err)
		}
		out.list = append(out.list, entry{t, w, op, int(min(c.MinChunk, math.MaxInt32)), form})
	}
	if len(out.list) == 0 {
		return nil, errors.New("it supports no combination of types")
	}
	return out, nil
}

// Plugin is the program behind the quantizer.
func (p *QuantizerPlugin) Plugin() *Plugin { return p.t.Plugin }

// Close ends the plugin; nobody may compute with it any more.
func (p *QuantizerPlugin) Close() error { return p.t.Close() }

// Retried returns how many calls were put to another process of the plugin.
func (p *QuantizerPlugin) Retried() int64 { return p.retried.Load() }

// Name implements quant.Quantizer.
func (p *QuantizerPlugin) Name() string { return p.t.spec.Name }

// Check implements quant.Quantizer.
func (p *QuantizerPlugin) Check(t, q dtype.Type, op dtype.Op, minChunk int, native bool) error {
	if !native {
		return fmt.Errorf("PCCL peers do not have the quantizer plugin %s", p.Name())
	}
	for _, e := range p.table.Load().list {
		if e.t == t && e.w == q && e.op == op {
			if minChunk < e.minChunk {
				return fmt.Errorf("the quantizer plugin %s wants chunks of %d elements or more, the smallest has %d", p.Name(), e.minChunk, minChunk)
			}
			return nil
		}
	}
	return fmt.Errorf("the quantizer plugin %s does not encode %v as %v for %v", p.Name(), t, q, op)
}

// CheckMeta implements quant.Quantizer.
func (p *QuantizerPlugin) CheckMeta(t, _ dtype.Type, m *quant.Meta) error {
	own := p.table.Load()
	if m.Kind != own.kind || own.kind == quant.MinMax && m.DType != t || own.kind >= quant.Own && m.Size != own.size {
		return errMeta
	}
	return nil
}

var errMeta = errors.New("metadata of another quantizer")

// Form implements quant.Formed. PCCL peers do not have plugins anyway.
func (p *QuantizerPlugin) Form(t, q dtype.Type) quant.Form {
	for _, e := range p.table.Load().list {
		if e.t == t && e.w == q {
			return e.form
		}
	}
	return quant.Form{Elements: 1, Bytes: q.Size(), Kind: p.table.Load().kind}
}

// Params implements quant.Quantizer.
func (p *QuantizerPlugin) Params(t, q dtype.Type, src []byte) quant.Meta {
	f := shm.Frame{Call: shm.Params, Type: t, Wire: q, Count: uint64(len(src) / t.Size())}
	var m quant.Meta
	p.call(f, nil, nil, src, &m)
	return m
}

// Quantize implements quant.Quantizer.
func (p *QuantizerPlugin) Quantize(t, q dtype.Type, m *quant.Meta, dst, src []byte) {
	ts, form := t.Size(), p.Form(t, q)
	n := len(src) / ts
	for at := 0; at < n; at += pieceBytes / 8 {
		end := min(at+pieceBytes/8, n)
		p.call(shm.Frame{Call: shm.Quantize, Type: t, Wire: q, Count: uint64(end - at), Meta: *m, Form: form}, dst[form.Size(at):form.Size(end)], nil, src[at*ts:end*ts], nil)
	}
}

// Dequantize implements quant.Quantizer.
func (p *QuantizerPlugin) Dequantize(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, q []byte) {
	p.DequantizeFrom(t, qt, m, op, dst, dst, q)
}

// DequantizeFrom implements quant.Fused.
func (p *QuantizerPlugin) DequantizeFrom(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, acc, q []byte) {
	ts, form := t.Size(), p.Form(t, qt)
	n := len(dst) / ts
	for at := 0; at < n; at += pieceBytes / 8 {
		end := min(at+pieceBytes/8, n)
		p.call(shm.Frame{Call: shm.Dequantize, Type: t, Wire: qt, Op: op, Count: uint64(end - at), Meta: *m, Form: form},
			dst[at*ts:end*ts], acc[at*ts:end*ts], q[form.Size(at):form.Size(end)], nil)
	}
}

// attempts is how many processes of a plugin get the same call.
const attempts = 3

// call has the plugin compute one piece; before is copied to dst's place first.
// It panics with an *errs.Error if the plugin does not come back: the engine
// fails the operation and goes on.
func (p *QuantizerPlugin) call(f shm.Frame, dst, before, src []byte, meta *quant.Meta) {
	if len(src) > operandBytes {
		panic(p.t.spec.fail(errs.InvalidArgument, "quantize", fmt.Errorf("a chunk of %d bytes exceeds the %d that a plugin gets", len(src), operandBytes)))
	}
	l := <-p.t.lanes
	defer p.t.done(l, len(src))
	var x, y []byte
	f.Dst, x = l.operand(0, len(dst))
	f.A, y = l.operand(1, len(src))
	var last error
	for try := range attempts {
		if try > 0 {
			p.retried.Add(1)
		}
		in, err := p.t.current()
		if err != nil {
			in, err = p.await()
		}
		if err != nil {
			last = err
			break
		}
		copy(x, before)
		copy(y, src)
		l.frame = f
		if last = p.t.exchange(in, l); last == nil {
			copy(dst, x)
			if meta != nil {
				*meta = l.frame.Meta
			}
			return
		}
		if errors.Is(last, errRefused) {
			break
		}
		p.replaced(in)
	}
	panic(p.t.spec.fail(errs.Internal, "quantize", last).WithHint("look for the plugin's name in the log"))
}

// await waits for the next process, as long as one may take to start.
func (p *QuantizerPlugin) await() (*instance, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.t.spec.StartTimeout+time.Second)
	defer cancel()
	return p.t.await(ctx)
}

// replaced waits until in is no longer the current process.
func (p *QuantizerPlugin) replaced(in *instance) {
	for {
		p.t.mu.Lock()
		same, changed := p.t.up == in, p.t.changed
		p.t.mu.Unlock()
		if !same {
			return
		}
		<-changed // it was killed, so it will
	}
}

var (
	_ quant.Formed = (*QuantizerPlugin)(nil)
	_ quant.Fused  = (*QuantizerPlugin)(nil)
)
