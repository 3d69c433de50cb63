package collective

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// Spec describes one collective operation of this member. Members are named by their
// index. Blocks lie in the order of the members, without gaps.
//
// The data is: all-gather: Src is the own block, Dst has all. Reduce-scatter: Src has
// all, Dst is the own block. Broadcast: Src at the root, Dst at the others; a Dst at
// the root gets a copy. Reduce: Src, and Dst at the root. Gather: Src is the own block,
// Dst at the root has all. Scatter: Src at the root has all, Dst is the own block.
// All-to-all: both have a block for each member. All-reduce: both have everything. The
// other buffers are not looked at.
//
// In place, the own block is at one address in both; an all-to-all has no such form.
// Otherwise Src and Dst do not overlap. Both belong to the operation until its done
// function was called.
type Spec struct {
	Kind     plan.Kind
	Tag      uint64
	Root     int
	Src, Dst []byte // little-endian
	// DeviceSrc and DeviceDst take their place if the data lies on a device.
	DeviceSrc, DeviceDst device.Buffer
	// Stage has the copies of them, if they were made for an all-reduce. It is the
	// caller's, who restores and releases it; nil: the operation makes its own.
	Stage device.Staging
	// Counts are the elements of the blocks, by member; nil: all blocks are equal.
	// Over a mesh, members other than the root of a gather or scatter need only know
	// their own.
	Counts []int
	// SendCounts and RecvCounts take their place in an all-to-all.
	SendCounts, RecvCounts []int
	// Scheme is how an all-reduce goes over a mesh; nil: directly, in equal parts. It is
	// cut in Stripes parts that follow each other; 0: as many as fit the size.
	Scheme  *plan.Scheme
	Stripes int
	DType   dtype.Type
	Op      dtype.Op // of kinds that combine
	// Quantizer encodes the blocks of an all-gather or reduce-scatter as WireType; nil:
	// they travel as they are.
	Quantizer quant.Quantizer
	WireType  dtype.Type
	// Preserve: a failed operation restores Dst as well where it is a pure output.
	Preserve bool
}

// ByMember reports whether blocks may have unequal sizes that are not known to all
// members, so that the two ends of a lane have to find out whether they agree.
func (s *Spec) ByMember() bool {
	return s.Kind.Direct() && (s.Counts != nil || s.SendCounts != nil || s.RecvCounts != nil)
}

// chunk is one chunk of a plan: where it lies in the caller's memory.
type chunk struct {
	size     int // bytes
	src, dst int // offsets; none: it is not there
}

const none = -1

// Place is a chunk of a plan as Places tells it: Size bytes, at Src and Dst in the
// buffers of these names; -1: it is not in that one.
type Place struct{ Size, Src, Dst int }

// Places says where member me of n has the chunks of its plan, and which of them it has
// to copy from Src to Dst itself; -1: none. Errors are those of Check.
func (s *Spec) Places(n, me int, mesh bool) (chunks []Place, own int, err error) {
	l, err := s.lay(n, me, mesh)
	if err != nil {
		return nil, none, err
	}
	for _, c := range l.chunks {
		chunks = append(chunks, Place{c.size, c.src, c.dst})
	}
	return chunks, l.own, nil
}

// Vote is what the members have to agree on.
func (s *Spec) Vote() wire.Call {
	c := wire.Call{Kind: uint8(s.Kind), WireType: uint16(s.DType), Root: uint32(s.Root)}
	quantizer := ""
	if s.Quantizer != nil {
		c.WireType, c.Flags, quantizer = uint16(s.WireType), wire.CallQuantized, s.Quantizer.Name()
	}
	if s.Kind.Direct() {
		c.Flags |= wire.CallMesh
	}
	if s.Counts != nil || s.SendCounts != nil {
		c.Flags |= wire.CallCounts
	}
	known := s.Counts
	if s.Kind.Direct() { // a member may know its own alone
		known = nil
	}
	for _, n := range s.Counts {
		c.Sum += uint64(n)
	}
	c.Digest = wire.DigestOf(c.Kind, c.Root, c.WireType, quantizer, known)
	return c
}

// layout is what a member has of the chunks of its plan.
type layout struct {
	chunks []chunk
	own    int // the chunk that has to be copied from Src to Dst here; none: no chunk
}

// Check reports what is wrong with s for member me of n: an *errs.Error with code
// InvalidArgument.
func (s *Spec) Check(n, me int, mesh bool) error {
	_, err := s.lay(n, me, mesh)
	return err
}

func (s *Spec) invalid(format string, args ...any) error {
	return errs.New(errs.InvalidArgument, s.Kind.String(), fmt.Errorf(format, args...))
}

// check looks at what does not depend on the group.
func (s *Spec) check() error {
	switch {
	case !s.Kind.Valid():
		return s.invalid("there is no such kind")
	case s.Kind == plan.Barrier:
		return nil
	case !s.DType.Valid():
		return s.invalid("unknown element type %d", uint8(s.DType))
	case s.Kind.Combines() && !s.Op.Valid():
		return s.invalid("unknown reduce operation %d", uint8(s.Op))
	case s.Root < 0 || s.Root > 0 && !s.Kind.Rooted():
		return s.invalid("root %d", s.Root)
	case s.src().size%s.DType.Size() != 0 || s.dst().size%s.DType.Size() != 0:
		return s.invalid("%d and %d bytes are not whole elements of %v", s.src().size, s.dst().size, s.DType)
	case s.Counts != nil && (s.Kind == plan.AllToAll || s.Kind == plan.AllReduce || s.Kind == plan.Broadcast || s.Kind == plan.Reduce):
		return s.invalid("counts by member have no meaning here")
	case s.Kind != plan.AllToAll && (s.SendCounts != nil || s.RecvCounts != nil):
		return s.invalid("counts of what is sent and received belong to an all-to-all")
	case s.Kind != plan.AllReduce && s.Scheme != nil:
		return s.invalid("a scheme belongs to an all-reduce")
	}
	if err := s.checkDevice(); err != nil {
		return err
	}
	return s.checkQuantizer(usualChunk)
}

// lay says where the chunks of the plan of member me of n lie.
func (s *Spec) lay(n, me int, mesh bool) (layout, error) {
	l := layout{own: none}
	if err := s.check(); err != nil {
		return l, err
	}
	if s.Kind.Rooted() && s.Root >= n {
		return l, s.invalid("root %d in a group of %d", s.Root, n)
	}
	var err error
	switch root := s.Root == me; s.Kind {
	case plan.AllReduce:
		err = s.layAll(&l, n)
	case plan.AllGather:
		l.own = me
		err = s.layBlocks(&l, n, me, s.dst().size, s.src().size, true)
	case plan.ReduceScatter:
		err = s.layBlocks(&l, n, me, s.src().size, s.dst().size, false)
	case plan.Broadcast, plan.Reduce:
		err = s.layWhole(&l, root)
	case plan.Gather:
		if root {
			l.own = me
			err = s.layBlocks(&l, n, me, s.dst().size, s.src().size, true)
		} else {
			err = s.layOwn(&l, n, me, s.src().size, true)
		}
	case plan.Scatter:
		if root {
			l.own = me
			err = s.layBlocks(&l, n, me, s.src().size, s.dst().size, false)
		} else {
			err = s.layOwn(&l, n, me, s.dst().size, false)
		}
	case plan.AllToAll:
		err = s.layPairs(&l, n, me, mesh)
	}
	if err != nil {
		return l, err
	}
	if n == 1 && len(l.chunks) > 0 {
		l.own = 0
	}
	if l.own != none && (l.chunks[l.own].src == none || l.chunks[l.own].dst == none) {
		l.own = none
	}
	if err := s.checkQuantizer(s.least(&l)); err != nil {
		return l, err
	}
	return l, s.checkOverlap(&l, me)
}

// sizes returns the bytes of n blocks that fill total bytes.
func (s *Spec) sizes(counts []int, total, n int) ([]int, error) {
	elem := s.DType.Size()
	list := make([]int, n)
	if counts == nil {
		if total%(n*elem) != 0 {
			return nil, s.invalid("%d elements do not divide into %d equal blocks (pass counts)", total/elem, n)
		}
		for i := range list {
			list[i] = total / n
		}
		return list, nil
	}
	if len(counts) != n {
		return nil, s.invalid("%d counts for %d members", len(counts), n)
	}
	left := total / elem
	for i, c := range counts {
		if c < 0 || c > left {
			return nil, s.invalid("counts %v, the buffer has %d elements", counts, total/elem)
		}
		left -= c
		list[i] = c * elem
	}
	if left > 0 {
		return nil, s.invalid("counts %v, the buffer has %d elements", counts, total/elem)
	}
	return list, nil
}

// layBlocks is for a member that has all blocks in one buffer, which are collected in it
// or come from it, and its own one in the other, of so many bytes.
func (s *Spec) layBlocks(l *layout, n, me, all, own int, collects bool) error {
	sizes, err := s.sizes(s.Counts, all, n)
	if err != nil {
		return err
	}
	if sizes[me] != own {
		return s.invalid("the own block has %d bytes, %d of the buffer of all are its place", own, sizes[me])
	}
	l.chunks = make([]chunk, n)
	at := 0
	for i, size := range sizes {
		l.chunks[i] = chunk{size, none, at}
		if !collects {
			l.chunks[i] = chunk{size, at, none}
		}
		at += size
	}
	if collects {
		l.chunks[me].src = 0
	} else {
		l.chunks[me].dst = 0
	}
	return nil
}

// layOwn is for a member that has its own block alone.
func (s *Spec) layOwn(l *layout, n, me, own int, sends bool) error {
	if s.Counts != nil && len(s.Counts) != n {
		return s.invalid("%d counts for %d members", len(s.Counts), n)
	}
	elem := s.DType.Size()
	l.chunks = make([]chunk, n)
	for i := range l.chunks {
		size := own
		if s.Counts != nil && i != me {
			if s.Counts[i] < 0 || s.Counts[i] > maxBytes/elem {
				return s.invalid("counts %v", s.Counts)
			}
			size = s.Counts[i] * elem
		}
		l.chunks[i] = chunk{size, none, none}
	}
	if s.Counts != nil && s.Counts[me] != own/elem {
		return s.invalid("the own block has %d elements, its count is %d", own/elem, s.Counts[me])
	}
	if sends {
		l.chunks[me].src = 0
	} else {
		l.chunks[me].dst = 0
	}
	return nil
}

// maxBytes bounds a block of which this member has nothing but the count.
const maxBytes = 1 << 48

// layWhole is for kinds whose data is one chunk.
func (s *Spec) layWhole(l *layout, root bool) error {
	c := chunk{s.src().size, 0, none}
	switch {
	case s.Kind == plan.Broadcast && !root:
		c = chunk{s.dst().size, none, 0}
	case s.Kind == plan.Broadcast && s.Dst == nil && s.DeviceDst.None(), s.Kind == plan.Reduce && !root:
	case s.dst().size != s.src().size:
		return s.invalid("destination has %d bytes, source %d", s.dst().size, s.src().size)
	default:
		c.dst = 0
		if s.Kind == plan.Broadcast {
			l.own = 0
		}
	}
	l.chunks = []chunk{c}
	return nil
}

func (s *Spec) layAll(l *layout, n int) error {
	if s.dst().size != s.src().size {
		return s.invalid("destination has %d bytes, source %d", s.dst().size, s.src().size)
	}
	var weights []uint32
	if s.Scheme == nil {
		for range n {
			weights = append(weights, 1)
		}
	} else {
		if err := s.Scheme.Check(n); err != nil {
			return errs.New(errs.InvalidArgument, s.Kind.String(), fmt.Errorf("scheme: %w", err))
		}
		weights = s.Scheme.Weights(s.stripes())
	}
	elem := s.DType.Size()
	at := 0
	for _, end := range plan.Cut(s.src().size/elem, elem, weights) {
		l.chunks = append(l.chunks, chunk{end*elem - at, at, at})
		at = end * elem
	}
	return nil
}

// stripes returns in how many parts a scheme is cut.
func (s *Spec) stripes() int {
	if s.Stripes > 0 {
		return s.Stripes
	}
	return plan.Stripes(s.src().size)
}

func (s *Spec) layPairs(l *layout, n, me int, mesh bool) error {
	varied := s.SendCounts != nil || s.RecvCounts != nil
	switch {
	case varied && !mesh:
		// A member passes on blocks of pairs whose counts it does not know.
		return s.invalid("unequal counts need connections between all members, and there are none in this group")
	case varied && (s.SendCounts == nil || s.RecvCounts == nil):
		return s.invalid("counts of what is sent and of what is received are needed, or none")
	case !varied && s.src().size != s.dst().size:
		return s.invalid("destination has %d bytes, source %d", s.dst().size, s.src().size)
	}
	send, err := s.sizes(s.SendCounts, s.src().size, n)
	if err != nil {
		return err
	}
	recv, err := s.sizes(s.RecvCounts, s.dst().size, n)
	if err != nil {
		return err
	}
	if send[me] != recv[me] {
		return s.invalid("%d bytes go to this member itself, and %d come", send[me], recv[me])
	}
	l.own = me*n + me
	l.chunks = make([]chunk, n*n)
	for i := range l.chunks {
		l.chunks[i] = chunk{0, none, none}
		if !varied {
			l.chunks[i].size = send[0]
		}
	}
	from, to := 0, 0
	for i := range n {
		out, in := &l.chunks[me*n+i], &l.chunks[i*n+me]
		out.size, out.src = send[i], from
		in.size, in.dst = recv[i], to
		from, to = from+send[i], to+recv[i]
	}
	return nil
}

var errOverlap = errors.New("source and destination overlap other than in place (use the same place for the own block, or separate buffers)")

// checkOverlap refuses buffers that share memory but for the own block.
func (s *Spec) checkOverlap(l *layout, me int) error {
	switch s.Kind {
	case plan.Broadcast:
		if l.own == none {
			return nil // one buffer is used
		}
	case plan.Reduce, plan.Gather, plan.Scatter:
		if s.Root != me {
			return nil
		}
	case plan.Barrier:
		return nil
	}
	src, dst := s.src(), s.dst()
	if !src.overlaps(dst) {
		return nil
	}
	at := me
	if len(l.chunks) == 1 || s.Kind == plan.AllReduce {
		at = 0
	}
	c := l.chunks[at]
	if s.Kind == plan.AllToAll || c.src == none || c.dst == none || src.at+uint64(c.src) != dst.at+uint64(c.dst) {
		return errs.New(errs.InvalidArgument, s.Kind.String(), errOverlap)
	}
	return nil
}

// region is where a buffer lies, on the host or on a device.
type region struct {
	at   uint64
	size int // bytes
}

func (s *Spec) src() region { return regionOf(s.Src, s.DeviceSrc) }
func (s *Spec) dst() region { return regionOf(s.Dst, s.DeviceDst) }

func regionOf(b []byte, d device.Buffer) region {
	if !d.None() {
		return region{d.Ptr, d.Bytes}
	}
	return region{uint64(address(b)), len(b)}
}

func (a region) overlaps(b region) bool {
	return a.size > 0 && b.size > 0 && a.at < b.at+uint64(b.size) && b.at < a.at+uint64(a.size)
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func overlap(a, b []byte) bool {
	return regionOf(a, device.Buffer{}).overlaps(regionOf(b, device.Buffer{}))
}

// Count returns the elements of the own block, of which members vote: what this member
// gives or gets alone, or all of it where there is one buffer.
func (s *Spec) Count() int {
	size := max(s.DType.Size(), 1)
	if s.Kind == plan.ReduceScatter || s.Kind == plan.Scatter || s.Kind == plan.Broadcast && s.src().size == 0 {
		return s.dst().size / size
	}
	return s.src().size / size
}

// MostSent returns a bound of the bytes that a member of n sends over a mesh, or over a
// ring, whatever its order.
func (s *Spec) MostSent(n int, mesh bool) int {
	src, dst := s.src().size, s.dst().size
	if mesh && s.Kind.Direct() {
		return src // in pairs: what is its own, or the root's
	}
	blocks := func(own int) int {
		if s.Counts == nil {
			return n * own
		}
		sum := 0
		for _, c := range s.Counts {
			sum += min(max(c, 0), maxBytes/n/8) * s.DType.Size()
		}
		return sum
	}
	if s.Quantizer != nil {
		f := s.form()
		return (s.whole()/s.DType.Size()/f.Elements + n) * f.Bytes
	}
	switch s.Kind {
	case plan.AllReduce:
		return 2 * src
	case plan.AllGather:
		return dst
	case plan.Gather:
		return blocks(src)
	case plan.Scatter:
		return max(src, blocks(dst))
	case plan.AllToAll:
		return n * src / 2
	case plan.Barrier:
		return 0
	}
	return max(src, dst) // broadcast: one of them; reduce and reduce-scatter: the source
}
