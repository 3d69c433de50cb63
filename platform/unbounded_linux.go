package platform

import (
	"time"

	"github.com/gopccl/gopccl/platform/internal/linux"
)

// retriesBeforeWaits is how many retries Linux allows for what is over before they wait for RetryWait each.
const retriesBeforeWaits = 4

func withoutUserTimeout(fd uintptr, o Options, info Info) (bool, error) {
	if !info.Known.Has(HasHeard | HasInFlight | HasUnsent) {
		return false, nil
	}
	if o.RetryWait > 0 { // so many of them end the connection
		many := max(linux.Retries()-retriesBeforeWaits, 1)
		if err := linux.SetRetryWait(fd, max(o.RetryWait+4*info.RTT, o.UserTimeout/time.Duration(many))); err != nil && Classify(err) != ClassUnsupported {
			return false, err
		}
	}
	return true, linux.SetUserTimeout(fd, 0)
}
