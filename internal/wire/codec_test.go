package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/allocs"
)

func requireProtocol(t testing.TB, err error) {
	t.Helper()
	var e *errs.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, errs.Protocol, e.Code)
}

// Control spec, section 4: the packets of our own in their documented form
// (docs/spec/extensions.md).
func TestOwnPackets(t *testing.T) {
	u := vectorUUID("u(0x01)")
	const magic, id = "676f7063636c5831", "0102030405060708090a0b0c0d0e0f10"
	for _, c := range []struct {
		p   Packet
		hex string
	}{
		{C2MHeartbeat{}, "00000000000000020040"},
		{C2MHeartbeat{Reports: true, Moved: 1 << 40}, "000000000000001a0040" + "676f7063636c5831" + "0000000c" + "000a0008" + "0000010000000000"},
		{M2CHeartbeat{}, "00000000000000020040"},
		{M2CResumed{}, "0000000000000002" + "0048"},
		{
			M2CLeaving{After: 258, Masters: []netip.AddrPort{netip.MustParseAddrPort("10.1.2.3:48148")}},
			"0000000000000015" + "0049" + "00000102" + "0000000000000001" + "010a010203bc14",
		},
		{M2CP2PConnectionsEstablished{Success: true, Mortal: []UUID{u}}, "000000000000002b" + "0003" + "01" + "0000000000000000" + magic + "00000014" + "00390010" + id},
		{M2CPeersPendingResponse{PeersPending: true, Decision: 258}, "000000000000001b" + "0004" + "01" + magic + "0000000c" + "00380008" + "0000000000000102"},
		{M2CSyncSharedStateComplete{NextRevision: 258}, "000000000000001a" + "0008" + magic + "0000000c" + "003a0008" + "0000000000000102"},
		{wantReport, reportHex(magic, id)},
		{C2MWantMesh{}, "00000000000000020058"},
		{C2MResult{Tag: 258, Seq: 3, Data: []byte{1, 2}}, "000000000000001c" + "0051" + "0000000000000102" + "0000000000000003" + "0000000000000002" + "0102"},
		{M2CAskResult{Tag: 258, Seq: 3}, "0000000000000012" + "0051" + "0000000000000102" + "0000000000000003"},
		{M2CGivenUp{Tag: 258}, "000000000000000a" + "0053" + "0000000000000102"},
		{M2CResult{Tag: 258, Seq: 3}, "000000000000001a" + "0052" + "0000000000000102" + "0000000000000003" + "0000000000000000"},
		{M2CCollectiveCommsCommence{Tag: 258, SeqNr: 3, Forward: true}, "0000000000000023" + "0009" + "0000000000000102" + "0000000000000003" + magic + "00000005" + "003d000101"},
		{M2CCollectiveCommsComplete{Tag: 258, Held: true}, "000000000000001b" + "000a" + "0000000000000102" + magic + "00000005" + "003d000101"},
		{C2MCollectiveCommsComplete{Tag: 258, WasAborted: true, GivenUp: true}, "000000000000001c" + "000b" + "0000000000000102" + "01" + magic + "00000005" + "003d000102"},
		{C2MCollectiveCommsComplete{Tag: 258, Holds: true}, "000000000000001c" + "000b" + "0000000000000102" + "00" + magic + "00000005" + "003d000101"},
		{C2MLeave{}, "00000000000000020048"},
		{C2MFarewell{}, "00000000000000020049"},
		{C2MLinkEnded{Peer: u}, "0000000000000012" + "004a" + "0102030405060708090a0b0c0d0e0f10"},
		{M2CReportAgain{}, "0000000000000002004e"},
		{C2MMeshPrepared{Change: 258, FailedPeers: []UUID{u}}, "0000000000000022" + "0059" + "0000000000000102" + "0000000000000001" + "0102030405060708090a0b0c0d0e0f10"},
		{
			M2CPrepareMesh{Change: 258, Peers: []PeerEndpoint{{Addr: netip.MustParseAddrPort("10.1.2.3:48150"), UUID: u}}},
			"0000000000000029" + "0058" + "0000000000000102" + "0000000000000001" + "010a010203bc16" + "0102030405060708090a0b0c0d0e0f10",
		},
		{
			M2CNames{Members: []NamedMember{{UUID: u, Name: "gpu-7", State: netip.MustParseAddrPort("10.1.2.3:48149")}}},
			"000000000000002e" + "005a" + "0000000000000001" + "0102030405060708090a0b0c0d0e0f10" + "0000000000000005" + "6770752d37" + "010a010203bc15",
		},
		{C2MAskStatus{}, "0000000000000002" + "004b"},
		{M2CStatus{"{}"}, "000000000000000c" + "004f" + "0000000000000002" + "7b7d"},
		{M2CRevocations{"\x30\x00"}, "000000000000000c" + "005b" + "0000000000000002" + "3000"},
		{M2CMesh{Change: 258, Planner: MeshDirect}, "000000000000000b" + "0059" + "0000000000000102" + "01"},
		{
			M2CPeerDropped{UUID: u, Addr: netip.MustParseAddrPort("10.1.2.3:48150"), Group: 7, Reason: "gone"},
			"0000000000000029" + "0041" + "0102030405060708090a0b0c0d0e0f10" + "010a010203bc16" + "00000007" + "0000000000000004676f6e65",
		},
	} {
		require.Equal(t, c.hex, hex.EncodeToString(Append(nil, c.p)))
		got, err := Decode(c.p.Proto(), c.p.ID(), unhex(t, c.hex)[10:])
		require.NoError(t, err)
		require.Equal(t, c.p, got)
	}
}

// Control spec, section 2: socket address.
func TestAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:1":          "017f0000010001",
		"[::ffff:127.0.0.1]:1": "017f0000010001",
		"[::1]:258":            "00000000000000000000000000000000010102",
		"[fe80::1%eth0]:2":     "00fe8000000000000000000000000000010002",
	} {
		require.Equal(t, want, hex.EncodeToString(appendAddr(nil, netip.MustParseAddrPort(in))), in)
	}
	require.Equal(t, "01000000000000", hex.EncodeToString(appendAddr(nil, netip.AddrPort{})))
}

// Control spec, section 2: any non-zero value reads as true.
func TestAnyNonZeroIsTrue(t *testing.T) {
	p, err := Decode(C2M, 2, []byte{0x80})
	require.NoError(t, err)
	require.Equal(t, C2MRequestEstablishP2PConnections{true}, p)
}

func TestUnknownPacket(t *testing.T) {
	for _, c := range []UnknownPacketError{
		{C2M, 0}, {C2M, 12}, {C2M, 70}, {M2C, 12}, {M2C, 99}, {P2P, 4}, {C2S, 2}, {S2C, 2}, {C2B, 2}, {B2C, 2}, {Proto(99), 1}, {C2M, math.MaxUint16},
	} {
		_, err := Decode(c.Proto, c.ID, nil)
		var e *UnknownPacketError
		require.ErrorAs(t, err, &e)
		require.Equal(t, c, *e)
		require.ErrorIs(t, err, errs.Protocol)
		require.Equal(t, errs.Protocol, errs.CodeOf(err))
	}
}

func TestForeignPacketPanics(t *testing.T) {
	require.Panics(t, func() { Append(nil, foreign{}) })
}

type foreign struct{}

func (foreign) Proto() Proto { return C2M }
func (foreign) ID() ID       { return 1 }

// allocated returns the bytes that f allocates in total.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Counts and string lengths that lie do not cost memory (quirks Q3, Q25).
func TestHostileCounts(t *testing.T) {
	for _, n := range []uint64{1 << 20, 1 << 32, 1 << 60, math.MaxUint64, math.MaxUint64 / 16} {
		count := binary.BigEndian.AppendUint64(nil, n)
		for name, body := range map[string][]byte{
			"C2M 3": append([]byte{1}, count...), "C2M 8": append(make([]byte, 9), count...),
			"C2M 8 key": append(append(make([]byte, 9), 0, 0, 0, 0, 0, 0, 0, 1), append(count, make([]byte, 40)...)...),
			"M2C 2":     append(make([]byte, 33), count...), "M2C 3": append([]byte{1}, count...), "M2C 5": count,
			"M2C 6": append([]byte{1}, count...), "M2C 7": append([]byte{1, 1, 0, 0, 0, 0, 0, 0}, count...),
			"C2S 1": count, "S2C 1": append(make([]byte, 9), count...),
		} {
			var proto Proto
			for i, p := range protoNames {
				if strings.HasPrefix(name, p) {
					proto = Proto(i)
				}
			}
			id := ID(name[4] - '0')
			body = append(body, make([]byte, 64)...)
			got := allocated(func() {
				_, err := Decode(proto, id, body)
				requireProtocol(t, err)
			})
			require.Less(t, got, uint64(64<<10), "%s with count %d", name, n)
		}
	}
}

// A count that fits the bytes by number but not by size of the elements.
func TestModestLyingCounts(t *testing.T) {
	const n = 1 << 20
	for name, elem := range map[string]int{"C2M 3": minUUID, "C2M 8": minStateEntry, "M2C 5": minBandwidth, "C2S 1": minString} {
		for _, count := range []int{n, n/elem + 1} {
			proto, id := C2M, ID(name[4]-'0')
			var head []byte
			switch name {
			case "C2M 3":
				head = []byte{1}
			case "C2M 8":
				head = make([]byte, 9)
			case "M2C 5":
				proto = M2C
			case "C2S 1":
				proto = C2S
			}
			body := append(binary.BigEndian.AppendUint64(head, uint64(count)), make([]byte, n)...)
			got := allocated(func() {
				_, err := Decode(proto, id, body)
				requireProtocol(t, err)
			})
			require.Less(t, got, uint64(64<<10), "%s with count %d", name, count)
		}
	}
}

// Control spec, section 2, length limits on the receiving side.
func TestReadLengthLimits(t *testing.T) {
	for _, n := range []uint64{0, 1, 1001, MaxPacket, 1 << 40, math.MaxUint64} {
		r := bytes.NewReader(append(binary.BigEndian.AppendUint64(nil, n), make([]byte, 100)...))
		_, err := Read(r, C2M, 1000)
		requireProtocol(t, err)
		require.Equal(t, 100, r.Len(), "nothing behind the length field is read")
	}
	p, err := Read(bytes.NewReader(Append(nil, C2MCheckPeersPending{})), C2M, 2)
	require.NoError(t, err)
	require.Equal(t, C2MCheckPeersPending{}, p)
}

// An announced length that never arrives costs one read step, not the length.
// Quirk Q60.
func TestReadMemoryFollowsArrival(t *testing.T) {
	head := binary.BigEndian.AppendUint64(nil, MaxPacket)
	for _, sent := range []int{0, 1, readStep, 3 * readStep} {
		in := append(bytes.Clone(head), make([]byte, sent)...)
		got := allocated(func() {
			_, err := Read(bytes.NewReader(in), C2M, MaxPacket)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		})
		require.Less(t, got, uint64(4*(sent+readStep)+(32<<10)))
	}
}

func TestReadLargePacket(t *testing.T) {
	big := C2SRequestSharedState{Keys: []string{strings.Repeat("k", 5*readStep+17), "", "b"}}
	raw := Append(Append(nil, big), C2SRequestSharedState{})
	r := iotest.HalfReader(bytes.NewReader(raw))
	p, err := Read(r, C2S, MaxPacket)
	require.NoError(t, err)
	require.Equal(t, big, p)
	p, err = Read(r, C2S, MaxPacket)
	require.NoError(t, err)
	require.Equal(t, C2SRequestSharedState{}, p)
	_, err = Read(r, C2S, MaxPacket)
	require.Equal(t, io.EOF, err)
}

func TestReadErrors(t *testing.T) {
	raw := Append(nil, C2MCollectiveCommsComplete{Tag: 1})
	for n := range raw {
		_, err := Read(bytes.NewReader(raw[:n]), C2M, MaxPacket)
		if n == 0 {
			require.Equal(t, io.EOF, err)
		} else {
			require.Equal(t, io.ErrUnexpectedEOF, err)
		}
	}
	broken := errors.New("broken")
	_, err := Read(io.MultiReader(bytes.NewReader(raw[:12]), iotest.ErrReader(broken)), C2M, MaxPacket)
	require.ErrorIs(t, err, broken)
}

// A packet is the same through a buffer, from which it is decoded where it lies, if it fits: what a
// buffer has room for makes no difference, nor does what comes in it next change a packet.
func TestReadThroughBuffer(t *testing.T) {
	small := M2CPeerDropped{UUID: UUID{1}, Addr: netip.MustParseAddrPort("10.0.0.1:7"), Reason: "silent"}
	long := M2CResult{Tag: 1, Seq: 2, Data: bytes.Repeat([]byte{0x55}, 60)}
	over := M2CResult{Tag: 1 << 60, Seq: 1 << 60, Data: bytes.Repeat([]byte{0xaa}, 60)}
	first := Append(nil, small)
	body := len(first) - lenSize
	raw := Append(Append(bytes.Clone(first), long), over)
	for _, size := range []int{16, body - 1, body, body + 1, 4096} {
		for n := range first {
			_, err := Read(bufio.NewReaderSize(bytes.NewReader(first[:n]), size), M2C, MaxPacket)
			if n == 0 {
				require.Equal(t, io.EOF, err)
			} else {
				require.Equal(t, io.ErrUnexpectedEOF, err, "buffer of %d bytes, %d of the packet", size, n)
			}
			broken := errors.New("broken")
			_, err = Read(bufio.NewReaderSize(io.MultiReader(bytes.NewReader(first[:n]), iotest.ErrReader(broken)), size), M2C, MaxPacket)
			require.Equal(t, broken, err)
		}
		r := bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(raw)), size)
		var got []Packet
		for range 3 {
			p, err := Read(r, M2C, MaxPacket)
			require.NoError(t, err)
			got = append(got, p)
		}
		require.Equal(t, []Packet{small, long, over}, got)
		_, err := Read(r, M2C, MaxPacket)
		require.Equal(t, io.EOF, err)
	}
}

// A packet that cannot be decoded does not spoil the ones behind it.
func TestReadGoesOnAfterBadPacket(t *testing.T) {
	r := bytes.NewReader(append([]byte{0, 0, 0, 0, 0, 0, 0, 2, 0, 99, 0, 0, 0, 0, 0, 0, 0, 2, 0, 11}, Append(nil, C2MOptimizeTopology{})...))
	_, err := Read(r, C2M, MaxPacket)
	require.ErrorAs(t, err, new(*UnknownPacketError))
	_, err = Read(r, C2M, MaxPacket)
	requireProtocol(t, err)
	p, err := Read(r, C2M, MaxPacket)
	require.NoError(t, err)
	require.Equal(t, C2MOptimizeTopology{}, p)
	_, err = Read(r, C2M, MaxPacket)
	require.Equal(t, io.EOF, err)
}

// Data spec, section 1.3: header bytes and receiver rules (quirk Q24).
func TestFrameHeader(t *testing.T) {
	var b [FrameHeaderSize]byte
	PutFrameHeader(&b, 20, 1, 258)
	require.Equal(t, "000000000000002400000000000000010000000000000102", hex.EncodeToString(b[:]))
	for _, payload := range []int{1, 20, MaxFramePayload} {
		PutFrameHeader(&b, payload, math.MaxUint64, 7)
		n, tag, stream, err := ParseFrameHeader(&b)
		require.NoError(t, err)
		require.Equal(t, []any{payload, uint64(math.MaxUint64), uint64(7)}, []any{n, tag, stream})
	}
	for _, length := range []uint64{0, 1, 15, 16, 1<<30 + 1, 1 << 63, math.MaxUint64} {
		binary.BigEndian.PutUint64(b[:], length)
		_, _, _, err := ParseFrameHeader(&b)
		requireProtocol(t, err)
	}
}

// Data spec, section 4.2: payloads of metadata frames and their sizes.
func TestMetaFrames(t *testing.T) {
	for want, m := range map[string]DequantizationMeta{
		"00030000000000000005000a0000c0bf00001040":                 {Tag: 5, DType: dtype.Float32, Min: -1.5, Max: 2.25},
		"00030000000000000005000b000000000000f8bf0000000000000240": {Tag: 5, DType: dtype.Float64, Min: -1.5, Max: 2.25},
		"000300000000000000050107fffffffffffffffd0a0000803f":       {Tag: 5, Kind: MetaZeroPoint, ZeroPoint: -3, Scale: 1},
	} {
		raw := AppendMeta(nil, &m)
		require.Equal(t, want, hex.EncodeToString(raw))
		require.LessOrEqual(t, len(raw), MaxMetaSize)
		got, err := DecodeMeta(append(raw, 1, 2, 3))
		require.NoError(t, err)
		require.Equal(t, m, got)
		for n := range raw {
			_, err := DecodeMeta(raw[:n])
			requireProtocol(t, err)
		}
	}
}

// Quirk Q28: the metadata of an empty chunk, and other forms that are not ours.
func TestMetaRefused(t *testing.T) {
	for _, s := range []string{
		"000300000000000000050000",                           // what PCCL sends for an empty chunk
		"000300000000000000050000" + strings.Repeat("0", 32), // the same, padded
		"00010000000000000005000a0000c0bf00001040",           // another packet
		"00030000000000000005020a0000c0bf00001040",           // unknown kind
		"000300000000000000050105fffffffffffffffd0a0000803f", // zero point of another type
		"000300000000000000050107fffffffffffffffd0b0000803f", // scale of another type
	} {
		_, err := DecodeMeta(unhex(t, s))
		requireProtocol(t, err)
	}
}

func TestMetaDoesNotAllocate(t *testing.T) {
	m := DequantizationMeta{Tag: 5, Kind: MetaZeroPoint, ZeroPoint: -3, Scale: 1}
	buf := make([]byte, 0, MaxMetaSize)
	require.Zero(t, allocs.PerRun(100, func() {
		raw := AppendMeta(buf, &m)
		if got, err := DecodeMeta(raw); err != nil || got != m {
			panic("metadata changed")
		}
		if _, err := DecodeMeta(raw[:5]); err == nil {
			panic("short metadata accepted")
		}
	}))
}

// Waits says yes only if the next packet, or the error in place of one, can be
// had without another read of the source.
func TestWaits(t *testing.T) {
	one := Append(nil, C2MCollectiveCommsInitiate{Tag: 7, Count: 3})
	two := append(bytes.Clone(one), one...)
	for n := range len(two) + 1 {
		reads := 0
		r := bufio.NewReader(readerFunc(func(p []byte) (int, error) {
			reads++
			return copy(p, two[:n]), nil
		}))
		require.False(t, Waits(r), "nothing was read yet")
		if n == 0 {
			continue
		}
		_, err := r.Peek(1)
		require.NoError(t, err)
		require.Equal(t, n >= len(one), Waits(r), "%d bytes", n)
		if n >= len(one) {
			_, err = Read(r, C2M, MaxPacket)
			require.NoError(t, err)
			require.Equal(t, n == len(two), Waits(r), "%d bytes", n)
		}
		require.Equal(t, 1, reads)
	}
	r := bufio.NewReader(bytes.NewReader(bytes.Repeat([]byte{255}, 8)))
	_, err := r.Peek(8)
	require.NoError(t, err)
	require.True(t, Waits(r))
	_, err = Read(r, C2M, MaxPacket)
	require.ErrorIs(t, err, errs.Protocol)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
