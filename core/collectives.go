package core

import (
	"context"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/peer"
)

// Kind is what a collective does with the blocks of the members.
type Kind uint8

// Kinds of collectives. An all-reduce has calls of its own.
const (
	// KindAllGather: Src is the own block, Dst gets those of all.
	KindAllGather Kind = 1
	// KindReduceScatter: Src has a block for each member, Dst gets the own one, reduced
	// over all members.
	KindReduceScatter Kind = 2
	// KindBroadcast: Src is the root's buffer, Dst that of the others.
	KindBroadcast Kind = 3
	// KindReduce: Dst of the root gets Src, reduced over all members.
	KindReduce Kind = 4
	// KindGather: Src is the own block, Dst of the root gets those of all.
	KindGather Kind = 5
	// KindScatter: Src of the root has a block for each member, Dst gets the own one.
	KindScatter Kind = 6
	// KindAllToAll: Src has a block for each member, Dst gets one from each.
	KindAllToAll Kind = 7
)

// Collective describes one collective other than an all-reduce, for which every member
// of the group has to be a gopccl peer that has them, and the master too
// (Attributes.Collectives). Kind, Tag, Root, DType, Op, Quantize and the counts that all know must
// be the same on every member: errs.Mismatch where they are not.
//
// Members are named by their index in Attributes.Members, which does not change with
// the ring; blocks lie in this order, without gaps.
type Collective struct {
	// Kind says what is done.
	Kind Kind
	// Tag names the operation among those in flight, all-reduces included.
	Tag uint64
	// Root is the member that broadcasts, scatters, gathers or gets the result.
	Root int
	// Src and Dst hold elements of DType in little-endian order; any alignment. In
	// place, the own block is at the same address in both; an all-to-all has no such
	// form. Any other overlap is errs.InvalidArgument. Both are the engine's from launch
	// until the verdict. After a failure all that was input is as before, bit by bit,
	// and what is output alone is undefined unless Preserve is set.
	Src, Dst []byte
	// DeviceSrc and DeviceDst take the place of Src and Dst if the tensors lie on a
	// device; what is said of streams and results in Reduce holds here, too. All of the
	// source is copied to the host before any of it is sent, and the result to the device
	// before this member says that it is through.
	DeviceSrc, DeviceDst DeviceBuffer
	// Counts are the elements of the blocks, by member; nil: all are equal. Where the
	// group has a mesh (Attributes.Mesh), members other than the root of a gather or
	// scatter may know their own alone, and the others are not looked at.
	Counts []int
	// SendCounts and RecvCounts take their place in an all-to-all, which then needs a mesh.
	SendCounts, RecvCounts []int
	// DType is the element type of the buffers.
	DType dtype.Type
	// Op is the operation of a reduce or reduce-scatter: Sum, Avg, Prod, Max or Min. Every
	// member adds in the order of the ring, so that the bits depend on it.
	Op dtype.Op
	// Quantize is how the blocks of an all-gather or reduce-scatter travel; other kinds take
	// none. A sum is encoded again at every hop. A block that is gathered is encoded once, by
	// its owner, and what Dst gets for it is what the others decode, so that all members have
	// the same bits; Src is as before, but in place it is what Dst gets.
	Quantize Quantize
	// Preserve restores Dst after a failure also where it is output alone. It costs a
	// copy of what is overwritten.
	Preserve bool
}

func (c Collective) inner() peer.Collective {
	return peer.Collective{
		Kind: uint8(c.Kind), Tag: c.Tag, Root: c.Root, Src: c.Src, Dst: c.Dst, DeviceSrc: c.DeviceSrc, DeviceDst: c.DeviceDst,
		Counts: c.Counts, SendCounts: c.SendCounts, RecvCounts: c.RecvCounts,
		DType: c.DType, Op: c.Op, Quantize: peer.Quantize(c.Quantize), Preserve: c.Preserve,
	}
}

// Collect does c with the group and returns the verdict. What is said of AllReduce, of
// the end of ctx and of failures, holds for every collective. Errors: also
// errs.Unsupported if a member or the master does not have collectives, and names it;
// errs.InvalidArgument if an all-to-all of unequal counts finds no connections between all.
func (c *Communicator) Collect(ctx context.Context, call Collective) (ReduceInfo, error) {
	info, err := c.s.CollectAndWait(ctx, call.inner())
	return ReduceInfo(info), err
}

// CollectAsync launches c and returns when the communicator has taken it, as
// AllReduceAsync does. The buffers are the engine's until the verdict.
func (c *Communicator) CollectAsync(ctx context.Context, call Collective) (*Handle, error) {
	return handle(c.s.Collect(ctx, call.inner()))
}

// LaunchCollective is CollectAsync for those who wait in a way of their own, as Launch
// is AllReduceAsync for them. Errors: errs.InvalidArgument for what can never work,
// errs.Closed.
func (c *Communicator) LaunchCollective(call Collective) (*Handle, error) {
	return handle(c.s.LaunchCollective(call.inner()))
}

// CollectWithRetry does the collective that describe returns for the members there are,
// and again, with those that are left, after each failure that a round has repaired.
// describe is called before every attempt, since blocks and the root depend on the members;
// every member has to describe the same collective. Its error ends the call, such as that
// of a root that has left. ReduceInfo.Retries counts the failures.
//
// Errors: those of Collect that no retry mends, and errs.RankConnectionLost if it failed 16
// times in a row although nobody came or left.
func (c *Communicator) CollectWithRetry(ctx context.Context, describe func(Attributes) (Collective, error)) (ReduceInfo, error) {
	info, err := c.s.CollectWithRetry(ctx, func(v peer.View) (peer.Collective, error) {
		call, err := describe(attributesOf(v))
		return call.inner(), err
	})
	return ReduceInfo(info), err
}

// CollectOption changes what AllGather and the functions like it pass to Collect: it sets
// the Tag, Counts, Quantize or Preserve.
type CollectOption func(*Collective)

func collect[T dtype.Element](ctx context.Context, c *Communicator, call Collective, dst, src []T, options []CollectOption) (ReduceInfo, error) {
	call.Src, call.Dst, call.DType = dtype.AsBytes(src), dtype.AsBytes(dst), dtype.TypeOf[T]()
	for _, change := range options {
		change(&call)
	}
	return c.Collect(ctx, call)
}

// AllGather gives dst the blocks src of all members. src may be the own block of dst.
func AllGather[T dtype.Element](ctx context.Context, c *Communicator, dst, src []T, options ...CollectOption) (ReduceInfo, error) {
	return collect(ctx, c, Collective{Kind: KindAllGather}, dst, src, options)
}

// ReduceScatter gives dst the own block of src, reduced over all members. dst may be
// that block.
func ReduceScatter[T dtype.Element](ctx context.Context, c *Communicator, dst, src []T, op dtype.Op, options ...CollectOption) (ReduceInfo, error) {
	return collect(ctx, c, Collective{Kind: KindReduceScatter, Op: op}, dst, src, options)
}

// Broadcast gives buffer what the root has in it.
func Broadcast[T dtype.Element](ctx context.Context, c *Communicator, buffer []T, root int, options ...CollectOption) (ReduceInfo, error) {
	return collect(ctx, c, Collective{Kind: KindBroadcast, Root: root}, buffer, buffer, options)
}

// ReduceTo gives dst of the root the sum, or what op says, of src of all members. dst of
// the others is not looked at; that of the root may be src.
func ReduceTo[T dtype.Element](ctx context.Context, c *Communicator, dst, src []T, op dtype.Op, root int, options ...CollectOption) (ReduceInfo, error) {
	return collect(ctx, c, Collective{Kind: KindReduce, Op: op, Root: root}, dst, src, options)
}

// Gather gives dst of the root the blocks src of all members. dst of the others is not
// looked at; src of the root may be its own block of dst.
func Gather[T dtype.Element](ctx context.Context, c *Communicator, dst, src []T, root int, options ...CollectOption) (ReduceInfo, error) {
	return collect(ctx, c, Collective{Kind: KindGather, Root: root}, dst, src, options)
}

// Scatter gives dst the own block of the root's src. src of the others is not looked at;
// dst of the root may be its own block of src.
func Scatter[T dtype.Element](ctx context.Context, c *Communicator, dst, src []T, root int, options ...CollectOption) (ReduceInfo, error) {
	return collect(ctx, c, Collective{Kind: KindScatter, Root: root}, dst, src, options)
}

// AllToAll gives member i block i of src, and dst the own blocks of all members.
func AllToAll[T dtype.Element](ctx context.Context, c *Communicator, dst, src []T, options ...CollectOption) (ReduceInfo, error) {
	return collect(ctx, c, Collective{Kind: KindAllToAll}, dst, src, options)
}
