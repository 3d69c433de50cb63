package core

import (
	"context"
	"slices"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/enroll"
	"github.com/gopccl/gopccl/internal/peer"
)

// Error says what failed, where, against whom and why; its Code classifies it,
// and errors.Is(err, code) asks for it. Every error of this package is one. See
// core/errs for fields and codes.
type Error = errs.Error

// Listener is a set of optional functions that hear of operations, connections
// and idleness; see core/trace for each, and for when it is called.
type Listener = trace.Listener

// DeviceBuffer is memory of an accelerator, for [Reduce] and [Tensor]; see
// core/device for its fields. The zero value is none.
type DeviceBuffer = device.Buffer

// DeviceSettings configure the platforms that serve device memory; see core/device.
type DeviceSettings = device.Settings

// HashSettings say how shared states are hashed; see core/digest.
type HashSettings = digest.Settings

// Communicator is one peer's membership in a run, from Connect to Close. All
// methods are safe from any goroutine. Calls that the protocol does not let
// overlap are refused with errs.Busy or errs.PendingAsyncOps and change nothing;
// after Close, or when the run is over for this peer, every call is errs.Closed,
// errs.MasterLost or errs.Kicked.
type Communicator struct{ s *peer.Session }

// Connect joins the run of the master at opt.Master and returns when the
// accepted peers have let this one in; a peer alone is let in at once. ctx bounds
// the whole call: if it ends while others are waited for, the run is left.
//
// Errors: errs.InvalidArgument for options that can never work, before anything
// is dialled, and for ports or addresses that cannot be had; errs.InvalidConfig and
// errs.CorruptFile for credentials and join tokens; errs.MasterConnectionFailed, errs.TurnedAway, errs.Kicked, errs.Timeout,
// errs.Canceled.
func Connect(ctx context.Context, opt Options) (*Communicator, error) {
	in := opt.inner()
	if err := in.Check(); err != nil {
		return nil, err
	}
	var err error
	if in.Security, err = enroll.Obtain(ctx, in.Security, opt.Master, opt.Dial); err != nil {
		return nil, err
	}
	s, err := peer.Connect(ctx, in)
	if err != nil {
		return nil, err
	}
	return &Communicator{s}, nil
}

// Attributes of a communicator, from the last round it took part in. Sizes and
// Ring are those of that round: a peer that has died since still counts until
// an operation notices.
type Attributes struct {
	// UUID is this peer's.
	UUID UUID
	// GlobalWorldSize counts the peers of all groups, and with a PCCL master also
	// those who wait to be let in (quirk Q52); LocalWorldSize those of this group.
	GlobalWorldSize, LocalWorldSize int
	// NumGroups is the number of groups, LargestGroupSize that of the members of
	// the largest.
	NumGroups, LargestGroupSize int
	// Rank is this peer's place in Ring, -1 before the first round.
	Rank int
	// Ring is the group in the order of its ring. The slice is the caller's.
	Ring []UUID
	// Native says that every member of the group is a gopccl peer.
	Native bool
	// Collectives says that the group has those besides all-reduce, such as
	// [Communicator.Barrier]: every member and the master know them.
	Collectives bool
	// Members is the group in the order of collectives other than all-reduce, Index this
	// peer's place in it, and Mesh says that all members are connected with each other.
	// Members is nil where there are no such collectives. The slice is the caller's.
	Members []UUID
	Index   int
	Mesh    bool
	// Connected says that the connection to the master stands.
	Connected bool
}

func attributesOf(v peer.View) Attributes {
	return Attributes{
		UUID: UUID(v.UUID), GlobalWorldSize: v.GlobalWorldSize, LocalWorldSize: v.LocalWorldSize,
		NumGroups: v.NumGroups, LargestGroupSize: v.LargestGroupSize, Rank: v.Rank,
		Ring: uuids(v.Ring), Native: v.Native, Collectives: v.Collectives, Connected: v.Connected,
		Members: uuids(v.Members), Index: slices.Index(v.Members, v.UUID), Mesh: v.Mesh,
	}
}

// Attributes returns what the last round said. It asks nobody and never waits.
func (c *Communicator) Attributes() Attributes { return attributesOf(c.s.View()) }

// PeersPending asks whether an UpdateTopology is worth it: peers wait to be let
// in, or the master has found a better ring. All accepted peers of all groups
// must ask, and all get the same answer; it may overlap with all-reduces. Calls
// of one peer that overlap share one question, so ask from one goroutine of each
// peer. The vote of a call whose ctx has ended stands: the next call gets its
// answer, unless a round, or a later all-reduce or synchronisation, shows that
// the others have gone on.
func (c *Communicator) PeersPending(ctx context.Context) (bool, error) { return c.s.PeersPending(ctx) }

// UpdateTopology votes to let waiting peers in, and returns when the round that
// connects all neighbours has succeeded. Every accepted peer of every group must
// call it. If ctx ends, the run is left, since a vote cannot be taken back.
//
// Errors: errs.PendingAsyncOps while operations are un-awaited, errs.Busy,
// errs.UpdateTopologyFailed, errs.Canceled, and those of a lost master.
func (c *Communicator) UpdateTopology(ctx context.Context) error { return c.s.UpdateTopology(ctx) }

// WaitForPeers returns when this peer's group has at least n members, at once and
// without asking anyone if it has. Until then it lets in those who wait: all
// peers of the run must therefore call it, or PeersPending and UpdateTopology, at
// the same place of their loops. A trainer calls it in front of every step, to
// pause when its group has fallen below n and to go on when peers have come. The
// members are those of the last round, so that all peers decide alike.
//
// While the group is large enough it lets nobody in. A step therefore begins with
// PeersPending, and UpdateTopology if somebody waits.
//
// Errors: those of PeersPending and UpdateTopology. ctx ends the waiting; while a
// round runs its end leaves the run, as in UpdateTopology.
func (c *Communicator) WaitForPeers(ctx context.Context, n int) error {
	return c.s.WaitForPeers(ctx, n)
}

// OptimizeTopology measures the bandwidths that the master misses and adopts the
// ring that it finds. Every accepted peer of every group must call it. If ctx
// ends, the run is left. Where all peers are gopccl peers the master adopts
// better rings by itself, and nobody needs to call this.
//
// Errors: as UpdateTopology, and errs.TopologyOptimizationFailed.
func (c *Communicator) OptimizeTopology(ctx context.Context) error { return c.s.OptimizeTopology(ctx) }

// SyncSharedState makes st equal on all peers of the group (control spec,
// section 9). Every accepted peer of the group must call it with the same keys in
// the same order. The trainer raises st.Revision by one before each call after
// the first; a peer that is outdated gets content and revision of the elected
// state. If ctx ends, the run is left, unless tensors are still being hashed. One
// call runs at a time; others get errs.Busy.
//
// Whatever ends a call that was to receive a state, the tensors may be overwritten
// in part. Then errors.As finds an *errs.Incomplete in the error, the revision is
// unchanged, and st.Torn names the tensors until a synchronisation succeeds or the
// caller has restored them. Until then st may only receive: the master does not
// elect it, errs.NoSharedStateAvailable says that there is nobody to receive
// from, and beside a PCCL master any strategy but ReceiveOnly is
// errs.InvalidUsage.
//
// Errors: errs.InvalidArgument, errs.Busy, errs.PendingAsyncOps, errs.Mismatch,
// errs.NoSharedStateAvailable, errs.TransferFailed, errs.HashMismatch,
// errs.DeviceFailed, errs.Canceled, and those of a lost master.
func (c *Communicator) SyncSharedState(ctx context.Context, st *SharedState, opt SyncOptions) (SyncInfo, error) {
	in := st.inner()
	info, err := c.s.SyncSharedState(ctx, in, opt.inner())
	st.adopt(in)
	return SyncInfo(info), err
}

// AllReduce reduces r over the group and returns the verdict. If ctx ends first,
// the operation is aborted for all peers and in-place buffers are restored. If it
// ends when this peer has already reported that it is through, the others may
// have the result: then the verdict is waited for and returned, be it success.
//
// After a failure it has taken part in the round that repairs the ring, so that
// the caller may retry at once, as every peer must. Errors: errs.InvalidArgument
// for what can never work, errs.Canceled, and those of [Handle.Wait].
func (c *Communicator) AllReduce(ctx context.Context, r Reduce) (ReduceInfo, error) {
	info, err := c.s.AllReduce(ctx, r.inner())
	return ReduceInfo(info), err
}

// AllReduceAsync launches an all-reduce and returns when the communicator has
// taken it. Any number may be in flight with distinct tags; with PCCL peers in the
// group at most 16 run at a time, and the others follow in launch order. ctx bounds
// the launch alone. The buffers are the engine's until the verdict.
//
// Errors: errs.InvalidArgument for what can never work, also a tag that is in
// flight; errs.TooFewPeers, errs.Busy, errs.Canceled, and those of a lost master.
func (c *Communicator) AllReduceAsync(ctx context.Context, r Reduce) (*Handle, error) {
	return handle(c.s.AllReduceAsync(ctx, r.inner()))
}

// Post launches an all-reduce without waiting for anything: it is picked up
// together with others that were posted, before every other call that this
// goroutine makes later. What AllReduceAsync would refuse because of the state
// of the communicator, Wait returns. Errors: errs.InvalidArgument for what can
// never work, errs.Closed.
func (c *Communicator) Post(r Reduce) (*Handle, error) { return handle(c.s.Post(r.inner())) }

// Launch is AllReduceAsync for those who wait in a way of their own: it gives the
// communicator a turn on the caller's goroutine, and returns also if the launch
// has to wait, as it does while a round repairs the ring. [Handle.Taken] tells
// when that is decided; what would have been refused, [Handle.Refused] and Wait
// return. Errors: errs.InvalidArgument for what can never work, errs.Closed.
func (c *Communicator) Launch(r Reduce) (*Handle, error) { return handle(c.s.Launch(r.inner())) }

// AllReduceMultipleWithRetry reduces every r of rs, at most maxInFlight at a time
// (16 if it is not positive), and repeats those that failed with the survivors
// until all are done. Tags must differ. It returns the sums of the counters.
//
// Errors: errs.InvalidArgument, errs.TooFewPeers when this peer is the last of its
// group, errs.Mismatch if peers pass different arguments, errs.RankConnectionLost
// when operations fail 16 times in a row although nobody came or left, and those
// of [Handle.Wait] that no retry mends. With an error, too, ReduceInfo.Done says
// which operations are done: to reduce those again in place would count every
// contribution twice. What is not done is as before.
func (c *Communicator) AllReduceMultipleWithRetry(ctx context.Context, rs []Reduce, maxInFlight int) (ReduceInfo, error) {
	list := make([]peer.Reduce, len(rs))
	for i, r := range rs {
		list[i] = r.inner()
	}
	info, err := c.s.AllReduceMultipleWithRetry(ctx, list, maxInFlight)
	return ReduceInfo(info), err
}

// AllReduceSlice reduces src into dst, which may be src, and blocks until the
// verdict. It is AllReduce of ReduceOf, with tag 0.
func AllReduceSlice[T dtype.Element](ctx context.Context, c *Communicator, dst, src []T, op dtype.Op) (ReduceInfo, error) {
	return c.AllReduce(ctx, ReduceOf(dst, src, op))
}

// Barrier returns when every member of the group has called it. A barrier moves no
// data; where collectives may begin before the master's word it takes one round trip
// to the master.
//
// If ctx ends first, the others' barrier fails as well, unless all of them have come
// before they hear of it; the error here is errs.Canceled either way. A peer has one
// barrier at a time.
// After a failure Barrier has taken part in the round that repairs the ring, as
// AllReduce has.
//
// Errors: errs.Unsupported if a member of the group or the master is PCCL's, or too
// old, and names it; errs.RankConnectionLost if a member has left or given up,
// errs.TooFewPeers if this peer is alone, errs.Mismatch if another peer calls
// something else, errs.Busy, errs.Canceled, and those of a lost master.
func (c *Communicator) Barrier(ctx context.Context) error { return c.s.Barrier(ctx) }

// LaunchBarrier begins a Barrier for those who wait in a way of their own, as Launch
// does an all-reduce. The handle has to be waited for, as any. Errors: errs.Closed.
func (c *Communicator) LaunchBarrier() (*Handle, error) { return handle(c.s.LaunchBarrier()) }

// Shutdown lets no more all-reduces in, waits until those that were launched
// have their verdicts, and closes the communicator as Close does: nothing is lost,
// and Wait still returns what each of them did. If ctx ends first, what is left is
// aborted as Close does, and the error is errs.Canceled.
func (c *Communicator) Shutdown(ctx context.Context) error { return c.s.Shutdown(ctx) }

// Leave leaves the run between two operations of the others: it lets no more operations
// in, waits until those that were launched have their verdicts, and until the others
// have a ring without this peer. No all-reduce or barrier of theirs is aborted for it,
// and no round fails. Then the communicator is closed, as Close does. Of the other
// collectives, whose buffers depend on who the members are, those that the others have
// launched meanwhile end with errs.RankConnectionLost. So do all of them where a PCCL
// peer or an older gopccl is in the group, or only one member is left: then the others
// go on as after Close.
//
// The last peer that has the group's shared state cannot leave while others wait for
// it: the error is errs.NoSharedStateAvailable, and the communicator goes on. Synchronise
// once more before the next Leave, or give the state up with Close. A peer that is alone
// may leave.
//
// No other call may run: errs.Busy. If ctx ends first, the communicator is closed as
// Close does, and the error is errs.Canceled.
func (c *Communicator) Leave(ctx context.Context) error { return c.s.Leave(ctx) }

// Close leaves the run: running operations are aborted for all peers, in-place
// buffers restored, every pending call answered, every connection and goroutine
// ended. (An operation of which this peer has already reported that it is through
// may have succeeded for the others; see Shutdown.) It is idempotent.
//
// It waits for functions of the caller that are running, such as
// SyncOptions.Progress, but not for ever: after twice Options.HandshakeTimeout it
// returns errs.Timeout, which says what is left. What the calls that have not
// returned were given is in use until they do. Inside such a function Close has
// to wait for itself, so call it from another goroutine there.
func (c *Communicator) Close() error { return c.s.Close() }
