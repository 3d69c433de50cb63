// Package core is what a trainer imports: fault-tolerant collectives and shared
// state over TCP, compatible with PCCL 1.0.0 on the wire.
//
// A trainer connects, keeps its parameters as shared state, all-reduces, and
// goes on when peers join, leave or die:
//
//	comm, err := core.Connect(ctx, core.Options{Master: "203.0.113.5:48148"})
//	...
//	for {
//		if pending, _ := comm.PeersPending(ctx); pending {
//			err = comm.UpdateTopology(ctx)
//		}
//		info, err := comm.SyncSharedState(ctx, state, core.SyncOptions{})
//		...
//		_, err = comm.AllReduceMultipleWithRetry(ctx, []core.Reduce{core.ReduceOf(grad, grad, core.Avg)}, 4)
//		...
//		state.Revision++
//	}
//
// Reduce kernels, quantizers and ring solvers are chosen by name; import
// backends/defaults, quantizers/defaults and (for a master) solvers/defaults,
// or your own.
//
// The package is a façade: types and calls of internal/peer, internal/master and the
// extension points under one name, and no logic of its own.
package core

import (
	"context"
	"io"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/peer"
	"github.com/gopccl/gopccl/internal/sharedstate"
	"github.com/gopccl/gopccl/internal/wire"
)

// Types of the calls, documented where they are defined.
type (
	Options     = peer.Options
	Reduce      = peer.Reduce
	ReduceInfo  = peer.ReduceInfo
	Quantize    = peer.Quantize
	Handle      = peer.Handle
	SharedState = peer.SharedState
	SyncOptions = peer.SyncOptions
	SyncInfo    = peer.SyncInfo
	Tensor      = sharedstate.Tensor
	// DeviceBuffer is memory of an accelerator, for Reduce and Tensor.
	DeviceBuffer   = device.Buffer
	DeviceSettings = device.Settings
	State          = peer.State
	Listener       = trace.Listener
	UUID           = wire.UUID
	Error          = errs.Error
)

// Reduce operations.
const (
	Sum  = dtype.Sum
	Avg  = dtype.Avg
	Prod = dtype.Prod
	Max  = dtype.Max
	Min  = dtype.Min
)

// Strategies of a shared state synchronisation.
const (
	EnforcePopular = wire.EnforcePopular
	ReceiveOnly    = wire.ReceiveOnly
	SendOnly       = wire.SendOnly
)

// Communicator is one peer's membership in a run. All methods are safe from
// any goroutine.
type Communicator struct{ s *peer.Session }

// Attributes of a communicator, from the last round it took part in. Global
// counts waiting peers, too (quirk Q52).
type Attributes struct {
	UUID                              UUID
	GlobalWorldSize, LocalWorldSize   int
	NumGroups, LargestGroupSize, Rank int
	Ring                              []UUID // of the group, in order; Rank is this peer's place in it
	Native                            bool   // every member of the group is a gopccl peer
	Connected                         bool
}

// Connect joins the run of the master at opt.Master and returns when the
// accepted peers have let this one in. Errors: errs.InvalidArgument,
// errs.MasterConnectionFailed, errs.Kicked, errs.Timeout, errs.Canceled.
func Connect(ctx context.Context, opt Options) (*Communicator, error) {
	s, err := peer.Connect(ctx, opt)
	if err != nil {
		return nil, err
	}
	return &Communicator{s}, nil
}

// Attributes returns a snapshot.
func (c *Communicator) Attributes() Attributes {
	v := c.s.View()
	return Attributes{
		UUID: v.UUID, GlobalWorldSize: v.GlobalWorldSize, LocalWorldSize: v.LocalWorldSize,
		NumGroups: v.NumGroups, LargestGroupSize: v.LargestGroupSize, Rank: v.Rank,
		Ring: append([]UUID(nil), v.Ring...), Native: v.Native, Connected: v.Connected,
	}
}

// UpdateTopology is peer.Session.UpdateTopology.
func (c *Communicator) UpdateTopology(ctx context.Context) error { return c.s.UpdateTopology(ctx) }

// PeersPending is peer.Session.PeersPending.
func (c *Communicator) PeersPending(ctx context.Context) (bool, error) { return c.s.PeersPending(ctx) }

// WaitForPeers is peer.Session.WaitForPeers.
func (c *Communicator) WaitForPeers(ctx context.Context, n int) error {
	return c.s.WaitForPeers(ctx, n)
}

// OptimizeTopology is peer.Session.OptimizeTopology.
func (c *Communicator) OptimizeTopology(ctx context.Context) error { return c.s.OptimizeTopology(ctx) }

// SyncSharedState is peer.Session.SyncSharedState.
func (c *Communicator) SyncSharedState(ctx context.Context, st *SharedState, opt SyncOptions) (SyncInfo, error) {
	return c.s.SyncSharedState(ctx, st, opt)
}

// AllReduce is peer.Session.AllReduce.
func (c *Communicator) AllReduce(ctx context.Context, r Reduce) (ReduceInfo, error) {
	return c.s.AllReduce(ctx, r)
}

// AllReduceAsync is peer.Session.AllReduceAsync.
func (c *Communicator) AllReduceAsync(ctx context.Context, r Reduce) (*Handle, error) {
	return c.s.AllReduceAsync(ctx, r)
}

// Post is peer.Session.Post.
func (c *Communicator) Post(r Reduce) (*Handle, error) { return c.s.Post(r) }

// Launch is peer.Session.Launch.
func (c *Communicator) Launch(r Reduce) (*Handle, error) { return c.s.Launch(r) }

// AllReduceMultipleWithRetry is peer.Session.AllReduceMultipleWithRetry.
func (c *Communicator) AllReduceMultipleWithRetry(ctx context.Context, rs []Reduce, maxInFlight int) (ReduceInfo, error) {
	return c.s.AllReduceMultipleWithRetry(ctx, rs, maxInFlight)
}

// State describes the communicator with all its operations and connections as
// they are now. It never waits for a peer, so it works while a call hangs.
func (c *Communicator) State() State { return c.s.State() }

// States describes every communicator of this process, oldest first.
func States() []State { return peer.States() }

// DumpState writes what States returns as text; see peer.DumpState.
func DumpState(w io.Writer) error { return peer.DumpState(w) }

// Shutdown is peer.Session.Shutdown: Close that first lets all operations end.
func (c *Communicator) Shutdown(ctx context.Context) error { return c.s.Shutdown(ctx) }

// Close leaves the run; see peer.Session.Close.
func (c *Communicator) Close() error { return c.s.Close() }

// TypeOf returns the element type of T.
func TypeOf[T dtype.Element]() dtype.Type { return dtype.TypeOf[T]() }

// ReduceOf describes an all-reduce of Go slices; dst may be src. The slices
// must stay alive and untouched until the verdict.
func ReduceOf[T dtype.Element](dst, src []T, op dtype.Op) Reduce {
	return Reduce{Src: dtype.AsBytes(src), Dst: dtype.AsBytes(dst), DType: dtype.TypeOf[T](), Op: op}
}

// ReduceHalf describes an all-reduce of 16 bit floating point numbers; t is
// dtype.Float16 or dtype.BFloat16. Sums are formed in float32 and rounded to
// nearest even at every hop. Not possible with PCCL peers in the group.
func ReduceHalf(dst, src []uint16, t dtype.Type, op dtype.Op) Reduce {
	return Reduce{Src: dtype.AsBytes(src), Dst: dtype.AsBytes(dst), DType: t, Op: op}
}

// AllReduceSlice reduces src into dst (which may be src) and blocks until the verdict.
func AllReduceSlice[T dtype.Element](ctx context.Context, c *Communicator, dst, src []T, op dtype.Op) (ReduceInfo, error) {
	return c.AllReduce(ctx, ReduceOf(dst, src, op))
}

// ReduceDevice describes an all-reduce of device memory; dst may be src.
func ReduceDevice(dst, src DeviceBuffer, t dtype.Type, op dtype.Op) Reduce {
	return Reduce{DeviceSrc: src, DeviceDst: dst, DType: t, Op: op}
}

// TensorOf names a Go slice as a tensor of a shared state; its memory stays the caller's.
func TensorOf[T dtype.Element](key string, data []T) Tensor {
	return Tensor{Key: key, Data: dtype.AsBytes(data), DType: dtype.TypeOf[T]()}
}

// StateHash is sharedstate.Digest of st's tensors, for comparing peers.
func StateHash(st *SharedState) uint64 { return sharedstate.Digest(st.Tensors) }
