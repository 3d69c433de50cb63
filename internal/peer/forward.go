package peer

import (
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// results are copies of what operations have returned before their verdict, for those who could not
// complete them. The machine bounds them. The book's mu guards them.
type results map[fsm.OpID][]byte

// target is where the result of op lies in the host's memory.
func (op *Operation) target() []byte {
	if data := op.reduction(); data != nil {
		return data.Spec().Dst
	}
	return nil
}

// finish gives the buffers back as e has it.
func (op *Operation) finish(e fsm.Finish) {
	var copied []byte
	if e.Keep {
		dst := op.target()
		copied = op.s.pool.Get(len(dst))
		copy(copied, dst)
	}
	op.phase().Finish(e.Restore)
	if e.Result != nil {
		copy(op.target(), e.Result)
	}
	if e.Keep {
		op.s.mu.Lock()
		op.s.kept[op.id] = copied
		op.s.mu.Unlock()
	}
}

// giveResult sends the master the result of an operation: the copy, or what is in its buffer.
func (s *Session) giveResult(e fsm.GiveResult) {
	s.mu.Lock()
	data, kept := s.kept[e.Op]
	op := s.ops[e.Op]
	s.mu.Unlock()
	if !kept && op != nil {
		data = op.target()
	}
	s.master.conn().queue(wire.C2MResult{Tag: e.Tag, Seq: e.Seq, Data: data}) // as a copy
}

// dropResult forgets the copy of a result.
func (s *Session) dropResult(id fsm.OpID) {
	s.mu.Lock()
	data := s.kept[id]
	delete(s.kept, id)
	s.mu.Unlock()
	s.pool.Put(data)
}
