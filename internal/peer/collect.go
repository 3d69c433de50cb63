package peer

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/collective"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/reduce"
	"github.com/gopccl/gopccl/internal/wire"
)

// Collective is core.Collective, and documented there.
type Collective struct {
	Kind                   uint8
	Tag                    uint64
	Root                   int
	Src, Dst               []byte
	DeviceSrc, DeviceDst   device.Buffer
	Counts                 []int
	SendCounts, RecvCounts []int
	DType                  dtype.Type
	Op                     dtype.Op
	Quantize               Quantize
	Preserve               bool
}

func (c *Collective) name() string { return plan.Kind(c.Kind).String() }

// blocks is the data phase of a collective other than all-reduce.
type blocks struct{ *collective.Operation }

// State describes it as that of an all-reduce is: bytes over all lanes.
func (b blocks) State() reduce.OpState {
	in := b.Operation.State()
	st := reduce.OpState{
		Tag: in.Tag, Seq: in.Seq, Eager: in.Eager, Count: in.Count, DType: in.DType, Op: in.Op, Phase: in.Phase,
		Reading: in.Reading > 0, Since: in.Since, Err: in.Err, Waits: in.Waits,
	}
	for _, l := range in.Lanes {
		if l.Sends {
			st.Sent, st.ToSend, st.InWrite = st.Sent+l.Bytes, st.ToSend+l.Total, st.InWrite+l.InWrite
		} else {
			st.Received, st.Expect = st.Received+l.Bytes, st.Expect+l.Total
		}
	}
	return st
}

// Collect launches a collective and returns at once, as AllReduceAsync does.
func (s *Session) Collect(ctx context.Context, c Collective) (*Operation, error) {
	name := plan.Kind(c.Kind).String()
	if err := ctx.Err(); err != nil {
		return nil, errs.New(errs.Canceled, name, err)
	}
	op, err := s.prepareCollective(c)
	if err != nil {
		return nil, err
	}
	if _, err := s.postOp(op); err != nil {
		return nil, err
	}
	if err := op.launched(ctx); err != nil {
		return nil, err
	}
	return op, nil
}

// CollectAndWait is Collect, and waits for the verdict as AllReduce does.
func (s *Session) CollectAndWait(ctx context.Context, c Collective) (ReduceInfo, error) {
	op, err := s.Collect(ctx, c)
	if err != nil {
		return ReduceInfo{}, err
	}
	return op.wait(ctx)
}

// LaunchCollective is Launch for a collective.
func (s *Session) LaunchCollective(c Collective) (*Operation, error) {
	op, err := s.prepareCollective(c)
	if err != nil {
		return nil, err
	}
	return s.launchNow(op)
}

// prepareCollective checks c and returns its operation, which no other goroutine knows yet.
func (s *Session) prepareCollective(c Collective) (*Operation, error) {
	kind := plan.Kind(c.Kind)
	if kind == plan.AllReduce || kind == plan.Barrier {
		return nil, errs.New(errs.InvalidArgument, kind.String(), errors.New("has a call of its own"))
	}
	if !kind.Combines() {
		c.Op = dtype.Sum // without a meaning, and the same on all members
	}
	spec := collective.Spec{
		Kind: kind, Tag: c.Tag, Root: c.Root, Src: c.Src, Dst: c.Dst, DeviceSrc: c.DeviceSrc, DeviceDst: c.DeviceDst,
		Counts: c.Counts, SendCounts: c.SendCounts, RecvCounts: c.RecvCounts, DType: c.DType, Op: c.Op, Preserve: c.Preserve,
	}
	form := wire.FormOf("", c.DType)
	q, err := quant.Lookup(c.Quantize.Algorithm)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, kind.String(), err)
	}
	spec.Quantizer, spec.WireType = q, c.Quantize.Type
	v := s.view.Load()
	if me := slices.Index(v.Members, v.UUID); v.Collectives && me >= 0 && len(v.Members) > 1 {
		spec.Trim(me)
		if err := spec.Check(len(v.Members), me, true); err != nil {
			return nil, err
		}
	}
	data, err := s.blocks.New(spec)
	if err != nil {
		return nil, err
	}
	if q != nil && spec.WireType == spec.DType {
		spec.Quantizer = nil // it travels as it is
	}
	if spec.Quantizer != nil {
		form = formOf(q, spec.DType, spec.WireType)
	}
	members := max(1, len(v.Members))
	sends := spec.MostSent(members, false)
	id, launch := fsm.OpID(s.ids.Add(1)), fsm.CallID(s.ids.Add(1))
	return &Operation{
		s: s, id: id, launch: launch, data: blocks{data}, world: v.LocalWorldSize, posted: time.Now(),
		event: fsm.CallCollective{
			Call: launch, Op: id, Tag: c.Tag, Count: uint64(spec.Count()), DType: c.DType, RedOp: c.Op,
			Form: form, Vote: spec.Vote(), Sends: uint64(sends), Direct: uint64(spec.MostSent(members, true)), Far: s.farAway(sends),
		},
	}, nil
}

// metered reports whether a collective sends about as much on every link of the ring, as
// an all-reduce does, so that the rate of a link is told by the time of all of it.
func metered(k plan.Kind) bool { return k == plan.AllGather || k == plan.ReduceScatter }

// startBlocks starts the data phase of a collective other than all-reduce.
func (s *Session) startBlocks(op *Operation, data blocks, e fsm.StartData) {
	if metered(op.kind()) {
		s.time(op, e)
	}
	id := e.Op // else all of e would live as long as Done
	data.Start(collective.Start{
		Seq: e.Seq, Epoch: e.Epoch, Eager: e.Eager, Ahead: int64(e.Ahead), Members: e.Members, Ring: e.Ring, Self: e.Self, Mesh: e.Mesh,
		Done: func(err error) {
			s.metered(op, err)
			s.dataEnded(id, err)
		},
	})
}

// metered ends an operation that the meter may have been told of.
func (s *Session) metered(op *Operation, err error) {
	if op.timing.state.Swap(over) != timed {
		return
	}
	if u, ok := s.meter.ended(time.Now()); ok && err == nil {
		if s.rate != nil {
			u.Mbps = s.rate(u.To)
		}
		s.box.post(u)
	}
}

// between tells both rooms of the data path whether an operation can run or start.
func (s *Session) between(on bool) {
	s.engine.Between(on)
	s.blocks.Between(on)
}

// skip tells them that an operation never starts here.
func (s *Session) skip(seq uint64) {
	s.engine.Skip(seq)
	s.blocks.Skip(seq)
}
