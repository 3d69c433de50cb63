package reduce

import (
	"sync/atomic"
	"time"
)

// linkUse counts what a connection took, and for how long writes waited for it.
type linkUse struct {
	bytes atomic.Uint64
	nanos atomic.Int64
}

func (u *linkUse) add(n int, took time.Duration) {
	u.bytes.Add(uint64(max(n, 0)))
	u.nanos.Add(int64(took))
}
