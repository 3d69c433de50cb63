package link

import (
	"net"

	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/platform"
)

// spreadWindows has the system spread windows that are too much for a queue on the way when they leave at once. A way
// that loses nothing gets them at once, which is sooner. After a timeout all that was on its way counts as lost, until
// it has arrived: that says nothing of queues.
func (f *flow) spreadWindows(conn net.Conn, info *platform.Info) {
	if f.spread || !info.Known.Has(platform.HasLost|platform.HasRetries) {
		return
	}
	f.timedOut = info.Retries > 0 || f.timedOut && info.Lost > 0
	if f.timedOut || !pace.Spills(info.Lost, info.MSS) {
		return
	}
	f.spread = true
	_, _ = platform.SpreadWindows(conn) // fails on one that has ended, of which others tell
}
