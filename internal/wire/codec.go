package wire

import "fmt"

// MaxPacket is the largest length field of an LTV packet that is read
// (control spec, section 2; the limit of PCCL's peers, ours everywhere).
const MaxPacket = 64 << 20

// lenSize and idSize are the two fields before a body.
const (
	lenSize = 8
	idSize  = 2
)

// Append appends p as it travels on an LTV socket (length, id, body,
// extension block if there is one) and returns the extended slice. p is one
// of this package's structs, by value; anything else panics.
func Append(dst []byte, p Packet) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, lenSize)...)
	dst = appendU16(dst, uint16(p.ID()))
	dst = AppendBody(dst, p)
	putU64(dst[start:], uint64(len(dst)-start-lenSize))
	return dst
}

// AppendBody appends the body of p, extension block included, without length
// and id (control spec, section 4), and returns the extended slice.
//
// Addresses: IPv4-mapped IPv6 addresses are written as IPv4, zones are lost,
// and the zero AddrPort is written as 0.0.0.0:0. The three lists of
// M2CSyncSharedState share one count, that of Keys; missing hashes and hash
// types are written as 0.
func AppendBody(dst []byte, p Packet) []byte {
	switch p.Proto() {
	case C2M:
		return appendToMaster(dst, p)
	case M2C:
		return appendFromMaster(dst, p)
	}
	return appendBetweenPeers(dst, p)
}

func appendToMaster(dst []byte, p Packet) []byte {
	switch p := p.(type) {
	case C2MRequestSessionRegistration:
		dst = appendU16(dst, p.P2PPort)
		dst = appendU16(dst, p.SharedStatePort)
		dst = appendU16(dst, p.BenchmarkPort)
		dst = appendU32(dst, p.PeerGroup)
		return appendExt(dst, p.Ext)
	case C2MRequestEstablishP2PConnections:
		return appendBool(dst, p.AcceptNewPeers)
	case C2MP2PConnectionsEstablished:
		return appendUUIDs(appendBool(dst, p.Success), p.FailedPeers)
	case C2MCheckPeersPending, C2MOptimizeTopology, C2MOptimizeTopologyWorkComplete, C2MAskTopology, C2MWantMesh, C2MLeave, C2MFarewell, C2MAskStatus:
		return dst
	case C2MLinkEnded:
		return append(dst, p.Peer[:]...)
	case C2MHeartbeat:
		return appendExt(dst, Ext{Heartbeat: p})
	case C2MReportPeerBandwidth:
		return appendF64(append(dst, p.To[:]...), p.Mbps)
	case C2MSyncSharedState:
		dst = append(appendU64(dst, p.Revision), byte(p.Strategy))
		dst = appendU64(dst, uint64(len(p.Entries)))
		for i := range p.Entries {
			dst = appendStateEntry(dst, &p.Entries[i])
		}
		return appendExt(dst, p.Ext)
	case C2MDistSharedStateComplete:
		return appendExt(dst, p.Ext)
	case C2MCollectiveCommsInitiate:
		dst = appendU64(appendU64(dst, p.Tag), p.Count)
		return appendExt(append(dst, byte(p.DType), byte(p.Op)), initiateExt(&p))
	case C2MCollectiveCommsComplete:
		return appendExt(appendBool(appendU64(dst, p.Tag), p.WasAborted), completeExt(&p))
	case C2MResult:
		return appendResult(dst, p.Tag, p.Seq, p.Data)
	case C2MLinkReport:
		return appendF64(appendF64(append(dst, p.To[:]...), p.Mbps), p.Busy)
	case C2MProbeState:
		dst = append(appendU64(dst, p.Round), byte(p.State))
		return appendU32(appendF64(appendF64(dst, p.Mbps), p.Deviation), p.Late)
	case C2MRingPrepared:
		return appendUUIDs(appendU64(dst, p.Change), p.FailedPeers)
	case C2MPreflightDone:
		return appendUUIDs(appendU64(dst, p.Number), p.FailedPeers)
	case C2MReport:
		return appendReport(dst, &p)
	case C2MRates:
		return appendRates(dst, &p)
	case C2MMeshPrepared:
		return appendExt(appendUUIDs(appendU64(dst, p.Change), p.FailedPeers), Ext{Paths: Paths{Ways: p.Ways}})
	}
	panic(notOurs(p))
}

func appendFromMaster(dst []byte, p Packet) []byte {
	switch p := p.(type) {
	case M2CHeartbeat, M2CProbesDone, M2CResumed, M2CReportAgain:
		return dst
	case M2CSyncSharedStateComplete:
		return appendExt(dst, Ext{Resuming: Resuming{NextRevision: p.NextRevision}})
	case M2CLeaving:
		dst = appendU64(appendU32(dst, p.After), uint64(len(p.Masters)))
		for _, a := range p.Masters {
			dst = appendAddr(dst, a)
		}
		return dst
	case M2CSessionRegistrationResponse:
		dst = append(appendBool(dst, p.Accepted), p.UUID[:]...)
		return appendExt(dst, p.Ext)
	case M2CP2PConnectionInfo:
		return appendConnectionInfo(dst, &p)
	case M2CP2PConnectionsEstablished:
		return appendExt(appendUUIDs(appendBool(dst, p.Success), p.Ring), Ext{Resuming: Resuming{Mortal: p.Mortal}})
	case M2CPeersPendingResponse:
		return appendExt(appendBool(dst, p.PeersPending), Ext{Resuming: Resuming{Decision: p.Decision}})
	case M2COptimizeTopologyResponse:
		dst = appendU64(dst, uint64(len(p.Requests)))
		for i := range p.Requests {
			q := &p.Requests[i]
			dst = append(append(dst, q.From[:]...), q.To[:]...)
			dst = appendAddr(dst, q.Addr)
		}
		return appendExt(dst, p.Ext)
	case M2COptimizeTopologyComplete:
		return appendExt(appendUUIDs(appendBool(dst, p.Success), p.Ring), Ext{Resuming: Resuming{Decision: p.Decision}})
	case M2CSyncSharedState:
		return appendSyncVerdict(dst, &p)
	case M2CCollectiveCommsCommence:
		return appendExt(appendU64(appendU64(dst, p.Tag), p.SeqNr), saysForward(p.Forward))
	case M2CCollectiveCommsComplete:
		return appendExt(appendU64(dst, p.Tag), saysForward(p.Held))
	case M2CAskResult:
		return appendU64(appendU64(dst, p.Tag), p.Seq)
	case M2CGivenUp:
		return appendU64(dst, p.Tag)
	case M2CResult:
		return appendResult(dst, p.Tag, p.Seq, p.Data)
	case M2CCollectiveCommsAbort:
		return appendExt(appendBool(appendU64(dst, p.Tag), p.Aborted), Ext{Reason: p.Reason, ReasonCode: p.ReasonCode})
	case M2CPeerDropped:
		dst = appendAddr(append(dst, p.UUID[:]...), p.Addr)
		return appendString(appendU32(dst, p.Group), p.Reason)
	case M2CProbe:
		return appendAddr(append(appendU64(dst, p.Round), p.To[:]...), p.Addr)
	case M2CProbeGo:
		return appendU32(appendU64(dst, p.Round), p.Delay)
	case M2CTopology:
		dst = appendU64(dst, uint64(len(p.Groups)))
		for i := range p.Groups {
			dst = appendGroupTopology(dst, &p.Groups[i])
		}
		return dst
	case M2CPrepareRing:
		return appendEndpoints(appendU64(dst, p.Change), p.Peers)
	case M2CPrepareLeave:
		return appendPrepareLeave(dst, &p)
	case M2CRingWithout:
		return appendRingWithout(dst, &p)
	case M2CLeaveAnswer:
		return appendString(appendBool(dst, p.Left), p.Reason)
	case M2CPreflight:
		return appendEndpoints(appendU64(dst, p.Number), p.Peers)
	case M2CSwitchRing:
		return appendExt(appendUUIDs(appendU64(dst, p.Change), p.Ring), Ext{Paths: Paths{Direct: p.Direct}})
	case M2CPrepareMesh:
		return appendEndpoints(appendU64(dst, p.Change), p.Peers)
	case M2CMesh:
		return append(appendU64(dst, p.Change), p.Planner)
	case M2CNames:
		dst = appendU64(dst, uint64(len(p.Members)))
		for i := range p.Members {
			e := &p.Members[i]
			dst = appendAddr(appendString(append(dst, e.UUID[:]...), e.Name), e.State)
		}
		return dst
	case M2CStatus:
		return appendString(dst, p.JSON)
	case M2CRevocations:
		return appendString(dst, p.DER)
	}
	panic(notOurs(p))
}

func appendBetweenPeers(dst []byte, p Packet) []byte {
	switch p := p.(type) {
	case P2PHello:
		return appendExt(appendU32(append(dst, p.UUID[:]...), p.Number), p.Ext)
	case P2PHelloAck:
		return appendExt(dst, p.Ext)
	case DequantizationMeta:
		return appendMetaBody(dst, &p)
	case C2SRequestSharedState:
		return appendStrings(dst, p.Keys)
	case S2CSharedStateResponse:
		dst = appendU64(append(dst, byte(p.Status)), p.Revision)
		dst = appendU64(dst, uint64(len(p.Entries)))
		for _, e := range p.Entries {
			dst = appendU64(appendString(dst, e.Key), e.Size)
		}
		return dst
	case C2BHello:
		return appendExt(append(dst, p.UUID[:]...), p.Ext)
	case B2CServerIsBusy:
		return appendExt(appendBool(dst, p.IsBusy), p.Ext)
	}
	panic(notOurs(p))
}

func notOurs(p Packet) string { return fmt.Sprintf("wire: %T is not a packet of this package", p) }

func appendStateEntry(dst []byte, e *StateEntry) []byte {
	dst = appendU64(appendString(dst, e.Key), e.Hash)
	dst = appendU64(append(dst, byte(e.HashType)), e.NumElements)
	return appendBool(append(dst, byte(e.DType)), e.AllowInequality)
}

func appendConnectionInfo(dst []byte, p *M2CP2PConnectionInfo) []byte {
	dst = appendBool(dst, p.Unchanged)
	dst = appendU64(dst, p.GlobalWorldSize)
	dst = appendU64(dst, p.LocalWorldSize)
	dst = appendU64(dst, p.NumDistinctGroup)
	dst = appendU64(dst, p.LargestGroupSize)
	if !p.Unchanged {
		dst = appendEndpoints(dst, p.Peers)
	}
	return appendExt(dst, p.Ext)
}

func appendEndpoints(dst []byte, peers []PeerEndpoint) []byte {
	dst = appendU64(dst, uint64(len(peers)))
	for i := range peers {
		dst = append(appendAddr(dst, peers[i].Addr), peers[i].UUID[:]...)
	}
	return dst
}

func appendGroupTopology(dst []byte, g *GroupTopology) []byte {
	dst = appendEndpoints(appendU32(dst, g.Group), g.Peers)
	dst = appendU64(dst, uint64(len(g.Ring)))
	for _, i := range g.Ring {
		dst = appendU32(dst, i)
	}
	dst = appendU64(dst, uint64(len(g.Mbps)))
	for _, v := range g.Mbps {
		dst = appendF64(dst, v)
	}
	return dst
}

func appendSyncVerdict(dst []byte, p *M2CSyncSharedState) []byte {
	dst = appendAddr(appendBool(dst, p.IsOutdated), p.Distributor)
	dst = appendStrings(dst, p.Keys)
	for i := range p.Keys {
		var h uint64
		if i < len(p.Hashes) {
			h = p.Hashes[i]
		}
		dst = appendU64(dst, h)
	}
	for i := range p.Keys {
		var t HashType
		if i < len(p.HashTypes) {
			t = p.HashTypes[i]
		}
		dst = append(dst, byte(t))
	}
	return appendExt(dst, p.Ext)
}
