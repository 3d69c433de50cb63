package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
)

// wantReport is a report with something in every place.
var wantReport = C2MReport{
	Round: StoodRound{
		Decision: 258, Ring: []UUID{vectorUUID("u(0x01)")}, Members: []UUID{vectorUUID("u(0x01)")},
		Mortal: []UUID{vectorUUID("u(0x01)")}, Gone: []UUID{vectorUUID("u(0x01)")}, World: 3, Groups: 2, Largest: 3,
	},
	Query: ReportedQuery{Asking: true, Decision: 259, Pending: true},
	Call: ReportedCall{
		Step: StepSynced, Decision: 260, Failed: []UUID{vectorUUID("u(0x01)")}, Unheld: true,
		Vote:    C2MSyncSharedState{Revision: 5, Strategy: SendOnly, Entries: []StateEntry{{Key: "w", Hash: 7, HashType: HashCRC32, DType: dtype.Float32}}},
		Verdict: M2CSyncSharedState{IsOutdated: true, Distributor: netip.MustParseAddrPort("0.0.0.0:0"), Keys: []string{"w"}, Hashes: []uint64{9}, HashTypes: []HashType{HashCRC32}},
	},
	Change: ReportedChange{Taken: 261, Direct: Direct{1, 2, 3, 4, "xyz"}, Prepares: 262, Leaver: vectorUUID("u(0x01)"), Epoch: 266, Answered: true, Failed: []UUID{vectorUUID("u(0x01)")}},
	Mesh:   ReportedMesh{Step: MeshSettled, Wanted: true, Change: 263, Planner: MeshDirect, Failed: []UUID{vectorUUID("u(0x01)")}, Ways: []Way{{vectorUUID("u(0x01)"), 5}}},
	Ops: []ReportedOp{{
		Vote: C2MCollectiveCommsInitiate{Tag: 6, Count: 8, DType: dtype.Float32, Op: dtype.Sum, Call: Call{Kind: 3, Root: 1}},
		Step: OpReported, Seq: 264, After: 265, Older: true, Done: C2MCollectiveCommsComplete{Tag: 6, WasAborted: true},
		Heard: true, Verdict: Verdict{Aborted: true, Code: 7, Reason: "no"},
	}},
	Verdicts:     []ReportedVerdict{{Tag: 6, Seq: 265, Verdict: Verdict{}}},
	NextRevision: 6, Optimized: 266, Synced: 267, Leaving: true,
	Broken: []UUID{vectorUUID("u(0x01)")},
	Links:  []ReportedLink{{To: vectorUUID("u(0x01)"), Mbps: 2, Deviation: 0.5}},
}

// reportHex is wantReport, field by field as docs/spec/extensions.md has them.
func reportHex(magic, id string) string {
	const one = "0000000000000001"
	u16x := func(n string) string { return "00000000000001" + n }
	list := one + id
	op := "000000000000003a" + "0000000000000006" + "0000000000000008" + "0a01" + magic + "0000001c" + "00530018" + "03000000" + "00000001" + "0000000000000000" + "0000000000000000" +
		"03" + u16x("08") + u16x("09") + "01" + "0000000000000009" + "0000000000000006" + "01" + "01" + "01" + "0007" + "0000000000000002" + "6e6f"
	body := u16x("02") + list + list + list + list + "0000000000000003" + "0000000000000002" + "0000000000000003" +
		"01" + u16x("03") + "01" +
		"0b" + u16x("04") + list + "01" +
		"000000000000002d" + "0000000000000005" + "02" + one + one + "77" + "0000000000000007" + "01" + "0000000000000000" + "0a" + "00" +
		"0000000000000022" + "01" + "01000000000000" + one + one + "77" + "0000000000000009" + "01" +
		u16x("05") + "0000000000000001" + "00000002" + "00000003" + "00000004" + u16x("06") + id + u16x("0a") + "01" + list +
		"03" + "01" + u16x("07") + "01" + list + one + id + "00000005" +
		one + op +
		one + "0000000000000006" + u16x("09") + "00" + "0000" + "0000000000000000" +
		"0000000000000006" + u16x("0a") + u16x("0b") + "01" + list + one + id + "4000000000000000" + "3fe0000000000000" + "0000000000000003" + "78797a"
	return lengthHex(body) + "0045" + body
}

// lengthHex is the length field of a packet with this body.
func lengthHex(body string) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(len(body)/2+2))
	return hex.EncodeToString(b[:])
}

// A report that is cut anywhere is refused, and none of its counts costs memory.
func TestReportIsBounded(t *testing.T) {
	whole := AppendBody(nil, wantReport)
	without := wantReport
	without.Change.Direct.Schemes = ""
	for n := range whole {
		if n == len(AppendBody(nil, without)) {
			continue // what an older peer reports
		}
		_, err := Decode(C2M, 69, whole[:n])
		requireProtocol(t, err)
	}
	var at []int // of what could be counts
	for i := 0; i+8 <= len(whole); i++ {
		if n := binary.BigEndian.Uint64(whole[i:]); n == 1 || n == 0 {
			at = append(at, i)
		}
	}
	require.Greater(t, len(at), 15)
	for _, i := range at {
		for _, n := range []uint64{1 << 20, 1 << 60, math.MaxUint64} {
			b := append(bytes.Clone(whole), make([]byte, 64)...)
			binary.BigEndian.PutUint64(b[i:], n)
			require.Less(t, allocated(func() { _, _ = Decode(C2M, 69, b) }), uint64(64<<10), "count %d at %d", n, i)
		}
	}
	many := wantReport
	many.Mesh.Ways = make([]Way, MaxWays+1)
	p, err := Decode(C2M, 69, AppendBody(nil, many))
	require.NoError(t, err)
	require.Len(t, p.(C2MReport).Mesh.Ways, MaxWays)
}

// The body inside of another one is of its kind alone: nothing behind it is read.
func TestBodyInside(t *testing.T) {
	b := append(appendInside(nil, C2MSyncSharedState{Revision: 3}), 9)
	r := &reader{b: b}
	require.Equal(t, C2MSyncSharedState{Revision: 3}, inside[C2MSyncSharedState](r))
	require.Equal(t, uint8(9), r.u8())
	require.False(t, r.short)
	r = &reader{b: appendInside(nil, C2MCheckPeersPending{})}
	inside[C2MSyncSharedState](r)
	require.True(t, r.short, "too short for its fields")
}
