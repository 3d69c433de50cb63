package link

import (
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Share has another room beside that of NewHub on the hub's connections: r is asked about
// frames whose stream number has all bits of mark, and hears of all connections as
// well. It is called before any connection is added.
func (h *Hub) Share(mark uint64, r Router) { h.router = shared{h.router, mark, r} }

// shared are two routers.
type shared struct {
	Router
	mark   uint64
	marked Router
}

func (s shared) Route(r *Receiver, h transport.Header, kept *Early) (Sink, Verdict, error) {
	if h.Stream&s.mark == s.mark {
		return s.marked.Route(r, h, kept)
	}
	return s.Router.Route(r, h, kept)
}

func (s shared) Wake() {
	s.Router.Wake()
	s.marked.Wake()
}

func (s shared) Regrouped(peer wire.UUID) {
	s.Router.Regrouped(peer)
	s.marked.Regrouped(peer)
}

func (s shared) Connected(r *Receiver) {
	s.Router.Connected(r)
	s.marked.Connected(r)
}

func (s shared) SenderLost(c *Sender, cause error) {
	s.Router.SenderLost(c, cause)
	s.marked.SenderLost(c, cause)
}

func (s shared) ReceiverLost(r *Receiver, cause error) {
	s.Router.ReceiverLost(r, cause)
	s.marked.ReceiverLost(r, cause)
}
