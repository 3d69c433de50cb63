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

func withoutUserTimeout(fd uintptr, o Options, goOn time.Duration, info Info) (bool, error) {
	least := max(o.RetryWait+4*info.RTT, time.Second)
	wait, ok := retryWait(linux.Retries(), least, goOn)
	if !ok {
		wait, ok = retryWait(linux.Retries(), least, o.UserTimeout)
	}
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
