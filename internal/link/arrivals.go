package link

import "github.com/gopccl/gopccl/platform"

// arrivals counts the bytes that come on a connection, also those behind a gap, by its segments.
// A system may count several as one, so each is as long as those were on average that were
// delivered, and as a full one at least.
type arrivals struct {
	looked    bool
	segments  uint32 // at the last look
	received  uint64 // ... in order
	aside     uint64 // segments since something was received in order
	counted   uint64 // segments before these, some thousand, whose average counts
	bytes     uint64 // of them
	total     uint64 // what came since the first look
	delivered uint64 // of it, in order
}

const (
	// fewArrivals segments do not have an average yet. It is one of the last manyArrivals.
	fewArrivals, manyArrivals = 64, 16 << 10
	// mostMerged is the longest segment that there is.
	mostMerged = 64 << 10
)

// since returns the bytes that have come since the last look; at the first one, since the
// connection began.
func (k *arrivals) since(info *platform.Info) uint64 {
	segments, received := uint64(info.Came-k.segments), since(info.Received, k.received)
	k.segments, k.received = info.Came, info.Received
	each := uint64(max(info.CameMSS, 0))
	if !k.looked {
		k.looked = true
		return segments * each
	}
	k.aside += segments
	k.delivered += received
	if received > 0 { // of what lies behind a gap the bytes are counted when it is filled
		k.counted, k.bytes, k.aside = k.counted+k.aside, k.bytes+received, 0
		if k.counted >= manyArrivals {
			k.counted, k.bytes = k.counted/2, k.bytes/2
		}
	}
	if k.counted >= fewArrivals {
		each = min(max(each, k.bytes/k.counted), mostMerged)
	}
	before := k.total
	k.total = max(before+segments*each, k.delivered)
	return k.total - before
}
