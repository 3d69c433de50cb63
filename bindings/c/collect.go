//go:build cgo

package main

// #include "gopccl.h"
import "C"

import (
	"math"
	"strings"
	"unsafe"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// barrierTag is that of the handle of a barrier, which has no tag of its own.
const barrierTag = math.MaxUint64

// kinds are the names of the kinds in errors.
var kinds = [...]string{
	C.gopcclAllGather: "all-gather", C.gopcclReduceScatter: "reduce-scatter", C.gopcclBroadcast: "broadcast",
	C.gopcclReduce: "reduce", C.gopcclGather: "gather", C.gopcclScatter: "scatter", C.gopcclAllToAll: "all-to-all",
}

// collective returns what d describes, for a member of the group a.
func collective(on call, a core.Attributes, d *C.gopcclCollective_t) (c core.Collective, err error) {
	c = core.Collective{Kind: core.Kind(d.kind), Tag: uint64(d.tag), Preserve: bool(d.preserve)}
	if uint64(d.root) > math.MaxInt32 {
		return c, on.bad("root is %d", uint32(d.root))
	}
	c.Root = int(d.root)
	if c.DType, err = known(on, "data type", uint32(d.datatype), dtype.TypeFromABI); err != nil {
		return c, err
	}
	if c.Kind == core.KindReduce || c.Kind == core.KindReduceScatter {
		if c.Op, err = known(on, "reduce operation", uint32(d.op), dtype.OpFromABI); err != nil {
			return c, err
		}
	}
	for _, l := range []struct {
		what string
		from *C.size_t
		to   *[]int
	}{{"counts", d.counts, &c.Counts}, {"send_counts", d.send_counts, &c.SendCounts}, {"recv_counts", d.recv_counts, &c.RecvCounts}} {
		if *l.to, err = blockCounts(on, a, l.what, l.from, d.members); err != nil {
			return c, err
		}
	}
	if c.Quantize, err = quantization(on, d.quantizer, d.quantized_type, c.DType, c.Op); err != nil {
		return c, err
	}
	sends, receives := takesPart(a.Index == c.Root, c.Kind)
	if sends {
		if c.Src, c.DeviceSrc, err = operand(on, "src", unsafe.Pointer(d.src), d.src_count, c.DType); err != nil {
			return c, err
		}
	}
	if receives {
		c.Dst, c.DeviceDst, err = operand(on, "dst", d.dst, d.dst_count, c.DType)
	}
	return c, err
}

// quantization returns how data of type t travels: by the quantizer called name, as the type
// that is named, or the narrowest that the quantizer has.
func quantization(on call, name, wire *C.char, t dtype.Type, op dtype.Op) (z core.Quantize, err error) {
	if name == nil {
		return z, nil
	}
	z.Algorithm = C.GoString(name)
	q, err := quant.Lookup(z.Algorithm)
	switch {
	case err != nil:
		return z, on.bad("quantizer is %q, there are %s", z.Algorithm, strings.Join(quant.Names(), ", "))
	case q == nil:
		return core.Quantize{}, nil
	case wire != nil:
		if z.Type, err = dtype.ParseWireType(C.GoString(wire)); err != nil {
			return z, on.bad("quantized_type: %v", err)
		}
		return z, nil
	}
	if op == dtype.Set { // a kind that does not combine
		op = dtype.Sum
	}
	if w, ok := quant.Narrowest(q, t, op); ok {
		z.Type = w // else the engine says why there is none
	}
	return z, nil
}

// takesPart reports which buffers the kind has at this member. Others are never looked at.
func takesPart(root bool, k core.Kind) (sends, receives bool) {
	switch k {
	case core.KindBroadcast, core.KindScatter:
		return root, true
	case core.KindReduce, core.KindGather:
		return true, root
	}
	return true, true
}

// blockCounts returns a list of members counts. Its length is compared first: nothing
// that is not there is read.
func blockCounts(on call, a core.Attributes, what string, list *C.size_t, members C.size_t) ([]int, error) {
	if list == nil || a.Members == nil { // without members the session refuses the call, and says why
		return nil, nil
	}
	if uint64(members) != uint64(len(a.Members)) {
		return nil, on.bad("%s has %d entries (members), the group has %d members", what, uint64(members), len(a.Members))
	}
	counts := make([]int, len(a.Members))
	for i, n := range unsafe.Slice(list, len(counts)) {
		if uint64(n) > math.MaxInt64/16 {
			return nil, on.bad("%s[%d] is %d elements", what, i, uint64(n))
		}
		counts[i] = int(n)
	}
	return counts, nil
}

// prepared returns the tag of what d describes, and the function that launches it.
func prepared(s *core.Communicator, d *C.gopcclCollective_t) (tag uint64, launch func() (*core.Handle, error), err error) {
	on := callCollect
	switch {
	case d == nil:
		return 0, nil, on.bad("collective is NULL")
	case uint64(d.size) != uint64(unsafe.Sizeof(*d)):
		return 0, nil, on.bad("size is %d, want sizeof(gopcclCollective_t), which is %d", uint64(d.size), unsafe.Sizeof(*d))
	case d.kind == C.gopcclBarrier:
		return barrierTag, s.LaunchBarrier, nil
	case d.kind < C.gopcclAllGather || d.kind > C.gopcclBarrier:
		return 0, nil, on.bad("unknown kind %d", uint32(d.kind))
	}
	on.name = kinds[d.kind]
	c, err := collective(on, s.Attributes(), d)
	return c.Tag, func() (*core.Handle, error) { return s.LaunchCollective(c) }, err
}

//export gopccl_collect
func gopccl_collect(h C.uintptr_t, d *C.gopcclCollective_t, out *C.pcclReduceInfo_t) C.int {
	return callCollect.guard(func() error {
		m, s, err := connected(callCollect, h)
		if err != nil {
			return err
		}
		tag, launch, err := prepared(s, d)
		if err != nil {
			return err
		}
		if err := m.unawaited(callCollect, tag); err != nil {
			return err
		}
		handle, err := launch()
		info, err := finished(m.ctx, handle, err)
		if err == nil {
			moved(out, info)
		}
		return err
	})
}

//export gopccl_collect_async
func gopccl_collect_async(h C.uintptr_t, d *C.gopcclCollective_t, wanted C.int, out *C.uint64_t) C.int {
	return callCollect.guard(func() error {
		m, s, err := connected(callCollect, h)
		if err != nil {
			return err
		}
		if wanted == 0 {
			return callCollect.bad("handle_out is NULL")
		}
		tag, launch, err := prepared(s, d)
		if err != nil {
			return err
		}
		*out = C.uint64_t(tag)
		return m.launch(callCollect, tag, launch)
	})
}

//export gopccl_group
func gopccl_group(h C.uintptr_t, out *C.gopcclGroup_t, members *C.uint8_t, capacity C.size_t) C.int {
	return callGroup.guard(func() error {
		_, s, err := connected(callGroup, h)
		if err != nil {
			return err
		}
		if out == nil || (members == nil && capacity > 0) {
			return callGroup.bad("group_out or members is NULL")
		}
		a := s.Attributes()
		*out = C.gopcclGroup_t{size: C.size_t(a.LocalWorldSize), index: C.int(a.Index), collectives: C.bool(a.Collectives), mesh: C.bool(a.Mesh)}
		if n := int(min(uint64(capacity), uint64(len(a.Members)))); n > 0 {
			copy(unsafe.Slice((*core.UUID)(unsafe.Pointer(members)), n), a.Members)
		}
		return nil
	})
}
