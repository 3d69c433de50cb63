package link

import (
	"time"

	"github.com/gopccl/gopccl/platform"
)

// arrivals counts the bytes that come on a connection, also those behind a gap, each of them once.
// Where nothing came behind one, and nothing is held there, they are those that were received. What
// came behind one is known by its segments only: a system may count several as one, so each is
// as long as those were on average of late that came in order.
type arrivals struct {
	looked   bool
	segments uint32 // at the last look
	aside    uint32 // ... those behind a gap
	received uint64 // ... in order
	held     uint64 // bytes that were counted and not received then
	counted  uint64 // segments before these, some hundred, whose average counts
	bytes    uint64 // of them

	disorder time.Duration // the last look with segments aside, or the first one
}

const (
	// fewArrivals segments do not have an average yet. It is one of the last manyArrivals: how
	// many are merged changes with what is sent at once.
	fewArrivals, manyArrivals = 64, 512
	// closedAfter is how long no segment has come aside when no gap is open any more. Until then
	// what is sent again may fill one after the other: it comes in order, and most of what is
	// received with it was held behind the gap.
	closedAfter = 300 * time.Millisecond
	// mostMerged is the longest segment that there is.
	mostMerged = 64 << 10
)

// since returns the bytes that have come since the last look; at the first one, those that were
// received since the connection began. now is the time since any beginning.
func (k *arrivals) since(info *platform.Info, now time.Duration) uint64 {
	segments, aside, received := uint64(info.Came-k.segments), uint64(info.Aside-k.aside), since(info.Received, k.received)
	k.segments, k.aside, k.received = info.Came, info.Aside, info.Received
	if !k.looked {
		k.looked, k.disorder = true, now
		return info.Received
	}
	if !info.Known.Has(platform.HasAside) {
		if aside = 0; received == 0 {
			aside = segments
		}
	}
	if aside > 0 {
		k.disorder = now
	}
	came := received - min(k.held, received)
	if now-k.disorder < closedAfter {
		each := k.each(info)
		came = max(came, min(segments*each, received+aside*each))
	} else if k.held == 0 {
		k.learn(segments, received, info)
	}
	k.held += came - received // may be less by no more than held
	return came
}

// learn takes segments that came in order. Words and pulses are none that say how long others are.
func (k *arrivals) learn(segments, received uint64, info *platform.Info) {
	if 2*received < segments*uint64(max(info.CameMSS, 1)) {
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
