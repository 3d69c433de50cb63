package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
)

// vector is one entry of packets.json, made by the compiled PCCL 1.0.0 code.
type vector struct {
	Packet, Protocol string
	ID               ID
	Fields           fields
	Payload, Framed  string
}

type fields map[string]any

func loadVectors(t testing.TB) []vector {
	raw, err := os.ReadFile("testdata/packets.json")
	require.NoError(t, err)
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var file struct{ Packets []vector }
	require.NoError(t, dec.Decode(&file))
	require.NotEmpty(t, file.Packets)
	return file.Packets
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func protoOf(t testing.TB, name string) Proto {
	for i, n := range protoNames {
		if n == name {
			return Proto(i)
		}
	}
	require.Fail(t, "unknown protocol", name)
	return 0
}

func number(v any) uint64 {
	s, ok := v.(string)
	if !ok {
		s = v.(json.Number).String()
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func (f fields) u(key string) uint64   { return number(f[key]) }
func (f fields) b(key string) bool     { return f[key].(bool) }
func (f fields) uuid(key string) UUID  { return vectorUUID(f[key]) }
func (f fields) list(key string) []any { l, _ := f[key].([]any); return l }
func (f fields) str(key string) string { return f[key].(string) }
func (f fields) f(key string) float64  { v, err := f[key].(json.Number).Float64(); must(err); return v }

func (f fields) i(key string) int64    { v, err := f[key].(json.Number).Int64(); must(err); return v }
func (f fields) uuids(k string) []UUID { return each(f.list(k), vectorUUID) }
func (f fields) keys(k string) []string {
	return each(f.list(k), func(v any) string { return v.(string) })
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func each[T any](l []any, f func(any) T) (out []T) {
	for _, v := range l {
		out = append(out, f(v))
	}
	return out
}

func entries[T any](l []any, f func(fields) T) []T {
	return each(l, func(v any) T { return f(fields(v.(map[string]any))) })
}

// vectorUUID reads u(b), which stands for the bytes b, b+1, .., b+15.
func vectorUUID(v any) (u UUID) {
	s := strings.TrimSuffix(strings.TrimPrefix(v.(string), "u(0x"), ")")
	b, err := strconv.ParseUint(s, 16, 8)
	must(err)
	for i := range u {
		u[i] = byte(b) + byte(i)
	}
	return u
}

// build makes the struct that an entry's field values describe.
func (v vector) build(t testing.TB) Packet {
	f := v.Fields
	switch v.Packet {
	case "C2MPacketRequestSessionRegistration":
		return C2MRequestSessionRegistration{
			P2PPort: uint16(f.u("p2p_port")), SharedStatePort: uint16(f.u("shared_state_port")),
			BenchmarkPort: uint16(f.u("benchmark_port")), PeerGroup: uint32(f.u("peer_group")),
		}
	case "C2MPacketRequestEstablishP2PConnections":
		return C2MRequestEstablishP2PConnections{f.b("accept_new_peers")}
	case "C2MPacketP2PConnectionsEstablished":
		return C2MP2PConnectionsEstablished{f.b("success"), f.uuids("failed_peers")}
	case "C2MPacketCheckPeersPending":
		return C2MCheckPeersPending{}
	case "C2MPacketOptimizeTopology":
		return C2MOptimizeTopology{}
	case "C2MPacketReportPeerBandwidth":
		return C2MReportPeerBandwidth{f.uuid("to_peer"), f.f("mbits")}
	case "C2MPacketOptimizeTopologyWorkComplete":
		return C2MOptimizeTopologyWorkComplete{}
	case "C2MPacketSyncSharedState":
		return C2MSyncSharedState{f.u("revision"), Strategy(f.u("strategy")), entries(f.list("entries"), func(e fields) StateEntry {
			return StateEntry{
				e.str("key"), e.u("hash"), HashType(e.u("hash_type")), e.u("num_elements"),
				dtype.Type(e.u("data_type")), e.b("allow_content_inequality"),
			}
		}), Ext{}}
	case "C2MPacketDistSharedStateComplete":
		return C2MDistSharedStateComplete{}
	case "C2MPacketCollectiveCommsInitiate":
		return C2MCollectiveCommsInitiate{f.u("tag"), f.u("count"), dtype.Type(f.u("data_type")), dtype.Op(f.u("op")), WireForm{}, Call{}, false}
	case "C2MPacketCollectiveCommsComplete":
		return C2MCollectiveCommsComplete{Tag: f.u("tag"), WasAborted: f.b("was_aborted")}
	case "M2CPacketSessionRegistrationResponse":
		return M2CSessionRegistrationResponse{Accepted: f.b("accepted"), UUID: f.uuid("uuid")}
	case "M2CPacketP2PConnectionInfo":
		return M2CP2PConnectionInfo{
			Unchanged: f.b("unchanged"), GlobalWorldSize: f.u("global_world_size"), LocalWorldSize: f.u("local_world_size"),
			NumDistinctGroup: f.u("num_distinct_peer_groups"), LargestGroupSize: f.u("largest_peer_group_world_size"),
			Peers: entries(f.list("peers"), func(e fields) PeerEndpoint {
				return PeerEndpoint{netip.MustParseAddrPort(e.str("addr")), e.uuid("uuid")}
			}),
		}
	case "M2CPacketP2PConnectionsEstablished":
		return M2CP2PConnectionsEstablished{Success: f.b("success"), Ring: f.uuids("ring")}
	case "M2CPacketPeersPendingResponse":
		return M2CPeersPendingResponse{PeersPending: f.b("peers_pending")}
	case "M2CPacketOptimizeTopologyResponse":
		return M2COptimizeTopologyResponse{Requests: entries(f.list("requests"), func(e fields) BandwidthRequest {
			return BandwidthRequest{e.uuid("from"), e.uuid("to"), netip.MustParseAddrPort(e.str("endpoint"))}
		})}
	case "M2CPacketOptimizeTopologyComplete":
		return M2COptimizeTopologyComplete{Success: f.b("success"), Ring: f.uuids("ring")}
	case "M2CPacketSyncSharedState":
		return M2CSyncSharedState{
			IsOutdated: f.b("is_outdated"), Distributor: netip.MustParseAddrPort(f.str("distributor")), Keys: f.keys("keys"),
			Hashes: each(f.list("hashes"), number), HashTypes: each(f.list("hash_types"), func(v any) HashType { return HashType(number(v)) }),
		}
	case "M2CPacketSyncSharedStateComplete":
		return M2CSyncSharedStateComplete{}
	case "M2CPacketCollectiveCommsCommence":
		return M2CCollectiveCommsCommence{Tag: f.u("tag"), SeqNr: f.u("seq_nr")}
	case "M2CPacketCollectiveCommsComplete":
		return M2CCollectiveCommsComplete{Tag: f.u("tag")}
	case "M2CPacketCollectiveCommsAbort":
		return M2CCollectiveCommsAbort{Tag: f.u("tag"), Aborted: f.b("aborted")}
	case "P2PPacketHello":
		return P2PHello{UUID: f.uuid("uuid"), Number: uint32(f.u("connection_nr"))}
	case "P2PPacketHelloAck":
		return P2PHelloAck{}
	case "P2PPacketDequantizationMeta":
		m := DequantizationMeta{Tag: f.u("tag"), Kind: MetaKind(f.u("meta_type"))}
		if m.Kind == MetaMinMax {
			m.DType, m.Min, m.Max = dtype.Type(f.u("data_type")), f.f("min"), f.f("max")
		} else {
			m.ZeroPoint, m.Scale = f.i("zero_point"), float32(f.f("scale"))
		}
		return m
	case "C2SPacketRequestSharedState":
		return C2SRequestSharedState{f.keys("keys")}
	case "S2CPacketSharedStateResponse":
		return S2CSharedStateResponse{StateStatus(f.u("status")), f.u("revision"), entries(f.list("entries"), func(e fields) StateSize {
			return StateSize{e.str("key"), e.u("size")}
		})}
	case "C2BPacketHello":
		return C2BHello{UUID: f.uuid("uuid")}
	case "B2CPacketBenchmarkServerIsBusy":
		return B2CServerIsBusy{IsBusy: f.b("is_busy")}
	}
	require.Fail(t, "packet without a struct", v.Packet)
	return nil
}

// Control spec, sections 2 to 4: every golden packet encodes to and decodes
// from exactly the bytes of the original.
func TestGoldenPackets(t *testing.T) {
	kinds := map[string]bool{}
	for _, v := range loadVectors(t) {
		kinds[v.Packet] = true
		want := v.build(t)
		require.Equal(t, protoOf(t, v.Protocol), want.Proto(), v.Packet)
		require.Equal(t, v.ID, want.ID(), v.Packet)

		require.Equal(t, v.Payload, hex.EncodeToString(AppendBody(nil, want)), v.Packet)
		require.Equal(t, "ff"+v.Framed, hex.EncodeToString(Append([]byte{0xff}, want)), v.Packet)

		got, err := Decode(want.Proto(), want.ID(), unhex(t, v.Payload))
		require.NoError(t, err, v.Packet)
		require.Equal(t, want, got, v.Packet)
	}
	require.Len(t, kinds, 29, "packet kinds in the golden file")
}

// Control spec, section 2: bytes after the last field are ignored, and every
// body that is cut short is a Protocol error (quirk Q3: PCCL dies of it).
func TestGoldenPacketsWithJunkAndCuts(t *testing.T) {
	junk := bytes.Repeat([]byte{0xa5}, 69)
	for _, v := range loadVectors(t) {
		want, body := v.build(t), unhex(t, v.Payload)
		got, err := Decode(want.Proto(), want.ID(), append(bytes.Clone(body), junk...))
		require.NoError(t, err, v.Packet)
		require.Equal(t, want, got, v.Packet)
		for n := range body {
			_, err := Decode(want.Proto(), want.ID(), body[:n])
			requireProtocol(t, err)
		}
	}
}
