package core

import (
	"context"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/peer"
)

// Operations of an all-reduce, for [Reduce] and the functions that make one.
const (
	Sum  = dtype.Sum  // the sum of all contributions
	Avg  = dtype.Avg  // the sum divided by the number of peers
	Prod = dtype.Prod // the product
	Max  = dtype.Max  // the largest
	Min  = dtype.Min  // the smallest
)

// Quantize says how the data of an all-reduce, all-gather or reduce-scatter travels. The
// zero value sends it as it is. It must be the same on every peer.
type Quantize struct {
	// Algorithm is the registered name of a quantizer, such as "minmax", "zeropoint"
	// or "blocks"; "none" or "": no quantization.
	Algorithm string
	// Type is the element type on the wire, such as dtype.Uint8, and dtype.Int4
	// for "blocks". Types of less than a byte need a group of gopccl peers.
	Type dtype.Type
}

// Reduce describes one all-reduce; [ReduceOf] makes one of Go slices. Tag, sizes,
// DType, Op and Quantize must be the same on every peer of the group:
// errs.Mismatch where the master notices that they are not.
type Reduce struct {
	// Tag names the operation among those in flight.
	Tag uint64
	// Src and Dst hold elements of DType in little-endian order, as many on every
	// peer; any alignment. Dst may be Src (in place); any other overlap is
	// errs.InvalidArgument. Both are the engine's from launch until the verdict. After a
	// failure an in-place buffer is as before, bit by bit; an out-of-place Dst is
	// undefined, and Src untouched.
	Src, Dst []byte
	// DeviceSrc and DeviceDst take the place of Src and Dst if the tensors lie on
	// a device. What was queued on their streams before the launch is waited for;
	// after the verdict the result is complete for every stream. The streams must
	// stay valid until then.
	DeviceSrc, DeviceDst DeviceBuffer
	// DType is the element type of the buffers.
	DType dtype.Type
	// Op is the operation: Sum, Avg, Prod, Max or Min.
	Op dtype.Op
	// Quantize is how the data travels.
	Quantize Quantize
	// FinishForward lets Wait return when this peer has the result, and not only when all survivors
	// have it: the round trip to the master is not waited for. If others could not complete the
	// operation they get this peer's result through the master, bit by bit, and the next operation
	// fails in the place of this one. Between the return and the verdict the tag is not free: a launch
	// with it waits, as do calls that change the group, and Close, for up to two seconds. A peer that
	// dies, or loses its master, in that moment may have returned a result that the others compute
	// again without it: its session is over, and it has to connect again.
	// Buffers are the caller's when Wait has returned.
	//
	// It takes effect if all members pass it, with tensors in the host's memory of at most 4 MiB, in a
	// group of gopccl peers of this version; ReduceInfo.FinishedForward says whether it did.
	FinishForward bool
}

// inner returns r as the session takes it; no data is copied.
func (r Reduce) inner() peer.Reduce {
	return peer.Reduce{
		Tag: r.Tag, Src: r.Src, Dst: r.Dst, DeviceSrc: r.DeviceSrc, DeviceDst: r.DeviceDst,
		DType: r.DType, Op: r.Op, Quantize: peer.Quantize(r.Quantize), FinishForward: r.FinishForward,
	}
}

// ReduceInfo is what a successful all-reduce moved. Bytes are counted as PCCL
// does (data spec, section 5); those of other collectives are the blocks alone, in
// the form in which they travel.
type ReduceInfo struct {
	// WorldSize is the number of members of the group, as known at launch.
	WorldSize int
	// TxBytes and RxBytes are what this peer sent and received.
	TxBytes, RxBytes uint64
	// Retries counts the operations that failed because the ring changed and
	// were run again; only AllReduceMultipleWithRetry retries.
	Retries int
	// Done says which operations have their results, in the order of the list. It is
	// nil but for AllReduceMultipleWithRetry, which returns it also with an error:
	// the buffers of the others are as before if they are in place.
	Done []bool
	// Plan is the way that the data took: "ring", "direct" where every member sent to
	// every other one, "shares" where members with fast links had more to do with that,
	// or "sites 3" where the members of each of three sites added up among themselves
	// first; "sites 3 in a ring" where sums went on from site to site; with ", shares" behind it where
	// members had unequal parts, with ", all pairs" where each sent to all in other sites.
	// Why says why not along the ring, and which link is the slowest. They are empty but for a single all-reduce.
	Plan, Why string
	// FinishedForward says that Wait returned before all survivors had the result
	// (Reduce.FinishForward); of a single all-reduce.
	FinishedForward bool
}

// ReduceOf describes an all-reduce of Go slices of the same length; dst may be
// src. The slices must stay untouched until the verdict.
func ReduceOf[T dtype.Element](dst, src []T, op dtype.Op) Reduce {
	return Reduce{Src: dtype.AsBytes(src), Dst: dtype.AsBytes(dst), DType: dtype.TypeOf[T](), Op: op}
}

// ReduceHalf describes an all-reduce of 16 bit floating point numbers; t is
// dtype.Float16 or dtype.BFloat16. Sums are formed in float32 and rounded to
// nearest even at every hop. With PCCL peers in the group it is
// errs.InvalidArgument: they exit on these types.
func ReduceHalf(dst, src []uint16, t dtype.Type, op dtype.Op) Reduce {
	return Reduce{Src: dtype.AsBytes(src), Dst: dtype.AsBytes(dst), DType: t, Op: op}
}

// ReduceDevice describes an all-reduce of device memory; dst may be src.
func ReduceDevice(dst, src DeviceBuffer, t dtype.Type, op dtype.Op) Reduce {
	return Reduce{DeviceSrc: src, DeviceDst: dst, DType: t, Op: op}
}

// TypeOf returns the element type of T.
func TypeOf[T dtype.Element]() dtype.Type { return dtype.TypeOf[T]() }

// Handle is an all-reduce in flight, as [Communicator.AllReduceAsync],
// [Communicator.Post] and [Communicator.Launch] return it. Every handle must be
// waited for, since that is where a failure is repaired. All methods are safe
// from any goroutine.
type Handle struct{ h *peer.Operation }

// Wait returns the verdict. After a failure, and if no other operation is
// un-awaited, it also takes part in the round that repairs the ring, so that the
// caller may retry at once; every peer must therefore wait for its operations in
// the same order. ctx ends only the waiting (errs.Canceled): the operation goes on,
// and a later Wait returns its verdict.
//
// Errors: errs.RankConnectionLost if the operation was aborted because a peer was
// lost (retry it), errs.TooFewPeers if this peer is alone, errs.Mismatch if peers
// passed different arguments, errs.MasterLost, errs.Kicked, errs.Closed,
// errs.DeviceFailed.
func (h *Handle) Wait(ctx context.Context) (ReduceInfo, error) {
	info, err := h.h.Wait(ctx)
	return ReduceInfo(info), err
}

// Done is closed when the verdict is known, or the result is here that Reduce.FinishForward does not have
// wait for it, and the buffers are the caller's again.
func (h *Handle) Done() <-chan struct{} { return h.h.Done() }

// Notify calls f once, as soon as Wait returns without waiting: on a goroutine
// of the engine, or on the caller's if the verdict is known, with no lock held.
// It is for those who wait in a way of their own: f must not block, nor close the
// communicator, since what runs on that goroutine waits for it.
func (h *Handle) Notify(f func()) { h.h.Notify(f) }

// Cancel aborts the operation for all peers, unless this peer has already
// reported that it is through with it, or others may have returned its result
// (Reduce.FinishForward), which it has then, too. The verdict still has to be
// awaited: only then are the buffers the caller's.
func (h *Handle) Cancel() { h.h.Cancel() }

// Taken is closed when the communicator has taken the operation, or refused it,
// or has ended. It is for handles of Launch and Post.
func (h *Handle) Taken() <-chan struct{} { return h.h.Taken() }

// Refused says why the communicator did not take the operation, nil if it did. It
// waits for Taken, and until the buffers of a refused operation are the caller's
// again.
func (h *Handle) Refused() error { return h.h.Refused() }

// Withdraw takes a launch back that the communicator has not taken yet: Refused
// then returns errs.Canceled. It has no effect on an operation that was taken.
func (h *Handle) Withdraw() { h.h.Withdraw() }

// handle wraps what a launch returned.
func handle(h *peer.Operation, err error) (*Handle, error) {
	if err != nil {
		return nil, err
	}
	return &Handle{h}, nil
}
