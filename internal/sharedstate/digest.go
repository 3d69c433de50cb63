package sharedstate

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/gopccl/gopccl/core/digest"
)

// Digest condenses keys and contents of ts, in order, to 64 bits, for comparing
// peers in logs and tests. It reads every tensor once, keeps none, and
// does not appear on the wire. A device that cannot be read counts as the text of its error. It waits
// for what is queued on the streams of tensors on devices.
func Digest(ts []Tensor) uint64 {
	h := digest.NewSHA256()
	var b [8]byte
	for i := range ts {
		t := &ts[i]
		sum := uint64(digest.SimpleHash(t.Data))
		if c := t.content(false); !c.dev.None() {
			var err error
			if sum, err = c.simpleHash(context.Background(), t.Key); err != nil {
				fmt.Fprintf(h, "%v ", err)
			}
		}
		binary.LittleEndian.PutUint64(b[:], sum)
		fmt.Fprintf(h, "%q %d ", t.Key, t.Bytes())
		h.Write(b[:])
	}
	return binary.LittleEndian.Uint64(h.Sum(nil))
}
