package peer

import (
	"fmt"
	"time"

	"github.com/gopccl/gopccl/internal/collective"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/reduce"
	"github.com/gopccl/gopccl/internal/wire"
)

// exchange is the data phase of an all-reduce that uses the connections between all
// members instead of the ring. If its tensors lie on a device, all of the source is
// copied to the host first, and all of the result back: what goes this way is small. The
// copies are those that were prepared for the ring.
type exchange struct {
	blocks
	ring *reduce.Op // never started
	name string     // of the plan
	why  string
}

// startExchange starts the data phase of an all-reduce over the mesh.
func (s *Session) startExchange(op *Operation, ring *reduce.Op, e fsm.StartData) {
	spec := ring.Spec()
	x := &exchange{ring: ring, name: "direct", why: reasonOf(s.m.View().Direct)}
	all := collective.Spec{
		Kind: plan.AllReduce, Tag: spec.Tag, Src: spec.Src, Dst: spec.Dst, DeviceSrc: spec.DeviceSrc, DeviceDst: spec.DeviceDst,
		Stage: ring.Stage(), DType: spec.DType, Op: spec.Op,
	}
	if e.Large != nil {
		all.Scheme = e.Large.Scheme
		x.name, x.why = e.Large.Scheme.Name, s.m.View().Large.Why(e.Large, uint64(spec.Count)*uint64(spec.DType.Size()))
	}
	data, err := s.blocks.New(all)
	if err != nil {
		s.dataEnded(e.Op, err)
		return
	}
	x.blocks = blocks{data}
	op.direct.Store(x)
	id := e.Op // else all of e would live as long as Done
	data.Start(collective.Start{
		Seq: e.Seq, Epoch: e.Epoch, Eager: e.Eager, Ahead: int64(e.Ahead), Members: e.Members, Ring: e.Ring, Self: e.Self, Mesh: true,
		Done: func(err error) {
			s.yields(err)
			s.dataEnded(id, err)
		},
	})
}

// reasonOf says why an all-reduce takes the direct exchange.
func reasonOf(d wire.Direct) string {
	return fmt.Sprintf("at most %d bytes: delays add up to %v, to %v along the ring", d.Most,
		time.Duration(d.ExchangeUS)*time.Microsecond, time.Duration(d.RingUS)*time.Microsecond)
}

// Finish implements phase.
func (x *exchange) Finish(restore bool) {
	x.blocks.Finish(restore)
	x.ring.Finish(restore)
}

// State implements phase.
func (x *exchange) State() reduce.OpState {
	st := x.blocks.State()
	st.Count = x.ring.Spec().Count
	return st
}
