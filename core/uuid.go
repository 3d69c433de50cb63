package core

import "github.com/gopccl/gopccl/internal/wire"

// UUID identifies a peer for the length of its session. The master draws it, so
// a process that connects again has another one.
type UUID [16]byte

// String returns the canonical form of 36 characters.
func (u UUID) String() string { return wire.UUID(u).String() }

// Short returns the first eight hex digits, as logs have them.
func (u UUID) Short() string { return wire.UUID(u).Short() }

func uuids(in []wire.UUID) []UUID {
	if in == nil {
		return nil
	}
	out := make([]UUID, len(in))
	for i, u := range in {
		out[i] = UUID(u)
	}
	return out
}
