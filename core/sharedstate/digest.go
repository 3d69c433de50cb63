package sharedstate

import (
	"encoding/binary"
	"fmt"

	"github.com/gopccl/gopccl/core/digest"
)

// Digest condenses keys and contents of ts, in order, to 64 bits, for comparing
// peers in logs and tests. It reads every tensor once, keeps none, and is no
// wire value.
func Digest(ts []Tensor) uint64 {
	h := digest.NewSHA256()
	var b [8]byte
	for _, t := range ts {
		binary.LittleEndian.PutUint64(b[:], uint64(digest.SimpleHash(t.Data)))
		fmt.Fprintf(h, "%q %d ", t.Key, len(t.Data))
		h.Write(b[:])
	}
	return binary.LittleEndian.Uint64(h.Sum(nil))
}
