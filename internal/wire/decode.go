package wire

import (
	"fmt"
	"sync"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
)

var protoNames = [...]string{"C2M", "M2C", "P2P", "C2S", "S2C", "C2B", "B2C"}

// String returns the name of the direction as the specification has it, such as "C2M".
func (p Proto) String() string {
	if int(p) < len(protoNames) {
		return protoNames[p]
	}
	return fmt.Sprintf("proto(%d)", uint8(p))
}

// UnknownPacketError says that a packet id means nothing in its direction.
// errors.Is(err, errs.Protocol) holds for it.
type UnknownPacketError struct {
	Proto Proto
	ID    ID
}

// Error names the direction and the id.
func (e *UnknownPacketError) Error() string {
	return fmt.Sprintf("gopccl: decode packet: unknown packet %v %d", e.Proto, e.ID)
}

// Unwrap returns errs.Protocol.
func (e *UnknownPacketError) Unwrap() error { return errs.Protocol }

// readers are those of Decode, which would be one allocation of each packet.
var readers = sync.Pool{New: func() any { return new(reader) }}

// Decode turns the body of packet id of direction proto (without length and
// id) into its struct. It keeps no reference to body. Bytes after the last
// field are ignored unless they are an extension block (control spec, section
// 2). Enumerations are not judged: a strategy, type or op that does not exist
// decodes to its number.
//
// Errors: *UnknownPacketError; *errs.Error with code Protocol if the body is
// shorter than its fields say. Memory is at most a small multiple of
// len(body), whatever its counts claim.
func Decode(proto Proto, id ID, body []byte) (Packet, error) {
	r := readers.Get().(*reader)
	*r = reader{b: body}
	p := decode(proto, id, r)
	short := r.short
	*r = reader{}
	readers.Put(r)
	if p == nil {
		return nil, &UnknownPacketError{Proto: proto, ID: id}
	}
	if short {
		return nil, errs.New(errs.Protocol, "decode packet",
			fmt.Errorf("%v %d (%T): a body of %d bytes is too short for its fields", proto, id, p, len(body)))
	}
	return p, nil
}

// decode returns nil for an unknown id. Struct literals list the fields in
// wire order; Go evaluates the calls in that order.
func decode(proto Proto, id ID, r *reader) Packet {
	switch proto {
	case C2M:
		return decodeC2M(id, r)
	case M2C:
		return decodeM2C(id, r)
	case P2P:
		switch id {
		case 1:
			return P2PHello{UUID: r.uuid(), Number: r.u32(), Ext: r.ext()}
		case 2:
			return P2PHelloAck{Ext: r.ext()}
		case 3:
			return r.meta()
		}
	case C2S:
		if id == 1 {
			return C2SRequestSharedState{Keys: r.strings()}
		}
	case S2C:
		if id == 1 {
			return S2CSharedStateResponse{
				Status: StateStatus(r.u8()), Revision: r.u64(),
				Entries: list(r, minStateSize, func(r *reader) StateSize { return StateSize{Key: r.string(), Size: r.u64()} }),
			}
		}
	case C2B:
		if id == 1 {
			return C2BHello{UUID: r.uuid(), Ext: r.ext()}
		}
	case B2C:
		if id == 1 {
			return B2CServerIsBusy{IsBusy: r.bool(), Ext: r.ext()}
		}
	}
	return nil
}

func decodeC2M(id ID, r *reader) Packet {
	switch id {
	case 1:
		return C2MRequestSessionRegistration{
			P2PPort: r.u16(), SharedStatePort: r.u16(), BenchmarkPort: r.u16(), PeerGroup: r.u32(), Ext: r.ext(),
		}
	case 2:
		return C2MRequestEstablishP2PConnections{AcceptNewPeers: r.bool()}
	case 3:
		return C2MP2PConnectionsEstablished{Success: r.bool(), FailedPeers: r.uuids()}
	case 4:
		return C2MCheckPeersPending{}
	case 5:
		return C2MOptimizeTopology{}
	case 6:
		return C2MReportPeerBandwidth{To: r.uuid(), Mbps: r.f64()}
	case 7:
		return C2MOptimizeTopologyWorkComplete{}
	case 8:
		return C2MSyncSharedState{
			Revision: r.u64(), Strategy: Strategy(r.u8()),
			Entries: list(r, minStateEntry, (*reader).stateEntry), Ext: r.ext(),
		}
	case 9:
		return C2MDistSharedStateComplete{Ext: r.ext()}
	case 10:
		p := C2MCollectiveCommsInitiate{Tag: r.u64(), Count: r.u64(), DType: dtype.Type(r.u8()), Op: dtype.Op(r.u8())}
		x := r.ext()
		p.Form, p.Call, p.Forward = x.Form, x.Call, x.Forward > 0
		return p
	case 11:
		p := C2MCollectiveCommsComplete{Tag: r.u64(), WasAborted: r.bool()}
		x := r.ext()
		p.Reason, p.ReasonCode, p.Holds = x.Reason, x.ReasonCode, x.Forward&1 != 0
		p.GivenUp = x.Forward&forwardGivenUp != 0
		return p
	case 64:
		return r.ext().Heartbeat
	case 65:
		return C2MLinkReport{To: r.uuid(), Mbps: r.f64(), Busy: r.f64()}
	case 66:
		return C2MProbeState{Round: r.u64(), State: ProbeState(r.u8()), Mbps: r.f64(), Deviation: r.f64(), Late: r.u32()}
	case 67:
		return C2MAskTopology{}
	case 68:
		return C2MRingPrepared{Change: r.u64(), FailedPeers: r.uuids()}
	case 69:
		return r.report()
	case 71:
		return C2MPreflightDone{Number: r.u64(), FailedPeers: r.uuids()}
	case 72:
		return C2MLeave{}
	case 73:
		return C2MFarewell{}
	case 74:
		return C2MLinkEnded{Peer: r.uuid()}
	case 75:
		return C2MAskStatus{}
	case 76:
		return r.rates()
	case 81:
		return C2MResult{Tag: r.u64(), Seq: r.u64(), Data: r.data()}
	case 88:
		return C2MWantMesh{}
	case 89:
		return C2MMeshPrepared{Change: r.u64(), FailedPeers: r.uuids(), Ways: r.ext().Ways}
	}
	return nil
}

func decodeM2C(id ID, r *reader) Packet {
	switch id {
	case 1:
		return M2CSessionRegistrationResponse{Accepted: r.bool(), UUID: r.uuid(), Ext: r.ext()}
	case 2:
		p := M2CP2PConnectionInfo{
			Unchanged: r.bool(), GlobalWorldSize: r.u64(), LocalWorldSize: r.u64(),
			NumDistinctGroup: r.u64(), LargestGroupSize: r.u64(),
		}
		if !p.Unchanged {
			p.Peers = r.endpoints()
		}
		p.Ext = r.ext()
		return p
	case 3:
		return M2CP2PConnectionsEstablished{Success: r.bool(), Ring: r.uuids(), Mortal: r.ext().Resuming.Mortal}
	case 4:
		return M2CPeersPendingResponse{PeersPending: r.bool(), Decision: r.ext().Resuming.Decision}
	case 5:
		return M2COptimizeTopologyResponse{Requests: list(r, minBandwidth, func(r *reader) BandwidthRequest {
			return BandwidthRequest{From: r.uuid(), To: r.uuid(), Addr: r.addr()}
		}), Ext: r.ext()}
	case 6:
		return M2COptimizeTopologyComplete{Success: r.bool(), Ring: r.uuids(), Decision: r.ext().Resuming.Decision}
	case 7:
		return r.syncVerdict()
	case 8:
		return M2CSyncSharedStateComplete{NextRevision: r.ext().Resuming.NextRevision}
	case 9:
		return M2CCollectiveCommsCommence{Tag: r.u64(), SeqNr: r.u64(), Forward: r.ext().Forward > 0}
	case 10:
		return M2CCollectiveCommsComplete{Tag: r.u64(), Held: r.ext().Forward > 0}
	case 11:
		p := M2CCollectiveCommsAbort{Tag: r.u64(), Aborted: r.bool()}
		x := r.ext()
		p.Reason, p.ReasonCode = x.Reason, x.ReasonCode
		return p
	case 64:
		return M2CHeartbeat{}
	case 65:
		return M2CPeerDropped{UUID: r.uuid(), Addr: r.addr(), Group: r.u32(), Reason: r.string()}
	case 66:
		return M2CProbe{Round: r.u64(), To: r.uuid(), Addr: r.addr()}
	case 67:
		return M2CProbeGo{Round: r.u64(), Delay: r.u32()}
	case 68:
		return M2CProbesDone{}
	case 69:
		return M2CTopology{Groups: list(r, minGroupTopology, (*reader).groupTopology)}
	case 70:
		return M2CPrepareRing{Change: r.u64(), Peers: r.endpoints()}
	case 71:
		return M2CSwitchRing{Change: r.u64(), Ring: r.uuids(), Direct: r.ext().Direct}
	case 72:
		return M2CResumed{}
	case 73:
		return M2CLeaving{After: r.u32(), Masters: list(r, minAddr, (*reader).addr)}
	case 74:
		return M2CPrepareLeave{Change: r.u64(), Epoch: r.u64(), Leaver: r.uuid(), Peers: r.endpoints()}
	case 76:
		return M2CRingWithout{Change: r.u64(), World: r.u64(), Largest: r.u64(), Ring: r.uuids()}
	case 77:
		return M2CLeaveAnswer{Left: r.bool(), Reason: r.string()}
	case 78:
		return M2CReportAgain{}
	case 75:
		return M2CPreflight{Number: r.u64(), Peers: r.endpoints()}
	case 79:
		return M2CStatus{JSON: r.string()}
	case 81:
		return M2CAskResult{Tag: r.u64(), Seq: r.u64()}
	case 82:
		return M2CResult{Tag: r.u64(), Seq: r.u64(), Data: r.data()}
	case 83:
		return M2CGivenUp{Tag: r.u64()}
	case 88:
		return M2CPrepareMesh{Change: r.u64(), Peers: r.endpoints()}
	case 89:
		return M2CMesh{Change: r.u64(), Planner: r.u8()}
	case 90:
		return M2CNames{Members: list(r, minNamed, func(r *reader) NamedMember {
			return NamedMember{UUID: r.uuid(), Name: r.string(), State: r.addr()}
		})}
	case 91:
		return M2CRevocations{DER: r.string()}
	}
	return nil
}

func (r *reader) endpoints() []PeerEndpoint {
	return list(r, minEndpoint, func(r *reader) PeerEndpoint { return PeerEndpoint{Addr: r.addr(), UUID: r.uuid()} })
}

func (r *reader) groupTopology() GroupTopology {
	return GroupTopology{
		Group: r.u32(),
		Peers: r.endpoints(),
		Ring:  list(r, 4, (*reader).u32),
		Mbps:  list(r, 8, (*reader).f64),
	}
}

func (r *reader) stateEntry() StateEntry {
	return StateEntry{
		Key: r.string(), Hash: r.u64(), HashType: HashType(r.u8()), NumElements: r.u64(),
		DType: dtype.Type(r.u8()), AllowInequality: r.bool(),
	}
}

// syncVerdict reads M2C 7, whose three lists share one count.
func (r *reader) syncVerdict() M2CSyncSharedState {
	p := M2CSyncSharedState{IsOutdated: r.bool(), Distributor: r.addr()}
	k := r.count(minSyncKey)
	if k > 0 {
		p.Keys = make([]string, k)
		p.Hashes = make([]uint64, k)
		p.HashTypes = make([]HashType, k)
	}
	for i := range p.Keys {
		p.Keys[i] = r.string()
	}
	for i := range p.Hashes {
		p.Hashes[i] = r.u64()
	}
	for i := range p.HashTypes {
		p.HashTypes[i] = HashType(r.u8())
	}
	p.Ext = r.ext()
	return p
}

// meta reads P2P 3. What metaBody finds wrong with it counts as a body that
// does not fit its fields.
func (r *reader) meta() DequantizationMeta {
	m, err := r.metaBody()
	if err != nil {
		r.short = true
	}
	return m
}
