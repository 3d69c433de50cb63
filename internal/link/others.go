package link

import (
	"encoding/binary"

	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/wire"
)

// compare tells the count of each peer what the other ones have shown in this tick.
func (v *survey) compare() {
	var all pace.Others
	idle, trials := 0, 0
	name := func(peer wire.UUID) uint64 { return binary.BigEndian.Uint64(peer[:8]) }
	for peer, c := range v.counts { // sums: their order decides nothing
		if !c.seen {
			continue
		}
		all.Peers++
		all.Arrived += c.span.Arrived
		all.Who ^= name(peer)
		if !c.span.Waiting {
			idle++
		}
		if c.Trying() {
			trials++
		}
	}
	for peer, c := range v.counts { // each by itself
		if s := &c.span; c.seen {
			s.Others = pace.Others{
				Arrived: all.Arrived - s.Arrived, Peers: all.Peers - 1, Who: all.Who ^ name(peer),
				Waiting: idle == 0 || idle == 1 && !s.Waiting, Trying: trials > 1 || trials == 1 && !c.Trying(),
			}
		}
	}
}
