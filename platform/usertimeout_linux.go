package platform

import (
	"math/bits"
	"time"

	"github.com/gopccl/gopccl/platform/internal/linux"
)

const (
	leastRetryWait = 200 * time.Millisecond // what Linux takes for the first wait
	mostRetryWait  = 2 * time.Minute        // what it bounds waits by if nobody says otherwise
)

// retriedFor returns for how long Linux retries what is not acknowledged, so many times, if no wait is longer than
// wait (tcp_model_timeout): each is twice as long as the one before.
func retriedFor(retries int, wait time.Duration) time.Duration {
	doubled := min(retries, bits.Len64(uint64(wait/leastRetryWait))-1)
	return (2<<doubled-1)*leastRetryWait + time.Duration(retries-doubled)*wait
}

// retryWait returns the shortest bound of waits, and no less than least, with which it retries for as long as bound;
// false: there is none.
func retryWait(retries int, least, bound time.Duration) (time.Duration, bool) {
	for wait := max(least, leastRetryWait); wait < mostRetryWait; wait += wait / 16 {
		if retriedFor(retries, wait) >= bound {
			return wait, true
		}
	}
	return mostRetryWait, retriedFor(retries, mostRetryWait) >= bound
}

// waitBetween is retryWait, and has the system retry for goOn if the waits are not much longer then: with few retries
// they would be, and there would be fewer within bound.
func waitBetween(retries int, least, bound, goOn time.Duration) (time.Duration, bool) {
	wait, ok := retryWait(retries, least, bound)
	if longer, can := retryWait(retries, least, goOn); can && longer <= wait+wait/4 {
		return longer, true
	}
	return wait, ok
}

func withoutUserTimeout(fd uintptr, o Options, goOn time.Duration, info Info) (bool, error) {
	wait, ok := waitBetween(linux.Retries(), max(o.RetryWait+4*info.RTT, time.Second), o.UserTimeout, goOn)
	if !ok || !info.Known.Has(HasHeard|HasInFlight|HasUnsent|HasRetries) {
		return false, nil
	}
	if o.RetryWait > 0 {
		// A system without that bound retries for longer.
		if err := linux.SetRetryWait(fd, wait); err != nil && Classify(err) != ClassUnsupported {
			return false, err
		}
	}
	return true, linux.SetUserTimeout(fd, 0)
}
