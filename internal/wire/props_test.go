package wire

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/dtype"
)

// drawer draws field values.
type drawer struct{ *rapid.T }

func (d drawer) b() bool     { return rapid.Bool().Draw(d.T, "bool") }
func (d drawer) u8() uint8   { return rapid.Uint8().Draw(d.T, "u8") }
func (d drawer) u16() uint16 { return rapid.Uint16().Draw(d.T, "u16") }
func (d drawer) u32() uint32 { return rapid.Uint32().Draw(d.T, "u32") }
func (d drawer) u64() uint64 { return rapid.Uint64().Draw(d.T, "u64") }
func (d drawer) f64() float64 {
	return rapid.Float64().Draw(d.T, "f64")
}

// str draws any bytes: strings have no charset rule.
func (d drawer) str() string {
	return string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(d.T, "string"))
}

func (d drawer) uuid() (u UUID) {
	copy(u[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(d.T, "uuid"))
	return u
}

func (d drawer) addr() netip.AddrPort {
	size := rapid.SampledFrom([]int{4, 16}).Draw(d.T, "ip size")
	ip, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(d.T, "ip"))
	return netip.AddrPortFrom(ip.Unmap(), d.u16())
}

func drawList[T any](d drawer, f func() T) (out []T) {
	for range rapid.IntRange(0, 5).Draw(d.T, "length") {
		out = append(out, f())
	}
	return out
}

func (d drawer) ext() Ext {
	if d.b() {
		return Ext{}
	}
	return Ext{
		Native: d.b(), Flows: FlowsLevel(d.u8() % 4), GroupNative: d.b(), Failed: d.b(), Torn: d.b(),
		HeartbeatInterval: time.Duration(d.u32()) * time.Millisecond,
		HeartbeatTimeout:  time.Duration(d.u32()) * time.Millisecond,
		Distributors:      drawList(d, d.addr), Reason: d.str(), ReasonCode: d.u16(), Topology: d.b(), Switch: d.b(),
		Addresses: drawList(d, d.addr), Session: d.u64(), Host: d.addr().Addr(),
		Early:      Early{d.b(), d.u64(), d.u8()},
		RoundBound: time.Duration(d.u32()) * time.Millisecond, Preflight: d.b(),
		Form: d.form(), Call: d.call(),
		Collectives: d.u8(), GroupCollectives: d.b(), Members: drawList(d, d.uuid),
		Plans: d.u8(), Paths: Paths{Ways: d.ways(), Direct: d.direct()}, Resuming: d.resuming(), Secured: Secured{Revocations: d.b(), Plain: d.b()},
	}
}

func (d drawer) resuming() Resuming {
	x := Resuming{
		Resume: d.b(), Term: d.u32(), Met: d.b(), Leader: drawList(d, d.addr), Decision: d.u64(), Mortal: drawList(d, d.uuid), NextRevision: d.u64(),
	}
	if d.b() {
		x.Identity = Identity{UUID: d.uuid(), Token: d.uuid()}
	}
	return x
}

// resumed draws a packet of ends that resume.
func (d drawer) resumed() Packet {
	switch d.u8() % 10 {
	case 8:
		return C2MLeave{}
	case 9:
		return M2CLeaveAnswer{d.b(), d.str()}
	case 0:
		return M2CResumed{}
	case 1:
		return M2CLeaving{d.u32(), drawList(d, d.addr)}
	case 2:
		return C2MLinkEnded{d.uuid()}
	case 3:
		return C2MFarewell{}
	case 4:
		return M2CReportAgain{}
	}
	return d.report()
}

func (d drawer) report() C2MReport {
	uuids := func() []UUID { return drawList(d, d.uuid) }
	verdict := func() Verdict { return Verdict{d.b(), d.u16(), d.str()} }
	p := C2MReport{
		Round:  StoodRound{d.u64(), uuids(), uuids(), uuids(), uuids(), d.u64(), d.u64(), d.u64()},
		Query:  ReportedQuery{d.b(), d.u64(), d.b()},
		Call:   ReportedCall{Step: ReportStep(d.u8() % (uint8(StepSynced) + 1)), Decision: d.u64(), Failed: uuids(), Unheld: d.b()},
		Change: ReportedChange{d.u64(), Direct{d.u64(), d.u32(), d.u32(), d.u32(), d.str()}, d.u64(), d.uuid(), d.u64(), d.b(), uuids()},
		Mesh:   ReportedMesh{MeshStep(d.u8()), d.b(), d.u64(), d.u8(), uuids(), d.ways()},
		Ops: drawList(d, func() ReportedOp {
			o := ReportedOp{
				Vote: C2MCollectiveCommsInitiate{d.u64(), d.u64(), dtype.Type(d.u8()), dtype.Op(d.u8()), d.form(), d.call(), d.b()},
				Step: OpStep(d.u8()), Seq: d.u64(), After: d.u64(), Older: d.b(), Heard: d.b(), Verdict: verdict(),
			}
			o.Done = C2MCollectiveCommsComplete{o.Vote.Tag, d.b(), d.str(), d.u16(), d.b(), d.b()}
			return o
		}),
		Verdicts: drawList(d, func() ReportedVerdict { return ReportedVerdict{d.u64(), d.u64(), verdict()} }),

		NextRevision: d.u64(), Optimized: d.u64(), Synced: d.u64(), Leaving: d.b(), Broken: uuids(),
		Links: drawList(d, func() ReportedLink { return ReportedLink{d.uuid(), d.f64(), d.f64()} }),
	}
	if p.Call.Step >= StepElection {
		p.Call.Vote = C2MSyncSharedState{d.u64(), Strategy(d.u8()), drawList(d, func() StateEntry {
			return StateEntry{d.str(), d.u64(), HashType(d.u8()), d.u64(), dtype.Type(d.u8()), d.b()}
		}), d.ext()}
	}
	if p.Call.Step >= StepFetching {
		p.Call.Verdict = M2CSyncSharedState{IsOutdated: d.b(), Distributor: d.addr(), Ext: d.ext()}
	}
	return p
}

func (d drawer) peers() []PeerEndpoint {
	return drawList(d, func() PeerEndpoint { return PeerEndpoint{d.addr(), d.uuid()} })
}

// forwarded draws a packet of ends that finish forward.
func (d drawer) forwarded() Packet {
	switch d.u8() % 4 {
	case 0:
		return C2MResult{d.u64(), d.u64(), d.data()}
	case 1:
		return M2CAskResult{d.u64(), d.u64()}
	case 2:
		return M2CGivenUp{d.u64()}
	}
	return M2CResult{d.u64(), d.u64(), d.data()}
}

func (d drawer) data() []byte {
	if d.b() {
		return nil
	}
	return rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(d.T, "data")
}

func (d drawer) ways() []Way { return drawList(d, func() Way { return Way{d.uuid(), d.u32()} }) }

func (d drawer) direct() Direct {
	x := Direct{d.u64(), d.u32(), d.u32(), d.u32(), d.str()}
	if x.Most == 0 {
		return Direct{Schemes: x.Schemes}
	}
	return x
}

func (d drawer) call() Call {
	c := Call{d.u8(), CallFlags(d.u8()), d.u16(), d.u32(), d.u64(), d.u64()}
	if c.Kind == 0 {
		return Call{}
	}
	return c
}

func (d drawer) form() WireForm {
	if d.b() {
		return WireForm{}
	}
	f := WireForm{Told: true, Algorithm: d.u8(), DType: dtype.Type(d.u8())}
	if d.b() {
		f.Elements, f.Bytes = 1+uint16(d.u8()), d.u16()
	}
	return f
}

func (d drawer) meta() DequantizationMeta {
	m := DequantizationMeta{Tag: d.u64()}
	switch rapid.IntRange(0, 3).Draw(d.T, "kind") {
	case 3:
		m.Kind = MetaOwn + MetaKind(d.u8()&127)
		m.Size = d.u8() % (MaxOwnMeta + 1)
		for i := range m.Size {
			m.Bytes[i] = d.u8()
		}
	case 0:
		m.DType = dtype.Float32
		m.Min, m.Max = float64(rapid.Float32().Draw(d.T, "min")), float64(rapid.Float32().Draw(d.T, "max"))
	case 1:
		m.DType, m.Min, m.Max = dtype.Float64, d.f64(), d.f64()
	default:
		m.Kind, m.ZeroPoint, m.Scale = MetaZeroPoint, int64(d.u64()), rapid.Float32().Draw(d.T, "scale")
	}
	return m
}

func (d drawer) rates() Packet {
	return C2MRates{d.f64(), d.f64(), drawList(d, func() PathRate { return PathRate{d.uuid(), d.f64()} })}
}

// drawPacket draws any packet with any field values.
func drawPacket(t *rapid.T) Packet {
	d := drawer{t}
	makers := []func() Packet{
		func() Packet { return C2MRequestSessionRegistration{d.u16(), d.u16(), d.u16(), d.u32(), d.ext()} },
		func() Packet { return C2MRequestEstablishP2PConnections{d.b()} },
		func() Packet { return C2MP2PConnectionsEstablished{d.b(), drawList(d, d.uuid)} },
		func() Packet { return C2MCheckPeersPending{} },
		func() Packet { return C2MOptimizeTopology{} },
		func() Packet { return C2MReportPeerBandwidth{d.uuid(), d.f64()} },
		func() Packet { return C2MOptimizeTopologyWorkComplete{} },
		func() Packet {
			return C2MSyncSharedState{d.u64(), Strategy(d.u8()), drawList(d, func() StateEntry {
				return StateEntry{d.str(), d.u64(), HashType(d.u8()), d.u64(), dtype.Type(d.u8()), d.b()}
			}), d.ext()}
		},
		func() Packet { return C2MDistSharedStateComplete{d.ext()} },
		func() Packet {
			return C2MCollectiveCommsInitiate{d.u64(), d.u64(), dtype.Type(d.u8()), dtype.Op(d.u8()), d.form(), d.call(), d.b()}
		},
		func() Packet {
			return C2MCollectiveCommsComplete{d.u64(), d.b(), d.str(), uint16(d.u32()), d.b(), d.b()}
		},
		func() Packet {
			if d.b() {
				return C2MHeartbeat{Reports: true, Moved: d.u64()}
			}
			return C2MHeartbeat{}
		},
		func() Packet { return M2CSessionRegistrationResponse{d.b(), d.uuid(), d.ext()} },
		func() Packet {
			p := M2CP2PConnectionInfo{d.b(), d.u64(), d.u64(), d.u64(), d.u64(), nil, d.ext()}
			if !p.Unchanged {
				p.Peers = d.peers()
			}
			return p
		},
		func() Packet { return M2CP2PConnectionsEstablished{d.b(), drawList(d, d.uuid), drawList(d, d.uuid)} },
		func() Packet { return M2CPeersPendingResponse{d.b(), d.u64()} },
		func() Packet {
			return M2COptimizeTopologyResponse{drawList(d, func() BandwidthRequest { return BandwidthRequest{d.uuid(), d.uuid(), d.addr()} }), d.ext()}
		},
		func() Packet { return M2COptimizeTopologyComplete{d.b(), drawList(d, d.uuid), d.u64()} },
		func() Packet {
			p := M2CSyncSharedState{IsOutdated: d.b(), Distributor: d.addr(), Keys: drawList(d, d.str)}
			for range p.Keys {
				p.Hashes, p.HashTypes = append(p.Hashes, d.u64()), append(p.HashTypes, HashType(d.u8()))
			}
			p.Ext = d.ext()
			return p
		},
		func() Packet { return M2CSyncSharedStateComplete{d.u64()} },
		func() Packet { return M2CCollectiveCommsCommence{d.u64(), d.u64(), d.b()} },
		func() Packet { return M2CCollectiveCommsComplete{d.u64(), d.b()} },
		func() Packet { return M2CCollectiveCommsAbort{d.u64(), d.b(), d.str(), d.u16()} },
		func() Packet { return M2CHeartbeat{} },
		func() Packet { return M2CPeerDropped{d.uuid(), d.addr(), d.u32(), d.str()} },
		func() Packet { return P2PHello{d.uuid(), d.u32(), d.ext()} },
		func() Packet { return P2PHelloAck{d.ext()} },
		func() Packet { return d.meta() },
		func() Packet { return C2SRequestSharedState{drawList(d, d.str)} },
		func() Packet {
			return S2CSharedStateResponse{StateStatus(d.u8()), d.u64(), drawList(d, func() StateSize { return StateSize{d.str(), d.u64()} })}
		},
		func() Packet { return C2BHello{d.uuid(), d.ext()} },
		func() Packet { return B2CServerIsBusy{d.b(), d.ext()} },
		func() Packet { return C2MLinkReport{d.uuid(), d.f64(), d.f64()} },
		func() Packet { return C2MProbeState{d.u64(), ProbeState(d.u8()), d.f64(), d.f64(), d.u32()} },
		func() Packet { return C2MAskTopology{} },
		func() Packet { return C2MAskStatus{} },
		func() Packet { return C2MRingPrepared{d.u64(), drawList(d, d.uuid)} },
		func() Packet { return C2MPreflightDone{d.u64(), drawList(d, d.uuid)} },
		func() Packet { return C2MWantMesh{} },
		d.resumed, d.rates, d.forwarded,
		func() Packet { return M2CPrepareLeave{d.u64(), d.u64(), d.uuid(), d.peers()} },
		func() Packet { return M2CRingWithout{d.u64(), d.u64(), d.u64(), drawList(d, d.uuid)} },
		func() Packet { return C2MMeshPrepared{d.u64(), drawList(d, d.uuid), d.ways()} },
		func() Packet { return M2CPrepareMesh{d.u64(), d.peers()} },
		func() Packet { return M2CMesh{d.u64(), d.u8()} },
		func() Packet {
			return M2CNames{drawList(d, func() NamedMember { return NamedMember{d.uuid(), d.str(), d.addr()} })}
		},
		func() Packet { return M2CRevocations{d.str()} },
		func() Packet { return M2CStatus{d.str()} },
		func() Packet { return M2CPreflight{d.u64(), d.peers()} },
		func() Packet { return M2CPrepareRing{d.u64(), d.peers()} },
		func() Packet { return M2CSwitchRing{d.u64(), drawList(d, d.uuid), d.direct()} },
		func() Packet { return M2CProbe{d.u64(), d.uuid(), d.addr()} },
		func() Packet { return M2CProbeGo{d.u64(), d.u32()} },
		func() Packet { return M2CProbesDone{} },
		func() Packet {
			return M2CTopology{drawList(d, func() GroupTopology {
				return GroupTopology{
					d.u32(), d.peers(),
					drawList(d, d.u32), drawList(d, d.f64),
				}
			})}
		},
	}
	return rapid.SampledFrom(makers).Draw(t, "packet")()
}

// What is encoded decodes to itself, whatever follows it, and keeps no
// reference to the bytes it came from.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPacket(rt)
		junk := rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(rt, "junk")
		if r, ok := p.(C2MReport); ok && r.Change.Direct.Schemes == "" {
			junk = nil // its last field may be missing: what follows would be that
		}
		body := append(AppendBody(nil, p), junk...)
		got, err := Decode(p.Proto(), p.ID(), body)
		require.NoError(rt, err)
		clear(body)
		require.Equal(rt, p, got)

		read, err := Read(bytes.NewReader(Append(nil, p)), p.Proto(), MaxPacket)
		require.NoError(rt, err)
		require.Equal(rt, p, read)
	})
}

// A sequence of packets survives any cutting of its bytes.
func TestPiecesRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var want []Packet
		var raw []byte
		for range rapid.IntRange(1, 6).Draw(rt, "packets") {
			p := drawPacket(rt)
			if p.Proto() != M2C {
				continue
			}
			want, raw = append(want, p), Append(raw, p)
		}
		s := pieces{proto: M2C}
		var got []Packet
		for len(raw) > 0 {
			n := rapid.IntRange(1, len(raw)).Draw(rt, "piece")
			s.feed(raw[:n])
			raw = raw[n:]
			for {
				p, ok, err := s.next()
				require.NoError(rt, err)
				if !ok {
					break
				}
				got = append(got, p)
			}
		}
		require.Equal(rt, want, got)
		require.Empty(rt, s.buf)
	})
}
