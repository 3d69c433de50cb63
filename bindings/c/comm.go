//go:build cgo

package main

// #include "pccl.h"
import "C"

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/bounds"
	"github.com/gopccl/gopccl/internal/wire"
)

// comm is a communicator. PCCL's calls have no time limits; ctx ends with
// pcclDestroyCommunicator.
type comm struct {
	opt    core.Options
	ctx    context.Context
	cancel context.CancelFunc

	mu         sync.Mutex
	connecting bool
	destroyed  bool
	session    *core.Communicator // nil until connect has succeeded; kept when the run is lost
	launched   flights
	launches   uint64
	messages   uint64 // that were launched
}

func address(c call, a *C.ccoip_socket_address_t) (netip.AddrPort, error) {
	switch a.inet.protocol {
	case C.inetIPv4:
		return netip.AddrPortFrom(netip.AddrFrom4(*(*[4]byte)(unsafe.Pointer(&a.inet.ipv4))), uint16(a.port)), nil
	case C.inetIPv6:
		return netip.AddrPortFrom(netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&a.inet.ipv6))), uint16(a.port)), nil
	}
	return netip.AddrPort{}, c.bad("the address has unknown protocol %d", a.inet.protocol)
}

//export gopccl_init
func gopccl_init() C.int {
	return callInit.run(func() error {
		if !initialized.Swap(true) {
			spareProcessor()
		}
		return nil
	})
}

//export gopccl_build_info
func gopccl_build_info(info *C.pcclBuildInfo_t) C.int {
	return callInfo.run(func() error {
		if info == nil {
			return callInfo.bad("info is NULL")
		}
		_, err := device.Lookup(device.CUDA)
		info.has_cuda_support = err == nil
		return nil
	})
}

// ours is "yes" in libgopccl: build.sh says so. A program that knows PCCL's functions alone
// connects again by itself when its master ends, so its calls have to end then.
var ours string

// endsWithMaster reports whether communicators end with their master, as nobody has said how
// long they are to go on.
func endsWithMaster(c *conf.Config) bool { return ours == "" && !given(c, "peer.reattach_timeout") }

// longestReattach bounds gopcclSetReattachTimeout, in milliseconds.
const longestReattach = 24 * 60 * 60 * 1000

// withOthers returns the list of masters in the settings behind the one that the program
// names; that one alone where the settings have no list.
func withOthers(master, configured string) string {
	list := []string{master}
	if strings.Contains(configured, ",") {
		for m := range strings.SplitSeq(configured, ",") {
			if m = strings.TrimSpace(m); m != master {
				list = append(list, m)
			}
		}
	}
	return strings.Join(list, ",")
}

//export gopccl_create
func gopccl_create(params *C.pcclCommCreateParams_t, wanted C.int, out *C.uintptr_t) C.int {
	return callCreate.guard(func() error {
		if params == nil || wanted == 0 {
			return callCreate.bad("params or comm_out is NULL")
		}
		at, err := address(callCreate, &params.master_address)
		if err != nil {
			return err
		}
		c, err := settings()
		if err != nil {
			return err
		}
		m := &comm{opt: c.PeerOptions(logger()), launched: flights{}}
		if endsWithMaster(c) {
			m.opt.ReattachTimeout = -1
		}
		m.opt.Master = withOthers(at.String(), c.Peer.Master)
		m.opt.Group = uint32(params.peer_group)
		m.opt.PoolSize = int(params.p2p_connection_pool_size)
		m.ctx, m.cancel = context.WithCancel(context.Background())
		*out = C.uintptr_t(objects.add(m))
		return nil
	})
}

//export gopccl_destroy
func gopccl_destroy(h C.uintptr_t) C.int {
	return callDestroy.guard(func() error {
		return retire(callDestroy, uintptr(h), (*comm).close)
	})
}

//export gopccl_close
func gopccl_close(h C.uintptr_t) C.int {
	return callClose.guard(func() error {
		m, err := lookup[comm](callClose, uintptr(h))
		if err != nil {
			return err
		}
		t := newTask[struct{}]()
		go t.run(callClose, func() (struct{}, error) { return struct{}{}, m.close() })
		if !until(context.Background(), t.done) {
			return interrupted(callClose)
		}
		return t.err
	})
}

// close leaves the run.
func (m *comm) close() error {
	m.mu.Lock()
	m.destroyed = true
	session := m.session
	m.mu.Unlock()
	m.cancel()
	if session == nil {
		return nil
	}
	return session.Close()
}

//export gopccl_set_masters
func gopccl_set_masters(h C.uintptr_t, masters *C.char) C.int {
	c := callSetMasters
	return c.run(func() error {
		m, err := lookup[comm](c, uintptr(h))
		if err != nil {
			return err
		}
		if masters == nil {
			return c.bad("masters is NULL")
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.session != nil || m.connecting {
			return c.usage("already connected, or connecting", "name the masters before the connection is made")
		}
		list := C.GoString(masters)
		if _, err := bounds.Endpoints(list, wire.MaxAddresses); err != nil {
			return c.bad("masters: %v", err)
		}
		m.opt.Master = list
		return nil
	})
}

//export gopccl_set_reattach_timeout
func gopccl_set_reattach_timeout(h C.uintptr_t, milliseconds C.uint64_t) C.int {
	c := callSetReattach
	return c.run(func() error {
		m, err := lookup[comm](c, uintptr(h))
		if err != nil {
			return err
		}
		if uint64(milliseconds) > longestReattach {
			return c.bad("%d ms are more than a day", uint64(milliseconds))
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.session != nil || m.connecting {
			return c.usage("already connected, or connecting", "set it before the connection is made")
		}
		if m.opt.ReattachTimeout = time.Duration(milliseconds) * time.Millisecond; milliseconds == 0 {
			m.opt.ReattachTimeout = -1
		}
		return nil
	})
}

//export gopccl_connect
func gopccl_connect(h C.uintptr_t) C.int {
	return callConnect.guard(func() error {
		m, err := lookup[comm](callConnect, uintptr(h))
		if err != nil {
			return err
		}
		m.mu.Lock()
		if m.session != nil || m.connecting {
			m.mu.Unlock()
			return callConnect.usage("already connected, or connecting", "after the loss of the run create a new communicator")
		}
		m.connecting = true
		m.mu.Unlock()

		session, err := patient(callConnect, m.ctx, func(ctx context.Context) (*core.Communicator, error) {
			return core.Connect(ctx, m.opt)
		})

		m.mu.Lock()
		m.connecting = false
		destroyed := m.destroyed
		if err == nil {
			m.session = session
		}
		m.mu.Unlock()
		if destroyed {
			if err == nil {
				session.Close()
			}
			return callConnect.usage("the communicator was destroyed", "")
		}
		return err
	})
}

// connected returns the communicator behind h, which must have been connected.
func connected(c call, h C.uintptr_t) (*comm, *core.Communicator, error) {
	m, err := lookup[comm](c, uintptr(h))
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == nil {
		return nil, nil, c.usage("not connected", "call pcclConnect first")
	}
	return m, m.session, nil
}

//export gopccl_attribute
func gopccl_attribute(h C.uintptr_t, attribute C.int, out *C.int) C.int {
	return callAttribute.guard(func() error {
		_, s, err := connected(callAttribute, h)
		if err != nil {
			return err
		}
		if out == nil {
			return callAttribute.bad("p_attribute_out is NULL")
		}
		a := s.Attributes()
		switch attribute {
		case C.PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE:
			*out = C.int(a.GlobalWorldSize)
		case C.PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE:
			*out = C.int(a.LocalWorldSize)
		case C.PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS:
			*out = C.int(a.NumGroups)
		case C.PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE:
			*out = C.int(a.LargestGroupSize)
		default:
			return callAttribute.bad("unknown attribute %d", attribute)
		}
		return nil
	})
}

//export gopccl_rank
func gopccl_rank(h C.uintptr_t, uuid *C.uint8_t, rank *C.int) C.int {
	return callAttribute.guard(func() error {
		_, s, err := connected(callAttribute, h)
		if err != nil {
			return err
		}
		a := s.Attributes()
		if uuid != nil {
			*(*[16]byte)(unsafe.Pointer(uuid)) = a.UUID
		}
		if rank != nil {
			*rank = C.int(a.Rank)
		}
		return nil
	})
}

//export gopccl_update
func gopccl_update(h C.uintptr_t) C.int {
	return callUpdate.guard(func() error {
		m, s, err := connected(callUpdate, h)
		if err != nil {
			return err
		}
		return patiently(callUpdate, m.ctx, s.UpdateTopology)
	})
}

//export gopccl_pending
func gopccl_pending(h C.uintptr_t, out *C.bool) C.int {
	return callPending.guard(func() error {
		if out == nil {
			return callPending.bad("pending_out is NULL")
		}
		m, s, err := connected(callPending, h)
		if err != nil {
			return err
		}
		yes, err := patient(callPending, m.ctx, s.PeersPending)
		if err == nil {
			*out = C.bool(yes)
		}
		return err
	})
}

//export gopccl_wait_for_peers
func gopccl_wait_for_peers(h C.uintptr_t, n C.size_t) C.int {
	return callWaitForPeers.guard(func() error {
		m, s, err := connected(callWaitForPeers, h)
		if err != nil {
			return err
		}
		return patiently(callWaitForPeers, m.ctx, func(ctx context.Context) error {
			return s.WaitForPeers(ctx, int(min(uint64(n), math.MaxInt32)))
		})
	})
}

//export gopccl_leave
func gopccl_leave(h C.uintptr_t) C.int {
	return callLeave.guard(func() error {
		m, s, err := connected(callLeave, h)
		if err != nil {
			return err
		}
		return patiently(callLeave, m.ctx, s.Leave)
	})
}

//export gopccl_optimize
func gopccl_optimize(h C.uintptr_t) C.int {
	return callOptimize.guard(func() error {
		m, s, err := connected(callOptimize, h)
		if err != nil {
			return err
		}
		if s.Attributes().GlobalWorldSize < 2 {
			return callOptimize.usage("there is no link to measure: the world has one peer", "")
		}
		return patiently(callOptimize, m.ctx, s.OptimizeTopology)
	})
}

// algorithms are the quantizers by the number of the C enum.
var algorithms = [...]string{C.pcclQuantNone: "", C.pcclQuantMinMax: "minmax", C.pcclQuantZeroPointScale: "zeropoint"}

// known converts a number of a C enum with one of the tables of dtype.
func known[T any](c call, what string, n uint32, table func(uint8) (T, bool)) (T, error) {
	if n <= math.MaxUint8 {
		if v, ok := table(uint8(n)); ok {
			return v, nil
		}
	}
	var none T
	return none, c.bad("unknown %s %d", what, n)
}

func operation(c call, send, recv unsafe.Pointer, d *C.pcclReduceDescriptor_t) (r core.Reduce, err error) {
	if r.DType, err = known(c, "data type", uint32(d.src_descriptor.datatype), dtype.TypeFromABI); err != nil {
		return r, err
	}
	if r.Op, err = known(c, "reduce operation", uint32(d.op), dtype.OpFromABI); err != nil {
		return r, err
	}
	q := d.quantization_options
	if uint32(q.algorithm) >= uint32(len(algorithms)) {
		return r, c.bad("unknown quantization algorithm %d", q.algorithm)
	}
	r.Quantize.Algorithm = algorithms[q.algorithm]
	if r.Quantize.Type, err = known(c, "quantized data type", uint32(q.quantized_datatype), dtype.TypeFromABI); err != nil {
		return r, err
	}
	if r.Src, r.DeviceSrc, err = operand(c, "sendbuff", send, d.count, r.DType); err != nil {
		return r, err
	}
	r.Dst, r.DeviceDst, err = operand(c, "recvbuff", recv, d.count, r.DType)
	r.Tag = uint64(d.tag)
	return r, err
}

func moved(out *C.pcclReduceInfo_t, i core.ReduceInfo) {
	if out != nil {
		out.local_world_size = C.uint32_t(i.WorldSize)
		out.tx_bytes, out.rx_bytes = C.uint64_t(i.TxBytes), C.uint64_t(i.RxBytes)
	}
}

//export gopccl_reduce
func gopccl_reduce(send, recv unsafe.Pointer, d *C.pcclReduceDescriptor_t, h C.uintptr_t, out *C.pcclReduceInfo_t) C.int {
	return callReduce.guard(func() error {
		m, s, err := connected(callReduce, h)
		if err != nil {
			return err
		}
		if d == nil {
			return callReduce.bad("descriptor is NULL")
		}
		r, err := operation(callReduce, send, recv, d)
		if err != nil {
			return err
		}
		if err := m.unawaited(callReduce, r.Tag); err != nil {
			return err
		}
		info, err := reduced(m.ctx, s, r)
		if err == nil {
			moved(out, info)
		}
		return err
	})
}

//export gopccl_launch
func gopccl_launch(send, recv unsafe.Pointer, d *C.pcclReduceDescriptor_t, h C.uintptr_t, wanted C.int) C.int {
	return callReduce.guard(func() error {
		m, s, err := connected(callReduce, h)
		if err != nil {
			return err
		}
		if d == nil || wanted == 0 {
			return callReduce.bad("descriptor or reduce_handle_out is NULL")
		}
		r, err := operation(callReduce, send, recv, d)
		if err != nil {
			return err
		}
		return m.launch(callReduce, r.Tag, func() (*core.Handle, error) { return s.Launch(r) })
	})
}

// verdict returns what the operation with a tag has done, and forgets it. Several
// threads may wait for one operation and get the same; it is known unless the
// caller gave up waiting, or there is no such operation.
func verdict(h C.uintptr_t, tag C.uint64_t) (l landed, known bool, err error) {
	m, _, err := connected(callAwait, h)
	if err != nil {
		return l, false, err
	}
	o := m.find(uint64(tag))
	if o == nil {
		return l, false, callAwait.usage(fmt.Sprintf("no operation with tag %d was launched, or it has been awaited", uint64(tag)), "")
	}
	if l, known, err = o.await(); known {
		m.forget(uint64(tag), o)
	}
	return l, known, err
}

//export gopccl_await
func gopccl_await(h C.uintptr_t, tag C.uint64_t, out *C.pcclReduceInfo_t) C.int {
	return callAwait.guard(func() error {
		l, _, err := verdict(h, tag)
		if err == nil {
			moved(out, l.info)
		}
		return err
	})
}

//export gopccl_retry
func gopccl_retry(d *C.pcclReduceOpDescriptor_t, count C.size_t, h C.uintptr_t, out *C.pcclReduceInfo_t, inFlight C.int) C.int {
	return callReduce.guard(func() error {
		m, s, err := connected(callReduce, h)
		if err != nil {
			return err
		}
		switch {
		case d == nil || count == 0:
			return callReduce.bad("no operations")
		case uint64(count) > math.MaxInt64/uint64(unsafe.Sizeof(*d)):
			return callReduce.bad("%d operations", uint64(count))
		case inFlight < 1:
			return callReduce.bad("max_in_flight is %d", inFlight)
		}
		list := unsafe.Slice(d, int(count))
		rs := make([]core.Reduce, len(list))
		for i := range list {
			if rs[i], err = operation(callReduce, list[i].sendbuf, list[i].recvbuf, &list[i].descriptor); err != nil {
				return fmt.Errorf("operation %d: %w", i, err)
			}
			if err = m.unawaited(callReduce, rs[i].Tag); err != nil {
				return fmt.Errorf("operation %d: %w", i, err)
			}
		}
		info, err := patient(callReduce, m.ctx, func(ctx context.Context) (core.ReduceInfo, error) {
			return s.AllReduceMultipleWithRetry(ctx, rs, int(inFlight))
		})
		if err == nil {
			moved(out, info)
		}
		return err
	})
}

// strategies by the number of the C enum.
var strategies = [...]core.Strategy{
	C.PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR: core.EnforcePopular,
	C.PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY:    core.ReceiveOnly,
	C.PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY:       core.SendOnly,
}

//export gopccl_sync
func gopccl_sync(h C.uintptr_t, state *C.pcclSharedState_t, strategy C.int, out *C.pcclSharedStateSyncInfo_t) C.int {
	return callSync.guard(func() error {
		m, s, err := connected(callSync, h)
		if err != nil {
			return err
		}
		if state == nil || (state.infos == nil && state.count > 0) {
			return callSync.bad("shared_state or its infos is NULL")
		}
		if strategy < 0 || int(strategy) >= len(strategies) {
			return callSync.bad("unknown strategy %d", strategy)
		}
		st := core.SharedState{Revision: uint64(state.revision)}
		if st.Tensors, err = tensors(state); err != nil {
			return err
		}
		tornMemory.mark(&st)
		info, err := patient(callSync, m.ctx, func(ctx context.Context) (core.SyncInfo, error) {
			return s.SyncSharedState(ctx, &st, core.SyncOptions{Strategy: strategies[strategy]})
		})
		tornMemory.note(&st, err)
		if errs.CodeOf(err) == errs.InvalidArgument { // PCCL's master kicks for what is refused here
			err = errs.New(errs.InvalidUsage, callSync.name, err)
		}
		if err != nil {
			return err
		}
		state.revision = C.uint64_t(st.Revision)
		if out != nil {
			out.tx_bytes, out.rx_bytes = C.uint64_t(info.TxBytes), C.uint64_t(info.RxBytes)
		}
		return nil
	})
}

func tensors(state *C.pcclSharedState_t) ([]core.Tensor, error) {
	if uint64(state.count) > math.MaxInt64/uint64(unsafe.Sizeof(*state.infos)) {
		return nil, callSync.bad("%d tensors", uint64(state.count))
	}
	list := make([]core.Tensor, 0, min(int(state.count), 1<<16))
	for i, info := range unsafe.Slice(state.infos, int(state.count)) {
		if info.name == nil {
			return nil, callSync.bad("tensor %d has no name", i)
		}
		t := core.Tensor{Key: C.GoString(info.name), AllowInequality: bool(info.allow_content_inequality)}
		var err error
		if t.DType, err = known(callSync, "data type", uint32(info.datatype), dtype.TypeFromABI); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Key, err)
		}
		if t.Data, t.Device, err = content(info.device_type, t.Key, info.data, info.count, t.DType); err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}
