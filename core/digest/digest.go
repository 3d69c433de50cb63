// Package digest computes the hashes that gopccl uses: SimpleHash and CRC-32C
// for shared state on the wire (they travel zero-extended in a u64), SHA-256
// for what lies on a disk. It is the one importer of sha256-simd.
//
// It is also the extension point for the hashes of shared states in host memory:
// a [Hasher] computes SimpleHash and CRC-32C in a way of its own, faster or
// elsewhere, and always to the same bits. A package registers a [Driver] under
// a name,
//
//	func init() { digest.Register("mine", driver{}) }
//
// and Options.Hash.Hasher or `peer.hasher` names it. [Select] refuses what does
// not compute the recorded values ([Check]), so a wrong one takes part in no
// election; the suite core/digest/digesttest checks the rest. Tensors on a device
// are hashed by their platform (core/device).
package digest

import (
	"hash"

	sha256 "github.com/minio/sha256-simd"
)

// SHA256 returns the SHA-256 of b.
func SHA256(b []byte) [32]byte { return sha256.Sum256(b) }

// NewSHA256 returns a running SHA-256.
func NewSHA256() hash.Hash { return sha256.New() }
