package link

import (
	"time"

	"github.com/gopccl/gopccl/platform"
)

// arrivals counts the bytes that come on a connection when they come, also those behind a gap. Where
// no gap is open they are those that were received. What comes behind one is known by its segments
// only: a system may count several as one, and some come twice, so each is as long as those were of
// late that were received.
type arrivals struct {
	looked   bool
	segments uint32 // at the last look
	aside    uint32 // ... those behind a gap
	received uint64 // ... in order
	held     uint64 // bytes that were counted and not received then
	counted  uint64 // segments before these, some hundred, whose average counts
	bytes    uint64 // of them

	disorder time.Duration // the last look with segments aside, or the first one
	fresh    sample        // that the average does not have yet
}

// sample is segments of a time, and what was received in it.
type sample struct {
	segments, bytes uint64
	since           time.Duration
}

const (
	// fewArrivals segments do not have an average yet. It is one of the last manyArrivals: how
	// many are merged changes with what is sent at once.
	fewArrivals, manyArrivals = 64, 512
	// A gap is closed when no segment has come aside for gapTime, and for gapTrips round trips. Until
	// then what is sent again may fill one gap after the other: it comes in order, and most of what
	// is received with it was held.
	gapTime, gapTrips = 300 * time.Millisecond, 2
	// Where gaps are open all the time, segments of sampleTime say how long they are: what is held
	// at its beginning and at its end is a small part of them.
	sampleTime = time.Second
	// mostMerged is the longest segment that there is.
	mostMerged = 64 << 10
)

// since returns the bytes that have come since the last look; at the first one, those that were
// received since the connection began. now is the time since any beginning.
func (k *arrivals) since(info *platform.Info, now time.Duration) uint64 {
	segments, aside, received := uint64(info.Came-k.segments), uint64(info.Aside-k.aside), since(info.Received, k.received)
	k.segments, k.aside, k.received = info.Came, info.Aside, info.Received
	if !k.looked {
		k.looked, k.disorder, k.fresh.since = true, now, now
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
	closed := now-k.disorder >= max(gapTime, gapTrips*info.RTT)
	k.fresh.segments, k.fresh.bytes = k.fresh.segments+segments, k.fresh.bytes+received
	if closed || now-k.fresh.since >= max(sampleTime, gapTime+gapTrips*info.RTT) {
		k.learn(info)
		k.fresh = sample{since: now}
	}
	if closed { // what is held by then was counted without having come: its segments were shorter, or came twice
		k.held = 0
		return received
	}
	each := k.each(info)
	came := max(received-min(k.held, received), min(segments*each, received+aside*each))
	k.held += came - received // may be less by no more than held
	return came
}

// learn has fresh segments say how long others are. Words and pulses do not.
func (k *arrivals) learn(info *platform.Info) {
	f := k.fresh
	if f.segments == 0 || 2*f.bytes < f.segments*uint64(max(info.CameMSS, 1)) {
		return
	}
	k.counted, k.bytes = k.counted+f.segments, k.bytes+f.bytes
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
