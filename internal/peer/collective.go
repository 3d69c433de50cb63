package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/reduce"
	"github.com/gopccl/gopccl/internal/wire"
)

// Quantize, Reduce and ReduceInfo are those of core, and documented there.
type (
	Quantize struct {
		Algorithm string
		Type      dtype.Type
	}
	Reduce struct {
		Tag                  uint64
		Src, Dst             []byte
		DeviceSrc, DeviceDst device.Buffer
		DType                dtype.Type
		Op                   dtype.Op
		Quantize             Quantize
		FinishForward        bool
	}
	ReduceInfo struct {
		WorldSize        int
		TxBytes, RxBytes uint64
		Retries          int
		Done             []bool
		Plan, Why        string
		FinishedForward  bool
	}
)

const opName = "all-reduce"

// AllReduceAsync launches an all-reduce and returns at once. Any number may be
// in flight with distinct tags; with PCCL peers in the group at most 16 run at
// a time and the others follow in launch order.
func (s *Session) AllReduceAsync(ctx context.Context, r Reduce) (*Operation, error) {
	if err := ctx.Err(); err != nil {
		return nil, errs.New(errs.Canceled, opName, err)
	}
	op, _, err := s.post(r)
	if err != nil {
		return nil, err
	}
	if err := op.launched(ctx); err != nil {
		return nil, err
	}
	return op, nil
}

// prepare checks r and returns its operation, which no other goroutine knows yet.
func (s *Session) prepare(r Reduce) (*Operation, error) {
	v := s.view.Load()
	if err := check(r, v); err != nil {
		return nil, errs.New(errs.InvalidArgument, opName, err)
	}
	q, err := quant.Lookup(r.Quantize.Algorithm)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, opName, err)
	}
	count, wireType := r.bytes()/r.DType.Size(), r.DType
	form := wire.FormOf("", r.DType)
	if q != nil {
		wireType = r.Quantize.Type
		if err := quant.Check(q, r.DType, wireType, r.Op, count/max(2, v.LocalWorldSize), v.Native); err != nil {
			return nil, errs.New(errs.InvalidArgument, opName, err)
		}
	}
	if wireType != r.DType { // otherwise it travels as it is
		form = formOf(q, r.DType, wireType)
	}
	data, err := s.engine.NewOp(reduce.Spec{
		Tag: r.Tag, Count: count, DType: r.DType, Op: r.Op,
		Src: r.Src, Dst: r.Dst, DeviceSrc: r.DeviceSrc, DeviceDst: r.DeviceDst, Quantizer: q, WireType: wireType,
	})
	if err != nil {
		return nil, err
	}
	id, launch := fsm.OpID(s.ids.Add(1)), fsm.CallID(s.ids.Add(1))
	return &Operation{
		s: s, id: id, launch: launch, data: data, world: v.LocalWorldSize, posted: time.Now(),
		event: fsm.CallCollective{Call: launch, Op: id, Tag: r.Tag, Count: uint64(count), DType: r.DType, RedOp: r.Op, Form: form, Far: s.farAway(r.bytes()), Forward: (r.FinishForward || s.opt.FinishForward) && r.DeviceDst.None()},
	}, nil
}

// farAway reports whether an operation that moves so many bytes is to begin before its
// commence because the master is far away. Small ones begin so anyway.
func (s *Session) farAway(bytes int) bool {
	if bytes <= s.opt.EagerBytes {
		return false
	}
	if s.opt.RoundTrip != nil {
		rtt, known := s.opt.RoundTrip(wire.UUID{})
		return known && !link.NearBy(rtt)
	}
	return s.master.conn().distant()
}

// formOf is what a member tells of data that q encodes.
func formOf(q quant.Quantizer, t, w dtype.Type) wire.WireForm {
	form := wire.FormOf(q.Name(), w)
	if f, ok := q.(quant.Formed); ok {
		g := f.Form(t, w)
		form.Elements, form.Bytes = uint16(g.Elements), uint16(g.Bytes)
	}
	return form
}

func (r *Reduce) bytes() int {
	if r.DeviceSrc.None() {
		return len(r.Src)
	}
	return r.DeviceSrc.Bytes
}

func where(b device.Buffer) string {
	if b.None() {
		return "host"
	}
	return b.Platform
}

// check refuses what must never reach a vote.
func check(r Reduce, v *fsm.View) error {
	switch {
	case !r.DType.Valid():
		return fmt.Errorf("unknown element type %d", uint8(r.DType))
	case !r.Op.Valid():
		return fmt.Errorf("unknown reduce operation %d", uint8(r.Op))
	case r.DeviceSrc.None() != r.DeviceDst.None():
		return fmt.Errorf("source (%s) and destination (%s) are not both on a device", where(r.DeviceSrc), where(r.DeviceDst))
	case !r.DeviceSrc.None() && len(r.Src)+len(r.Dst) > 0:
		return errors.New("buffers of host and device are both given")
	case len(r.Src) != len(r.Dst) || r.DeviceSrc.Bytes != r.DeviceDst.Bytes:
		return fmt.Errorf("source has %d bytes, destination %d", r.bytes(), len(r.Dst)+r.DeviceDst.Bytes)
	case r.bytes()%r.DType.Size() != 0:
		return fmt.Errorf("%d bytes are not a whole number of %v elements", r.bytes(), r.DType)
	case v.Connected && !v.Native && (r.DType == dtype.Float16 || r.DType == dtype.BFloat16):
		return fmt.Errorf("%v cannot be reduced with PCCL peers in the group: they exit on it (use float32)", r.DType)
	}
	return nil
}

// AllReduce reduces r over the group and blocks until the verdict. If ctx ends
// first, the operation is aborted for all peers and the buffers are restored. If
// it ends when this peer has reported already that it is through, the others may
// have the result: then the verdict is waited for, for as long as the slowest of
// them takes, and returned, be it success. The master drops silent peers, and its
// own silence ends the session, so that the wait has an end.
func (s *Session) AllReduce(ctx context.Context, r Reduce) (ReduceInfo, error) {
	op, err := s.AllReduceAsync(ctx, r)
	if err != nil {
		return ReduceInfo{}, err
	}
	return op.wait(ctx)
}
