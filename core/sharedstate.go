package core

import (
	"errors"
	"slices"

	"github.com/gopccl/gopccl/core/checkpoint"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer"
	"github.com/gopccl/gopccl/internal/sharedstate"
	"github.com/gopccl/gopccl/internal/wire"
)

// Tensor is one entry of a shared state; [TensorOf] makes one of a Go slice.
type Tensor struct {
	// Key names the tensor within the state; unique.
	Key string
	// Data is the content in host byte order. It stays the caller's.
	Data []byte
	// Device is the content if it lies on a device; Data is empty then.
	Device DeviceBuffer
	// DType is the element type. It is compared between peers. In groups with PCCL
	// peers, int16, float16 and bfloat16 tensors have no content (quirk Q33).
	DType dtype.Type
	// AllowInequality exempts the content from comparison: it may differ between
	// peers. A newcomer that is outdated gets it with the rest.
	AllowInequality bool
}

// Bytes is the size of the content.
func (t *Tensor) Bytes() int { return (*sharedstate.Tensor)(t).Bytes() }

// TensorOf names a Go slice as a tensor; its memory stays the caller's.
func TensorOf[T dtype.Element](key string, data []T) Tensor {
	return Tensor{Key: key, Data: dtype.AsBytes(data), DType: dtype.TypeOf[T]()}
}

// Strategy says which role a peer takes in a synchronisation.
type Strategy uint8

const (
	// EnforcePopular adopts the state that most peers have; every peer may send
	// or receive. It is the default.
	EnforcePopular = Strategy(wire.EnforcePopular)
	// ReceiveOnly adopts the state of others and is never elected.
	ReceiveOnly = Strategy(wire.ReceiveOnly)
	// SendOnly offers its own state and adopts none.
	SendOnly = Strategy(wire.SendOnly)
)

// SharedState is what a group keeps equal: named tensors and the revision of
// their content. The memory of the tensors stays the caller's;
// [Communicator.SyncSharedState] reads it, may overwrite it, and touches it at no
// other time. A SharedState is not safe for concurrent use.
type SharedState struct {
	// Revision counts the states. The trainer raises it by one after every
	// synchronised step; a peer that was outdated gets that of the elected state.
	Revision uint64
	// Tensors are the content: on all peers the same keys, types and sizes, in the
	// same order.
	Tensors []Tensor

	torn []string // see Torn
}

// Torn returns the keys of the tensors that a synchronisation has overwritten
// and not confirmed, nil if there are none. Each may have its old content, the
// elected one, or parts of both: the state as a whole is a mixture that nobody
// should compute with. A synchronisation that succeeds, LoadCheckpoint or
// Restored ends that. The slice is the caller's.
func (st *SharedState) Torn() []string { return slices.Clone(st.torn) }

// MarkTorn adds keys to those that Torn returns, for programs that make a new
// SharedState of the same memory, or that have left tensors half written.
func (st *SharedState) MarkTorn(keys ...string) {
	for _, k := range keys {
		if !slices.Contains(st.torn, k) {
			st.torn = append(st.torn, k)
		}
	}
}

// Restored says that the caller has given all tensors, and Revision, the
// content of one state again, from a copy of its own: nothing is torn any more.
func (st *SharedState) Restored() { st.torn = nil }

// LoadCheckpoint reads a file that SaveCheckpoint wrote into the tensors and
// Revision, and returns the meta data that were saved with it. Nothing is torn
// then. If the file is damaged or another model's, nothing has changed. Errors are
// those of checkpoint.LoadInto: errs.CorruptFile, errs.InvalidArgument (no such
// file), errs.Mismatch, errs.Internal, errs.DeviceFailed.
func (st *SharedState) LoadCheckpoint(path string) (meta map[string]string, err error) {
	s, err := checkpoint.LoadInto(path, st.stored())
	if err != nil {
		var e *errs.Error
		if errors.As(err, &e) && e.Phase == checkpoint.Overwriting {
			for _, t := range st.Tensors {
				st.MarkTorn(t.Key)
			}
		}
		return nil, err
	}
	st.Revision, st.torn = s.Revision, nil
	return s.Meta, nil
}

// SaveCheckpoint writes the state to a new file in dir, which is created if need
// be, and returns its path. meta is the caller's and may be nil. With keep > 0 only
// the keep newest checkpoints of dir remain; left has an error for each older one
// that could not be removed, for the log.
//
// Errors are those of checkpoint.Save: errs.InvalidArgument, errs.Internal,
// errs.DeviceFailed. A torn state is errs.InvalidUsage: a run that went on from it
// would go on from a mixture.
func (st *SharedState) SaveCheckpoint(dir string, meta map[string]string, keep int) (path string, left []error, err error) {
	if st.isTorn() {
		return "", nil, errs.New(errs.InvalidUsage, "save checkpoint", &errs.Incomplete{Torn: st.Torn()}).WithPeer(dir)
	}
	return checkpoint.Save(dir, checkpoint.State{Revision: st.Revision, Tensors: st.stored(), Meta: meta}, keep)
}

func (st *SharedState) stored() []checkpoint.Tensor {
	list := make([]checkpoint.Tensor, len(st.Tensors))
	for i, t := range st.Tensors {
		list[i] = checkpoint.Tensor(t)
	}
	return list
}

// isTorn reports whether a torn tensor is one of those that st has now.
func (st *SharedState) isTorn() bool {
	return slices.ContainsFunc(st.Tensors, func(t Tensor) bool { return slices.Contains(st.torn, t.Key) })
}

// inner returns st as the session takes it; no content is copied.
func (st *SharedState) inner() *peer.SharedState {
	if st == nil {
		return &peer.SharedState{}
	}
	in := &peer.SharedState{Revision: st.Revision, Torn: st.Torn(), Tensors: make([]sharedstate.Tensor, len(st.Tensors))}
	for i, t := range st.Tensors {
		in.Tensors[i] = sharedstate.Tensor(t)
	}
	return in
}

// adopt takes over what a synchronisation has changed.
func (st *SharedState) adopt(in *peer.SharedState) {
	if st != nil && (st.Revision != in.Revision || !slices.Equal(st.torn, in.Torn)) {
		st.Revision, st.torn = in.Revision, in.Torn
	}
}

// SyncOptions configure one synchronisation. The zero value is right for most.
type SyncOptions struct {
	// Strategy is this peer's role.
	Strategy Strategy
	// Progress is called from one goroutine while content is fetched, with no
	// lock held: bytes received and expected, and the key being received. The
	// transfer, and this call, wait for it. Close inside of it waits for itself,
	// see there. nil: none.
	Progress func(done, total uint64, key string)
}

func (o SyncOptions) inner() peer.SyncOptions {
	return peer.SyncOptions{Strategy: wire.Strategy(o.Strategy), Progress: o.Progress}
}

// SyncInfo is what a synchronisation moved.
type SyncInfo struct {
	// TxBytes and RxBytes are the payload bytes sent to other peers and received.
	TxBytes, RxBytes uint64
	// Outdated says that this peer's content was not the elected one, and was
	// replaced.
	Outdated bool
}

// StateHash condenses keys and contents of st's tensors, in order, to 64 bits,
// for comparing peers in logs and tests. It reads every tensor once. It
// does not appear on the wire and may change between versions.
func StateHash(st *SharedState) uint64 { return sharedstate.Digest(st.inner().Tensors) }
