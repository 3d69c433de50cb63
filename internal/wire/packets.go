package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
)

// UUID identifies a peer for the length of its session. Ring order compares it as unsigned bytes.
type UUID [16]byte

// Compare orders uuids by unsigned bytes.
func (u UUID) Compare(v UUID) int { return bytes.Compare(u[:], v[:]) }

// Short returns the first eight hex digits, for logs.
func (u UUID) Short() string { return hex.EncodeToString(u[:4]) }

// String returns the canonical 36 character form.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Proto is the protocol direction; packet ids are per direction.
type Proto uint8

// Protocol directions.
const (
	C2M Proto = iota
	M2C
	P2P
	C2S
	S2C
	C2B
	B2C
)

// ID is a packet id, unique within its Proto.
type ID uint16

// Packet is one of the packet structs of this package (always passed by value).
type Packet interface {
	Proto() Proto
	ID() ID
}

// Strategy of a shared state synchronisation, as on the wire.
type Strategy uint8

// Strategies (control spec, section 3).
const (
	EnforcePopular Strategy = 0
	ReceiveOnly    Strategy = 1
	SendOnly       Strategy = 2
)

// HashType says which digest a shared state hash is.
type HashType uint8

// Hash types (control spec, section 3).
const (
	HashSimple HashType = 0
	HashCRC32  HashType = 1
)

// StateStatus is the status of a shared state response.
type StateStatus uint8

// Shared state response status (control spec, section 3).
const (
	StateSuccess        StateStatus = 1
	StateNotDistributed StateStatus = 2
	StateNotServing     StateStatus = 3
	StateUnknownKey     StateStatus = 4
)

// Ext is what a gopccl endpoint adds after the last field of a packet body. The
// zero value adds nothing, and a packet without a block decodes to it. PCCL
// ignores such bytes; unknown entries of a block are skipped, a damaged block
// is ignored as a whole.
type Ext struct {
	// Native announces a gopccl endpoint (on C2M 1, M2C 1, P2P Hello, HelloAck).
	Native bool
	// Flows announces an end that accepts striped frames and answers probes on
	// its P2P connections (on P2P Hello, HelloAck).
	Flows FlowsLevel
	// Addresses are where the sender accepts P2P connections besides the address
	// that the master told, one for each of its networks (on P2P HelloAck).
	Addresses []netip.AddrPort
	// Session is a number that the sender drew for its session, by which it is
	// known again at another address (on P2P HelloAck), or that the receiver has
	// to have drawn (on P2P Hello); 0 none.
	Session uint64
	// Form is how the data of a collective travels (on C2M 10).
	Form WireForm
	// Host is the address at which others reach the sender, if it is not the one
	// that its connection comes from (on C2M 1).
	Host netip.Addr
	// HeartbeatInterval and HeartbeatTimeout announce heartbeats on this
	// connection (C2M 1: what the peer wants; M2C 1: what the master grants).
	// Whole milliseconds on the wire; zero means none.
	HeartbeatInterval, HeartbeatTimeout time.Duration
	// GroupNative says that every member of the receiver's group announced
	// Native (on M2C 2).
	GroupNative bool
	// Distributors lists further holders of the elected state, first to try
	// first (on M2C 7).
	Distributors []netip.AddrPort
	// Failed says that the transfer failed and the sender keeps its old
	// state (on C2M 9).
	Failed bool
	// Torn says that the sender's shared state is a mixture of two, which must
	// not be elected (on C2M 8).
	Torn bool
	// Reason explains an abort or refusal (on M2C 1, M2C 7, M2C 11).
	Reason string
	// ReasonCode is an errs.Code number that goes with Reason; 0 none.
	ReasonCode uint16
	// Heartbeat is what one says (C2M 64).
	Heartbeat C2MHeartbeat
	// Topology announces scheduled probes, link reports and counted benchmarks
	// (on C2M 1, M2C 1, C2B 1, B2C 1), and on M2C 5 that the master calls for
	// the probes one after another.
	Topology bool
	// Switch announces that rings can be switched between two collectives.
	Switch bool
	// RoundBound is how long the master waits for the reports of a round (on M2C
	// 1). Whole milliseconds on the wire; zero: not said.
	RoundBound time.Duration
	// Preflight announces an end that tries connections before a round (on C2M 1,
	// M2C 1), and on P2P Hello that this is one of these: it is answered and closed.
	Preflight bool
	Early
	// Collectives is the version of the collectives other than all-reduce that the
	// sender knows (on C2M 1, M2C 1, P2P Hello, HelloAck); 0: none.
	Collectives uint8
	// GroupCollectives says that all members of the receiver's group announced
	// Collectives (on M2C 2).
	GroupCollectives bool
	// Members is the group in the order in which collectives count it, at most
	// MaxMembers (on M2C 2).
	Members []UUID
	// Call is what a collective other than all-reduce is (on C2M 10).
	Call Call
	// Plans is the version of the plans of an all-reduce that the sender knows,
	// beside the ring (on C2M 1, M2C 1); 0: none. From LeavePlans on, that members
	// leave between two collectives as well.
	Plans uint8
	Paths
	Secured
	// Resuming is about sessions that outlive their connection.
	Resuming Resuming
}

// IsZero reports whether x adds nothing to a packet.
func (x Ext) IsZero() bool {
	return !x.Native && x.Flows == 0 && len(x.Addresses) == 0 && x.Session == 0 && !x.Form.Told && !x.Host.IsValid() && !x.Topology && !x.Switch && !x.Eager && x.Epoch == 0 && x.RoundBound == 0 && !x.Preflight &&
		x.HeartbeatInterval == 0 && x.HeartbeatTimeout == 0 && !x.GroupNative && x.Collectives == 0 && !x.GroupCollectives &&
		(len(x.Members) == 0 || len(x.Members) > MaxMembers) && x.Call.Kind == 0 &&
		x.Plans == 0 && x.Forward == 0 && (len(x.Ways) == 0 || len(x.Ways) > MaxWays) && x.Direct.isZero() && x.Secured == (Secured{}) && x.Resuming.isZero() &&
		len(x.Distributors) == 0 && !x.Failed && !x.Torn && !x.Heartbeat.Reports && x.Reason == "" && x.ReasonCode == 0
}

// WireForm is how a peer will send the data of a collective, and what it takes:
// the form of its elements is nowhere else on the wire. The zero value says
// nothing, as PCCL does.
type WireForm struct {
	Told      bool
	Algorithm uint8      // see FormOf
	DType     dtype.Type // of the elements on the wire
	// Elements that are packed into a group of so many Bytes; both 0: one element
	// after the other.
	Elements, Bytes uint16
}

// Algorithms of a WireForm. Names that are none of these have a number from
// formOther on, which most of them share with nobody.
const (
	FormAsIs      = 0
	FormMinMax    = 1
	FormZeroPoint = 2
	formOther     = 128
)

// FormOf returns the form of data that the quantizer named algorithm ("": none)
// sends as t.
func FormOf(algorithm string, t dtype.Type) WireForm {
	f := WireForm{Told: true, DType: t}
	switch algorithm {
	case "", "none":
		f.Algorithm = FormAsIs
	case "minmax":
		f.Algorithm = FormMinMax
	case "zeropoint":
		f.Algorithm = FormZeroPoint
	default:
		h := uint32(2166136261) // FNV-1a
		for _, c := range []byte(algorithm) {
			h = (h ^ uint32(c)) * 16777619
		}
		f.Algorithm = formOther + uint8(h%(256-formOther))
	}
	return f
}

// String describes the form for people, "" if it was not told.
func (f WireForm) String() string {
	switch {
	case !f.Told:
		return ""
	case f.Algorithm == FormAsIs:
		return fmt.Sprintf("sent as %v", f.DType)
	case f.Algorithm == FormMinMax:
		return fmt.Sprintf("sent as %v by minmax", f.DType)
	case f.Algorithm == FormZeroPoint:
		return fmt.Sprintf("sent as %v by zeropoint", f.DType)
	case f.Elements != 0:
		return fmt.Sprintf("sent as %v, %d in %d bytes, by another quantizer (%d)", f.DType, f.Elements, f.Bytes, f.Algorithm)
	default:
		return fmt.Sprintf("sent as %v by another quantizer (%d)", f.DType, f.Algorithm)
	}
}

// Agrees reports whether ends that say f and g understand each other, as far as
// they say it.
func (f WireForm) Agrees(g WireForm) bool { return !f.Told || !g.Told || f == g }

// Peer to master.
type (
	// C2MRequestSessionRegistration registers a peer: its three listen ports and group.
	C2MRequestSessionRegistration struct {
		P2PPort, SharedStatePort, BenchmarkPort uint16
		PeerGroup                               uint32
		Ext                                     Ext
	}
	// C2MRequestEstablishP2PConnections votes for a round.
	C2MRequestEstablishP2PConnections struct{ AcceptNewPeers bool }
	// C2MP2PConnectionsEstablished reports the peer's part of a round.
	C2MP2PConnectionsEstablished struct {
		Success     bool
		FailedPeers []UUID
	}
	// C2MCheckPeersPending asks whether newcomers wait.
	C2MCheckPeersPending struct{}
	// C2MOptimizeTopology votes for an optimization.
	C2MOptimizeTopology struct{}
	// C2MReportPeerBandwidth reports one measured edge in Mbit/s.
	C2MReportPeerBandwidth struct {
		To   UUID
		Mbps float64
	}
	// C2MOptimizeTopologyWorkComplete ends the peer's measurements.
	C2MOptimizeTopologyWorkComplete struct{}
	// C2MSyncSharedState votes for a synchronisation with the peer's entries.
	C2MSyncSharedState struct {
		Revision uint64
		Strategy Strategy
		Entries  []StateEntry
		Ext      Ext
	}
	// C2MDistSharedStateComplete confirms that the peer has what was elected.
	C2MDistSharedStateComplete struct{ Ext Ext }
	// C2MCollectiveCommsInitiate votes to start the collective Tag.
	C2MCollectiveCommsInitiate struct {
		Tag, Count uint64
		DType      dtype.Type
		Op         dtype.Op
		Form       WireForm // in an extension block, as Call and Forward
		Call       Call
		Forward    bool // the caller wants it finished forward
	}
	// C2MCollectiveCommsComplete ends the peer's data phase of Tag. What follows WasAborted is in an
	// extension block; Reason and ReasonCode say why it was aborted.
	C2MCollectiveCommsComplete struct {
		Tag        uint64
		WasAborted bool
		Reason     string
		ReasonCode uint16
		Holds      bool // the sender has the result, and can give it to others
		GivenUp    bool // it was told M2CGivenUp; in reports
	}
	// C2MHeartbeat (id 64) keeps the connection alive, and says, if Reports, how many
	// bytes of tensors the sender has sent and received in collectives, and fetched, in
	// this session; capability.
	C2MHeartbeat struct {
		Reports bool
		Moved   uint64
	}
	// C2MLinkReport (id 65) says what the link to To gave in a collective:
	// Mbps over the time in which it was at work, and Busy, the share of the
	// collective (0 to 1) in which it was; capability Topology.
	C2MLinkReport struct {
		To         UUID
		Mbps, Busy float64
	}
	// C2MProbeState (id 66) answers M2CProbe and M2CProbeGo of Round: Mbps and
	// its standard error Deviation if State is ProbeMeasured, and by how many
	// microseconds the sending began too Late; capability Topology.
	C2MProbeState struct {
		Round           uint64
		State           ProbeState
		Mbps, Deviation float64
		Late            uint32
	}
	// C2MAskTopology (id 67) asks for what the master knows of the links; it
	// needs no registration.
	C2MAskTopology struct{}
	// C2MRingPrepared (id 68) answers M2CPrepareRing of Change: the connections
	// to the new neighbours stand, or those to FailedPeers could not be made;
	// capability Switch.
	C2MRingPrepared struct {
		Change      uint64
		FailedPeers []UUID
	}
	// C2MPreflightDone (id 71) answers M2CPreflight of Number: all could be
	// reached but FailedPeers; capability Preflight.
	C2MPreflightDone struct {
		Number      uint64
		FailedPeers []UUID
	}
	// C2MWantMesh (id 88) asks for connections between all members of the group;
	// capability Collectives, as the one below.
	C2MWantMesh struct{}
	// C2MMeshPrepared (id 89) answers M2CPrepareMesh of Change: connections to all
	// stand but to FailedPeers.
	C2MMeshPrepared struct {
		Change      uint64
		FailedPeers []UUID
		Ways        []Way // to members, told to a master that announced Plans
	}
)

// ProbeState is how far a peer is with a scheduled probe.
type ProbeState uint8

// Probe states.
const (
	ProbeHeard    ProbeState = 1 // sent at once: its delay is that of the connection
	ProbeReady    ProbeState = 2 // connected, waits for M2CProbeGo
	ProbeMeasured ProbeState = 3
	ProbeBusy     ProbeState = 4 // another peer measures the target
	ProbeFailed   ProbeState = 5
)

// StateEntry is one tensor of a shared state as voted (C2M 8). NumElements is
// always sent as 0 (quirk Q20).
type StateEntry struct {
	Key             string
	Hash            uint64
	HashType        HashType
	NumElements     uint64
	DType           dtype.Type
	AllowInequality bool
}

// PeerEndpoint is where a ring neighbour listens.
type PeerEndpoint struct {
	Addr netip.AddrPort
	UUID UUID
}

// BandwidthRequest asks From to measure its rate to To at Addr.
type BandwidthRequest struct {
	From, To UUID
	Addr     netip.AddrPort
}

// Master to peer.
type (
	// M2CSessionRegistrationResponse answers a registration.
	M2CSessionRegistrationResponse struct {
		Accepted bool
		UUID     UUID
		Ext      Ext
	}
	// M2CP2PConnectionInfo opens a round; Peers is omitted on the wire if Unchanged.
	M2CP2PConnectionInfo struct {
		Unchanged        bool
		GlobalWorldSize  uint64
		LocalWorldSize   uint64
		NumDistinctGroup uint64
		LargestGroupSize uint64
		Peers            []PeerEndpoint
		Ext              Ext
	}
	// M2CP2PConnectionsEstablished ends a round; Ring is the order if Success, and
	// Mortal, in an extension block, those in it that cannot resume.
	M2CP2PConnectionsEstablished struct {
		Success bool
		Ring    []UUID
		Mortal  []UUID
	}
	// M2CPeersPendingResponse answers CheckPeersPending. Decision, in an extension
	// block, is the number of the answer.
	M2CPeersPendingResponse struct {
		PeersPending bool
		Decision     uint64
	}
	// M2COptimizeTopologyResponse lists the edges to measure.
	M2COptimizeTopologyResponse struct {
		Requests []BandwidthRequest
		Ext      Ext
	}
	// M2COptimizeTopologyComplete ends an optimization. Decision, in an extension block,
	// is the number of the end.
	M2COptimizeTopologyComplete struct {
		Success  bool
		Ring     []UUID
		Decision uint64
	}
	// M2CSyncSharedState is the verdict of an election for one peer.
	M2CSyncSharedState struct {
		IsOutdated  bool
		Distributor netip.AddrPort
		Keys        []string
		Hashes      []uint64
		HashTypes   []HashType
		Ext         Ext
	}
	// M2CSyncSharedStateComplete ends a synchronisation. NextRevision, in an extension
	// block, is the one that the master expects next.
	M2CSyncSharedStateComplete struct{ NextRevision uint64 }
	// M2CCollectiveCommsCommence starts the data phase of Tag.
	M2CCollectiveCommsCommence struct {
		Tag, SeqNr uint64
		Forward    bool // it may be finished forward
	}
	// M2CCollectiveCommsComplete releases Tag.
	M2CCollectiveCommsComplete struct {
		Tag  uint64
		Held bool // all have the result, whatever M2C 11 said
	}
	// M2CCollectiveCommsAbort is the verdict about Tag. Reason and ReasonCode travel in an
	// extension block and say why it was aborted.
	M2CCollectiveCommsAbort struct {
		Tag        uint64
		Aborted    bool
		Reason     string
		ReasonCode uint16
	}
	// M2CHeartbeat (id 64) keeps the connection alive; capability.
	M2CHeartbeat struct{}
	// M2CPeerDropped (id 65) names a peer that left or was dropped; sent to native peers only.
	M2CPeerDropped struct {
		UUID   UUID
		Addr   netip.AddrPort
		Group  uint32
		Reason string
	}
	// M2CProbe (id 66) calls for a measurement of the link to To, whose
	// benchmark listens at Addr: connect, say that you are ready; capability
	// Topology, as the ones below.
	M2CProbe struct {
		Round uint64
		To    UUID
		Addr  netip.AddrPort
	}
	// M2CProbeGo (id 67) starts the sending of Round in Delay microseconds.
	M2CProbeGo struct {
		Round uint64
		Delay uint32
	}
	// M2CProbesDone (id 68) ends the measurements of an optimization.
	M2CProbesDone struct{}
	// M2CTopology (id 69) answers C2MAskTopology.
	M2CTopology struct{ Groups []GroupTopology }
	// M2CPrepareRing (id 70) names the neighbours that the receiver has in the
	// ring of Change: connect to them, beside whatever runs, and say that you
	// have; capability Switch, as the one below.
	M2CPrepareRing struct {
		Change uint64
		Peers  []PeerEndpoint
	}
	// M2CSwitchRing (id 71): collectives that are commenced from now on use
	// Ring. Without one the change was given up, and the ring stays.
	M2CSwitchRing struct {
		Change uint64
		Ring   []UUID
		Direct Direct // which all-reduces do not use the ring; none unless told
	}
	// M2CPreflight (id 75) asks the receiver to try, beside whatever runs, whether
	// it reaches Peers; capability Preflight.
	M2CPreflight struct {
		Number uint64
		Peers  []PeerEndpoint
	}
	// M2CPrepareMesh (id 88) names the members that are not neighbours of the
	// receiver: connect to them, beside whatever runs, and say that you have;
	// capability Collectives, as the one below.
	M2CPrepareMesh struct {
		Change uint64
		Peers  []PeerEndpoint
	}
	// M2CMesh (id 89): collectives that are commenced from now on use Planner,
	// until the next round.
	M2CMesh struct {
		Change  uint64
		Planner uint8
	}
	// M2CNames (id 90) says who the members of the receiver's group are, in front of
	// M2C 2. It is sent on connections in TLS alone.
	M2CNames struct{ Members []NamedMember }
)

// NamedMember is the name in a member's certificate, and where it hands out shared
// state.
type NamedMember struct {
	UUID  UUID
	Name  string
	State netip.AddrPort
}

// Planners of an M2CMesh.
const (
	MeshNone   = 0 // the members use the ring
	MeshDirect = 1 // every member sends to every other one
)

// GroupTopology is what a master knows of the links of one group.
type GroupTopology struct {
	Group uint32
	Peers []PeerEndpoint // Ring and Mbps count in this order; ports are those of P2P
	Ring  []uint32       // positions in Peers, empty before the first round
	Mbps  []float64      // len(Peers) squared, from by to; 0 is unknown
}

// Peer to peer, shared state and benchmark.
type (
	// P2PHello opens connection Number of the sender's pool.
	P2PHello struct {
		UUID   UUID
		Number uint32
		Ext    Ext
	}
	// P2PHelloAck answers P2PHello.
	P2PHelloAck struct{ Ext Ext }
	// C2SRequestSharedState asks for tensors by key.
	C2SRequestSharedState struct{ Keys []string }
	// S2CSharedStateResponse precedes the raw bytes of the entries.
	S2CSharedStateResponse struct {
		Status   StateStatus
		Revision uint64
		Entries  []StateSize
	}
	// C2BHello opens a benchmark connection.
	C2BHello struct {
		UUID UUID
		Ext  Ext
	}
	// B2CServerIsBusy answers C2BHello.
	B2CServerIsBusy struct {
		IsBusy bool
		Ext    Ext
	}
)

// StateSize is one entry of a shared state response: Size in bytes.
type StateSize struct {
	Key  string
	Size uint64
}

// MetaKind is the kind of dequantization metadata.
type MetaKind uint8

// Metadata kinds (control spec, section 3).
const (
	MetaMinMax    MetaKind = 0
	MetaZeroPoint MetaKind = 1
	// MetaOwn is the first of the kinds that quantizers give meanings of their own
	// (docs/spec/extensions.md, "Wire forms of our own"). PCCL peers do not take them.
	MetaOwn MetaKind = 128
)

// MaxOwnMeta bounds the bytes of metadata of a quantizer's own kind.
const MaxOwnMeta = 64

// DequantizationMeta (P2P 3) is carried in a multiplexed frame, without
// length field (data spec, section 4.2). DType is Float32 or Float64 for
// MinMax; Min and Max hold float32 values exactly.
type DequantizationMeta struct {
	Tag       uint64
	Kind      MetaKind
	DType     dtype.Type
	Min, Max  float64
	ZeroPoint int64
	Scale     float32
	Size      uint8 // of what a kind from MetaOwn on has in Bytes
	Bytes     [MaxOwnMeta]byte
}

// Proto and ID of every packet.
func (C2MRequestSessionRegistration) Proto() Proto     { return C2M }
func (C2MRequestSessionRegistration) ID() ID           { return 1 }
func (C2MRequestEstablishP2PConnections) Proto() Proto { return C2M }
func (C2MRequestEstablishP2PConnections) ID() ID       { return 2 }
func (C2MP2PConnectionsEstablished) Proto() Proto      { return C2M }
func (C2MP2PConnectionsEstablished) ID() ID            { return 3 }
func (C2MCheckPeersPending) Proto() Proto              { return C2M }
func (C2MCheckPeersPending) ID() ID                    { return 4 }
func (C2MOptimizeTopology) Proto() Proto               { return C2M }
func (C2MOptimizeTopology) ID() ID                     { return 5 }
func (C2MReportPeerBandwidth) Proto() Proto            { return C2M }
func (C2MReportPeerBandwidth) ID() ID                  { return 6 }
func (C2MOptimizeTopologyWorkComplete) Proto() Proto   { return C2M }
func (C2MOptimizeTopologyWorkComplete) ID() ID         { return 7 }
func (C2MSyncSharedState) Proto() Proto                { return C2M }
func (C2MSyncSharedState) ID() ID                      { return 8 }
func (C2MDistSharedStateComplete) Proto() Proto        { return C2M }
func (C2MDistSharedStateComplete) ID() ID              { return 9 }
func (C2MCollectiveCommsInitiate) Proto() Proto        { return C2M }
func (C2MCollectiveCommsInitiate) ID() ID              { return 10 }
func (C2MCollectiveCommsComplete) Proto() Proto        { return C2M }
func (C2MCollectiveCommsComplete) ID() ID              { return 11 }
func (C2MHeartbeat) Proto() Proto                      { return C2M }
func (C2MHeartbeat) ID() ID                            { return 64 }
func (C2MLinkReport) Proto() Proto                     { return C2M }
func (C2MLinkReport) ID() ID                           { return 65 }
func (C2MProbeState) Proto() Proto                     { return C2M }
func (C2MProbeState) ID() ID                           { return 66 }
func (C2MAskTopology) Proto() Proto                    { return C2M }
func (C2MAskTopology) ID() ID                          { return 67 }
func (C2MRingPrepared) Proto() Proto                   { return C2M }
func (C2MRingPrepared) ID() ID                         { return 68 }
func (C2MPreflightDone) Proto() Proto                  { return C2M }
func (C2MPreflightDone) ID() ID                        { return 71 }
func (C2MWantMesh) Proto() Proto                       { return C2M }
func (C2MWantMesh) ID() ID                             { return 88 }
func (C2MMeshPrepared) Proto() Proto                   { return C2M }
func (C2MMeshPrepared) ID() ID                         { return 89 }

func (M2CSessionRegistrationResponse) Proto() Proto { return M2C }
func (M2CSessionRegistrationResponse) ID() ID       { return 1 }
func (M2CP2PConnectionInfo) Proto() Proto           { return M2C }
func (M2CP2PConnectionInfo) ID() ID                 { return 2 }
func (M2CP2PConnectionsEstablished) Proto() Proto   { return M2C }
func (M2CP2PConnectionsEstablished) ID() ID         { return 3 }
func (M2CPeersPendingResponse) Proto() Proto        { return M2C }
func (M2CPeersPendingResponse) ID() ID              { return 4 }
func (M2COptimizeTopologyResponse) Proto() Proto    { return M2C }
func (M2COptimizeTopologyResponse) ID() ID          { return 5 }
func (M2COptimizeTopologyComplete) Proto() Proto    { return M2C }
func (M2COptimizeTopologyComplete) ID() ID          { return 6 }
func (M2CSyncSharedState) Proto() Proto             { return M2C }
func (M2CSyncSharedState) ID() ID                   { return 7 }
func (M2CSyncSharedStateComplete) Proto() Proto     { return M2C }
func (M2CSyncSharedStateComplete) ID() ID           { return 8 }
func (M2CCollectiveCommsCommence) Proto() Proto     { return M2C }
func (M2CCollectiveCommsCommence) ID() ID           { return 9 }
func (M2CCollectiveCommsComplete) Proto() Proto     { return M2C }
func (M2CCollectiveCommsComplete) ID() ID           { return 10 }
func (M2CCollectiveCommsAbort) Proto() Proto        { return M2C }
func (M2CCollectiveCommsAbort) ID() ID              { return 11 }
func (M2CHeartbeat) Proto() Proto                   { return M2C }
func (M2CHeartbeat) ID() ID                         { return 64 }
func (M2CPeerDropped) Proto() Proto                 { return M2C }
func (M2CPeerDropped) ID() ID                       { return 65 }
func (M2CProbe) Proto() Proto                       { return M2C }
func (M2CProbe) ID() ID                             { return 66 }
func (M2CProbeGo) Proto() Proto                     { return M2C }
func (M2CProbeGo) ID() ID                           { return 67 }
func (M2CProbesDone) Proto() Proto                  { return M2C }
func (M2CProbesDone) ID() ID                        { return 68 }
func (M2CTopology) Proto() Proto                    { return M2C }
func (M2CTopology) ID() ID                          { return 69 }
func (M2CPrepareRing) Proto() Proto                 { return M2C }
func (M2CPrepareRing) ID() ID                       { return 70 }
func (M2CPreflight) Proto() Proto                   { return M2C }
func (M2CPreflight) ID() ID                         { return 75 }
func (M2CSwitchRing) Proto() Proto                  { return M2C }
func (M2CSwitchRing) ID() ID                        { return 71 }
func (M2CPrepareMesh) Proto() Proto                 { return M2C }
func (M2CPrepareMesh) ID() ID                       { return 88 }
func (M2CMesh) Proto() Proto                        { return M2C }
func (M2CMesh) ID() ID                              { return 89 }
func (M2CNames) Proto() Proto                       { return M2C }
func (M2CNames) ID() ID                             { return 90 }

func (P2PHello) Proto() Proto               { return P2P }
func (P2PHello) ID() ID                     { return 1 }
func (P2PHelloAck) Proto() Proto            { return P2P }
func (P2PHelloAck) ID() ID                  { return 2 }
func (DequantizationMeta) Proto() Proto     { return P2P }
func (DequantizationMeta) ID() ID           { return 3 }
func (C2SRequestSharedState) Proto() Proto  { return C2S }
func (C2SRequestSharedState) ID() ID        { return 1 }
func (S2CSharedStateResponse) Proto() Proto { return S2C }
func (S2CSharedStateResponse) ID() ID       { return 1 }
func (C2BHello) Proto() Proto               { return C2B }
func (C2BHello) ID() ID                     { return 1 }
func (B2CServerIsBusy) Proto() Proto        { return B2C }
func (B2CServerIsBusy) ID() ID              { return 1 }
