package link

import "github.com/gopccl/gopccl/platform"

// arrivals counts the bytes that come on a connection, also those behind a gap. Where there is none,
// they are those that were received. What came behind one is known by its segments only: a system
// may count several as one, so each is as long as those were on average of late that came in order.
type arrivals struct {
	looked   bool
	segments uint32 // at the last look
	aside    uint32 // ... those behind a gap
	received uint64 // ... in order
	held     uint64 // bytes that were counted and not received then
	counted  uint64 // segments before these, some hundred, whose average counts
	bytes    uint64 // of them
}

const (
	// fewArrivals segments do not have an average yet. It is one of the last manyArrivals: how
	// many are merged changes with what is sent at once.
	fewArrivals, manyArrivals = 64, 512
	// mostMerged is the longest segment that there is.
	mostMerged = 64 << 10
)

// since returns the bytes that have come since the last look; at the first one, those that were
// received since the connection began.
func (k *arrivals) since(info *platform.Info) uint64 {
	segments, aside, received := uint64(info.Came-k.segments), info.Aside-k.aside, since(info.Received, k.received)
	k.segments, k.aside, k.received = info.Came, info.Aside, info.Received
	if !k.looked {
		k.looked = true
		return info.Received
	}
	behind := aside > 0
	if !info.Known.Has(platform.HasAside) {
		behind = segments > 0 && received == 0
	}
	if !behind && segments > 0 {
		k.learn(segments, received, info)
		came := received - min(k.held, received)
		k.held = 0
		return came
	}
	came := segments * k.each(info)
	if k.held+came < received {
		came = received - k.held
	}
	k.held += came - received
	return came
}

// learn takes segments that came in order. Words and pulses are none that say how long others are.
func (k *arrivals) learn(segments, received uint64, info *platform.Info) {
	if k.held > 0 || 2*received < segments*uint64(max(info.CameMSS, 1)) {
		return
	}
	k.counted, k.bytes = k.counted+segments, k.bytes+received
	if k.counted >= manyArrivals {
		k.counted, k.bytes = k.counted/2, k.bytes/2
	}
}

// each returns the bytes of a segment.
func (k *arrivals) each(info *platform.Info) uint64 {
	if k.counted < fewArrivals {
		return uint64(max(info.CameMSS, 0))
	}
	return min(k.bytes/k.counted, mostMerged)
}
