package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fuzzProto feeds arbitrary bodies to the decoder of one direction. What
// decodes must encode to a body that decodes to the same bytes again, and no
// larger than what came in.
func fuzzProto(f *testing.F, proto Proto) {
	for _, v := range loadVectors(f) {
		if protoOf(f, v.Protocol) == proto {
			body := unhex(f, v.Payload)
			f.Add(uint16(v.ID), body)
			f.Add(uint16(v.ID), appendExt(bytes.Clone(body), Ext{Native: true, HeartbeatInterval: time.Second, Reason: "x"}))
		}
	}
	f.Add(uint16(64), []byte{})
	f.Add(uint16(88), AppendBody(nil, M2CPrepareMesh{Change: 7, Peers: []PeerEndpoint{{Addr: netip.MustParseAddrPort("[::1]:1")}}}))
	f.Add(uint16(89), AppendBody(nil, C2MMeshPrepared{Change: 7, FailedPeers: []UUID{{1}}}))
	f.Add(uint16(10), AppendBody(nil, C2MCollectiveCommsInitiate{Tag: 1, Call: Call{Kind: 3, Root: 1}}))
	f.Add(uint16(90), AppendBody(nil, M2CNames{Members: []NamedMember{{Name: "gpu-7", State: netip.MustParseAddrPort("[::1]:1")}}}))
	f.Add(uint16(79), AppendBody(nil, M2CStatus{"{}"}))
	f.Add(uint16(91), AppendBody(nil, M2CRevocations{"\x30\x00"}))
	f.Add(uint16(69), AppendBody(nil, wantReport))
	f.Add(uint16(73), AppendBody(nil, M2CLeaving{Masters: []netip.AddrPort{netip.MustParseAddrPort("[::1]:1")}}))
	f.Add(uint16(65), AppendBody(nil, M2CPeerDropped{Addr: netip.MustParseAddrPort("[::1]:1"), Reason: "x"}))
	f.Fuzz(func(t *testing.T, id uint16, body []byte) {
		p, err := Decode(proto, ID(id), body)
		if err != nil {
			require.Nil(t, p)
			return
		}
		require.Equal(t, proto, p.Proto())
		require.Equal(t, ID(id), p.ID())
		first := AppendBody(nil, p)
		require.LessOrEqual(t, len(first), len(body))
		again, err := Decode(proto, ID(id), first)
		require.NoError(t, err)
		require.Equal(t, first, AppendBody(nil, again))
	})
}

func FuzzC2M(f *testing.F) { fuzzProto(f, C2M) }
func FuzzM2C(f *testing.F) { fuzzProto(f, M2C) }
func FuzzP2P(f *testing.F) { fuzzProto(f, P2P) }
func FuzzC2S(f *testing.F) { fuzzProto(f, C2S) }
func FuzzS2C(f *testing.F) { fuzzProto(f, S2C) }
func FuzzC2B(f *testing.F) { fuzzProto(f, C2B) }
func FuzzB2C(f *testing.F) { fuzzProto(f, B2C) }

func FuzzFrameHeader(f *testing.F) {
	f.Add(unhex(f, "000000000000002400000000000000010000000000000102"))
	f.Add(bytes.Repeat([]byte{0xff}, FrameHeaderSize))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var b, again [FrameHeaderSize]byte
		copy(b[:], raw)
		n, tag, stream, err := ParseFrameHeader(&b)
		if err != nil {
			return
		}
		require.True(t, n >= 1 && n <= MaxFramePayload)
		PutFrameHeader(&again, n, tag, stream)
		require.Equal(t, b, again)
	})
}

func FuzzMeta(f *testing.F) {
	for _, v := range loadVectors(f) {
		if v.Packet == "P2PPacketDequantizationMeta" {
			f.Add(append([]byte{0, 3}, unhex(f, v.Payload)...))
		}
	}
	f.Add(unhex(f, "000300000000000000050000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMeta(b)
		if err != nil {
			requireProtocol(t, err)
			return
		}
		raw := AppendMeta(nil, &m)
		require.LessOrEqual(t, len(raw), len(b))
		if !math.IsNaN(m.Min) && !math.IsNaN(m.Max) { // a signalling NaN of 32 bits comes back quiet
			require.Equal(t, b[:len(raw)], raw)
		}
	})
}

func FuzzExt(f *testing.F) {
	f.Add(appendExt(nil, Ext{Native: true, GroupNative: true, Failed: true, Reason: "x", ReasonCode: 1, HeartbeatTimeout: 1}))
	f.Add([]byte(extMagic))
	f.Add(appendExt(nil, Ext{Collectives: 1, GroupCollectives: true, Members: []UUID{{1}}, Call: Call{Kind: 8, Digest: 9}}))
	f.Add(appendExt(nil, Ext{Plans: 1, Paths: Paths{Direct: Direct{1, 2, 3, 4, "5"}, Ways: []Way{{UUID{1}, 2}}}}))
	f.Add(appendExt(nil, Ext{Resuming: Resuming{Resume: true, Term: 1, Identity: Identity{UUID: UUID{1}}, Decision: 2, Mortal: []UUID{{1}}, NextRevision: 3}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := (&reader{b: b}).ext()
		require.LessOrEqual(t, len(x.Reason), MaxReason)
		require.LessOrEqual(t, len(x.Distributors), MaxDistributors)
		require.Equal(t, x, (&reader{b: appendExt(nil, x)}).ext())
	})
}

// short gives at most n bytes at a time.
type short struct {
	io.Reader
	n int
}

func (s *short) Read(b []byte) (int, error) { return s.Reader.Read(b[:min(len(b), s.n)]) }

// A stream is the same packets and errors however it arrives.
func FuzzStream(f *testing.F) {
	f.Add(Append(Append(nil, C2MOptimizeTopology{}), C2MCollectiveCommsComplete{Tag: 1}), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		const limit = 1 << 20
		whole := bytes.NewReader(b)
		pieces := &short{bytes.NewReader(b), int(cut) + 1}
		buffered := bufio.NewReaderSize(&short{bytes.NewReader(b), int(cut) + 1}, 16+int(cut))
		for {
			p, err := Read(pieces, C2M, limit)
			q, other := Read(whole, C2M, limit)
			require.Equal(t, other, err)
			require.Equal(t, encodeOrNil(q), encodeOrNil(p))
			p, err = Read(buffered, C2M, limit)
			require.Equal(t, other, err)
			require.Equal(t, encodeOrNil(q), encodeOrNil(p))
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return
			}
		}
	})
}

// encodeOrNil encodes p, or nothing for nil.
func encodeOrNil(p Packet) []byte {
	if p == nil {
		return nil
	}
	return Append(nil, p)
}
