// Package sharedstate hands out and fetches the tensors of a shared state
// (control spec, section 9; data spec, section 7).
//
// The holders of the elected state run a Server whose window they open before
// they vote and shut when the synchronisation is complete. An outdated peer
// calls Fetch, which writes the bytes straight into the caller's tensors and
// accepts none whose hash is not the elected one.
package sharedstate

import (
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/wire"
)

// Tensor is one entry of a shared state.
type Tensor struct {
	// Key names the tensor within the state; unique.
	Key string
	// Data is the content in host byte order. It stays the caller's; who may
	// read or write it when is said at the functions that take a Tensor.
	Data []byte
	// DType is the element type. It is compared between peers, and decides in
	// groups with PCCL ends whether there is any content (quirk Q33).
	DType dtype.Type
	// AllowInequality exempts the content from comparison and hash checks.
	AllowInequality bool
}

// contentless reports whether PCCL 1.0.0 gives entries of type t size 0 and
// hash 0 (quirk Q33).
func contentless(t dtype.Type) bool {
	return t == dtype.Int16 || t == dtype.Float16 || t == dtype.BFloat16
}

// content returns the bytes of t that take part in a synchronisation.
func (t *Tensor) content(legacy bool) []byte {
	if legacy && contentless(t.DType) {
		return nil
	}
	return t.Data
}

// Entries returns what a peer votes with, one entry per tensor in the same
// order. Hashes are SimpleHashes; an entry with AllowInequality is not hashed
// and has hash and hash type 0. The number of elements is always 0 (quirk
// Q20). legacy says that PCCL ends may be in the group: int16, float16 and
// bfloat16 entries then have hash 0, as PCCL has it (quirk Q33). workers
// bounds the number of goroutines that hash at once, 0 means one per core.
// The tensors are read only while Entries runs.
func Entries(ts []Tensor, legacy bool, workers int) []wire.StateEntry {
	entries := make([]wire.StateEntry, len(ts))
	bufs := make([][]byte, len(ts))
	for i := range ts {
		t := &ts[i]
		entries[i] = wire.StateEntry{
			Key: t.Key, HashType: wire.HashSimple, DType: t.DType, AllowInequality: t.AllowInequality,
		}
		if !t.AllowInequality {
			bufs[i] = t.content(legacy)
		}
	}
	// An empty buffer has hash 0 (hashing spec, section 1), which is what the
	// exempted entries need.
	for i, h := range digest.HashAll(bufs, simple, workers) {
		entries[i].Hash = h
	}
	return entries
}

// simple is the hasher of shared state entries.
var simple = func() digest.Hasher {
	h, err := digest.Lookup("simplehash")
	if err != nil {
		panic(err) // a name of this module's own
	}
	return h
}()
