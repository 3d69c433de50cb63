package quanttest

import (
	"bytes"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// Reduction describes a quantized ring all-reduce without a network (data
// spec, sections 2.2 and 4.3).
type Reduction struct {
	Quantizer quant.Quantizer
	Type      dtype.Type // of the data: Float32 or Float64
	Wire      dtype.Type
	Op        dtype.Op
	// KeepOwn breaks the determinism rule: the owner of a finished chunk keeps
	// its full precision values instead of what the others get.
	KeepOwn bool
	// SentBytes counts the payload of all data frames.
	SentBytes int
}

// message is what one peer sends in one step.
type message struct {
	meta quant.Meta
	data []byte
}

// Run reduces in place; bufs holds the buffer of each peer in ring order, all
// of one length. The division of avg is left out.
func (r *Reduction) Run(bufs [][]byte) {
	n := len(bufs)
	count := len(bufs[0]) / r.Type.Size()
	chunk := func(peer, c int) []byte {
		c = ((c % n) + n) % n
		lo := c*(count/n) + min(c, count%n)
		hi := lo + count/n
		if c < count%n {
			hi++
		}
		return bufs[peer][lo*r.Type.Size() : hi*r.Type.Size()]
	}
	encode := func(src []byte) message {
		m := message{meta: r.Quantizer.Params(r.Type, r.Wire, src)}
		m.data = make([]byte, quant.FormOf(r.Quantizer, r.Type, r.Wire).Size(len(src)/r.Type.Size()))
		r.Quantizer.Quantize(r.Type, r.Wire, &m.meta, m.data, src)
		return m
	}
	decode := func(m message, op dtype.Op, dst []byte) {
		r.Quantizer.Dequantize(r.Type, r.Wire, &m.meta, op, dst, m.data)
	}
	sent := make([]message, n)
	for s := range n - 1 {
		for p := range n {
			sent[p] = encode(chunk(p, p-s))
			r.SentBytes += len(sent[p].data)
		}
		for p := range n {
			decode(sent[(p+n-1)%n], r.Op, chunk(p, p-s-1))
		}
	}
	for p := range n {
		sent[p] = encode(chunk(p, p+1))
		if !r.KeepOwn {
			decode(sent[p], dtype.Set, chunk(p, p+1))
		}
	}
	for s := range n - 1 {
		received := make([]message, n)
		for p := range n {
			received[p] = sent[(p+n-1)%n]
			r.SentBytes += len(received[p].data)
			decode(received[p], dtype.Set, chunk(p, p-s))
		}
		sent = received
	}
}

// allEqual reports whether all peers hold the same bits.
func allEqual(bufs [][]byte) bool {
	for _, b := range bufs[1:] {
		if !bytes.Equal(b, bufs[0]) {
			return false
		}
	}
	return true
}
