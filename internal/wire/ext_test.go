package wire

import (
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
)

// The byte table of docs/spec/extensions.md.
func TestExtBytes(t *testing.T) {
	magic := hex.EncodeToString([]byte(extMagic))
	for _, c := range []struct {
		x   Ext
		hex string
	}{
		{Ext{Native: true}, "00000004" + "00010000"},
		{Ext{HeartbeatInterval: time.Second, HeartbeatTimeout: 6 * time.Second}, "00000010" + "00020004000003e8" + "0003000400001770"},
		{Ext{Native: true, Flows: FlowsPieces}, "00000008" + "00010000" + "00200000"},
		{Ext{Native: true, Flows: FlowsAhead}, "00000009" + "00010000" + "0020000101"},
		{Ext{Native: true, Flows: FlowsSpares}, "00000009" + "00010000" + "0020000102"},
		{Ext{Addresses: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.2:48150")}, Session: 258}, "00000017" + "00210007" + "010a010002bc16" + "00220008" + "0000000000000102"},
		{Ext{Host: netip.MustParseAddr("203.0.113.9")}, "0000000b" + "00300007" + "01cb0071090000"},
		{Ext{Form: FormOf("zeropoint", dtype.Int8)}, "00000006" + "00230002" + "0201"},
		{Ext{Heartbeat: C2MHeartbeat{Reports: true, Moved: 258}}, "0000000c" + "000a0008" + "0000000000000102"},
		{Ext{Native: true, Early: Early{Eager: true}}, "00000008" + "00010000" + "00320000"},
		{Ext{GroupNative: true, Early: Early{Epoch: 0x0102}}, "00000010" + "00040000" + "00330008" + "0000000000000102"},
		{Ext{Native: true, RoundBound: 12 * time.Second, Preflight: true}, "00000010" + "00010000" + "0012000400002ee0" + "00130000"},
		{Ext{Native: true, Secured: Secured{Revocations: true}}, "00000008" + "00010000" + "00460000"},
		{Ext{Native: true, Secured: Secured{Plain: true}}, "00000008" + "00010000" + "00470000"},
		{Ext{GroupNative: true, Failed: true}, "00000008" + "00040000" + "00060000"},
		{Ext{Torn: true}, "00000004" + "00090000"},
		{Ext{Distributors: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:48149")}}, "0000000b" + "00050007" + "017f000001bc15"},
		{Ext{Native: true, Collectives: 1}, "00000009" + "00010000" + "0050000101"},
		{Ext{Plans: 1, Paths: Paths{Direct: Direct{400000, 90000, 30000, 100000, ""}}}, "0000001d" + "003c000101" + "003e0014" + "0000000000061a80" + "00015f90" + "00007530" + "000186a0"},
		{Ext{Paths: Paths{Direct: Direct{Schemes: "xyz"}}}, "00000007" + "00400003" + "78797a"},
		{Ext{Paths: Paths{Ways: []Way{{vectorUUID("u(0x01)"), 30000}}}}, "00000018" + "003f0014" + "0102030405060708090a0b0c0d0e0f10" + "00007530"},
		{Ext{GroupCollectives: true, Members: []UUID{vectorUUID("u(0x01)"), vectorUUID("u(0x11)")}}, "00000028" + "00510000" + "00520020" + "0102030405060708090a0b0c0d0e0f10" + "1112131415161718191a1b1c1d1e1f20"},
		{Ext{Call: Call{Kind: 5, Flags: CallMesh | CallCounts, WireType: 10, Root: 3, Sum: 258, Digest: 0x0102030405060708}}, "0000001c" + "00530018" + "0505000a00000003" + "0000000000000102" + "0102030405060708"},
		{Ext{Resuming: Resuming{Resume: true, Met: true}}, "00000008" + "00340000" + "003b0000"},
		{Ext{Resuming: Resuming{Resume: true, Term: 258}}, "0000000c" + "00340000" + "0035000400000102"},
		{
			Ext{Resuming: Resuming{Identity: Identity{UUID: vectorUUID("u(0x01)"), Token: vectorUUID("u(0x11)")}}},
			"00000024" + "00360020" + "0102030405060708090a0b0c0d0e0f10" + "1112131415161718191a1b1c1d1e1f20",
		},
		{Ext{Resuming: Resuming{Leader: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.2:48148")}}}, "0000000b" + "00370007" + "010a010002bc14"},
		{
			Ext{Resuming: Resuming{Decision: 258, Mortal: []UUID{vectorUUID("u(0x01)")}, NextRevision: 7}},
			"0000002c" + "00380008" + "0000000000000102" + "00390010" + "0102030405060708090a0b0c0d0e0f10" + "003a0008" + "0000000000000007",
		},
		{Ext{Reason: "no", ReasonCode: 258}, "0000000c" + "000700026e6f" + "000800020102"},
	} {
		require.Equal(t, magic+c.hex, hex.EncodeToString(appendExt(nil, c.x)))
		require.Equal(t, c.x, (&reader{b: unhex(t, magic+c.hex)}).ext())
	}
	require.Empty(t, appendExt(nil, Ext{}))
}

// A packet with an extension block is, field by field, the packet without it:
// a reader that knows nothing of blocks sees no difference.
func TestExtIsTrailing(t *testing.T) {
	with := P2PHello{UUID: UUID{1}, Number: 3, Ext: Ext{Native: true, Reason: "r"}}
	without := with
	without.Ext = Ext{}
	require.Equal(t, AppendBody(nil, without), AppendBody(nil, with)[:20])
}

func TestExtUnknownEntriesAreSkipped(t *testing.T) {
	block := append([]byte(extMagic), unhex(t, "0000000f"+"fffe0003aabbcc"+"fffd000000010000")...)
	require.Equal(t, Ext{Native: true}, (&reader{b: block}).ext())
	longer := append([]byte(extMagic), unhex(t, "0000000a"+"0002000600000005ffff")...)
	require.Equal(t, Ext{HeartbeatInterval: 5 * time.Millisecond}, (&reader{b: longer}).ext(), "a known entry may have grown")
}

// A damaged block is ignored, and not an error.
func TestExtDamaged(t *testing.T) {
	good := appendExt(nil, Ext{
		Native: true, HeartbeatInterval: time.Second, Reason: "reason", ReasonCode: 3,
		Distributors: []netip.AddrPort{netip.MustParseAddrPort("[::1]:5")},
	})
	for n := range good {
		require.Equal(t, Ext{}, (&reader{b: good[:n]}).ext(), "cut after %d bytes", n)
	}
	for name, b := range map[string]string{
		"entry longer than block": "00000008" + "00010000" + "00010001",
		"entry header cut":        "00000007" + "00010000" + "000100",
		"short interval":          "0000000a" + "00010000" + "000200020001",
		"short address":           "0000000b" + "00010000" + "00050003" + "010203",
		"short code":              "00000009" + "00010000" + "0008000101",
		"short session":           "0000000d" + "00010000" + "0022000500000000" + "01",
		"short host":              "0000000b" + "00010000" + "00300003" + "010a00",
		"no version":              "00000008" + "00010000" + "00500000",
		"half a member":           "00000010" + "00010000" + "00520008" + "0102030405060708",
		"short term":              "0000000a" + "00010000" + "003500020001",
		"identity without token":  "00000018" + "00010000" + "00360010" + strings.Repeat("01", 16),
		"half a mortal member":    "00000010" + "00010000" + "00390008" + "0102030405060708",
		"short kind":              "00000009" + "00010000" + "0053000101",
		"too many members":        "0000fa18" + "00010000" + "0052fa10" + strings.Repeat("00", 16*(MaxMembers+1)),
		"size above limit":        "00010004" + "00010000" + strings.Repeat("fffd0000", 16384),
	} {
		require.Equal(t, Ext{}, (&reader{b: append([]byte(extMagic), unhex(t, b)...)}).ext(), name)
	}
	atLimit := "00010000" + "00010000" + strings.Repeat("fffd0000", 16383)
	require.Equal(t, Ext{Native: true}, (&reader{b: append([]byte(extMagic), unhex(t, atLimit)...)}).ext())
	other := append([]byte("gopcclX2"), good[8:]...)
	require.Equal(t, Ext{}, (&reader{b: other}).ext(), "another magic")
}

func TestExtBounds(t *testing.T) {
	x := Ext{Reason: strings.Repeat("é", 400), HeartbeatInterval: time.Microsecond, HeartbeatTimeout: 1 << 62}
	for i := range 1000 {
		x.Distributors = append(x.Distributors, netip.AddrPortFrom(netip.IPv6Loopback(), uint16(i)))
	}
	x.Addresses = x.Distributors
	raw := appendExt(nil, x)
	require.Less(t, len(raw), MaxExtBlock)
	require.Equal(t, x.Addresses[:MaxAddresses], (&reader{b: raw}).ext().Addresses)
	got := (&reader{b: raw}).ext()
	require.Equal(t, strings.Repeat("é", 256), got.Reason)
	require.Equal(t, x.Distributors[:MaxDistributors], got.Distributors)
	require.Equal(t, time.Millisecond, got.HeartbeatInterval, "never rounded to none")
	require.Equal(t, (1<<32-1)*time.Millisecond, got.HeartbeatTimeout)

	require.Equal(t, strings.Repeat("a", 511), cutString(strings.Repeat("a", 511)+"é", 512))
	require.Len(t, cutString(strings.Repeat("\x80", 600), 512), 512)
	require.True(t, utf8.ValidString(cutString(strings.Repeat("世", 400), 512)))
	require.Zero(t, appendExt(nil, Ext{HeartbeatInterval: -1})[11], "a negative interval is none")

	long := append([]byte(extMagic), binary.BigEndian.AppendUint32(nil, 4+600)...)
	long = append(append(long, 0, 7, 600>>8, 600&0xff), strings.Repeat("r", 600)...)
	require.Len(t, (&reader{b: long}).ext().Reason, MaxReason, "a longer reason is cut on arrival, too")
}

// Every part of a collective changes its digest, whose value is that of the
// documented bytes.
func TestDigests(t *testing.T) {
	fnv := func(b []byte) uint64 {
		h := fnv.New64a()
		h.Write(b)
		return h.Sum64()
	}
	require.Equal(t, fnv(unhex(t, "05"+"00000003"+"000a"+hex.EncodeToString([]byte("minmax"))+"00"+"0000000000000102")), DigestOf(5, 3, 10, "minmax", []int{258}))
	seen := map[uint64]bool{}
	for _, d := range []uint64{
		DigestOf(5, 0, 10, "", nil), DigestOf(6, 0, 10, "", nil), DigestOf(5, 1, 10, "", nil), DigestOf(5, 0, 11, "", nil),
		DigestOf(5, 0, 10, "minmax", nil), DigestOf(5, 0, 10, "", []int{1, 2}), DigestOf(5, 0, 10, "", []int{2, 1}),
	} {
		require.False(t, seen[d])
		seen[d] = true
	}
}

// A group of up to MaxMembers is named, with room for what goes with it; of a
// larger one, no member is.
func TestMembersAreBounded(t *testing.T) {
	x := Ext{GroupNative: true, GroupCollectives: true, Early: Early{Epoch: 1}, Members: make([]UUID, MaxMembers)}
	raw := appendExt(nil, x)
	require.LessOrEqual(t, len(raw), MaxExtBlock)
	require.Equal(t, x, (&reader{b: raw}).ext())
	x.Members = make([]UUID, MaxMembers+1)
	require.Empty(t, (&reader{b: appendExt(nil, x)}).ext().Members)
	require.Empty(t, appendExt(nil, Ext{Members: x.Members}), "nothing to say")
}

// An all-reduce has no kind on the wire: its bytes are those of before, and an
// entry that says its kind says nothing.
func TestKindOfAnAllReduceIsNotTold(t *testing.T) {
	require.Empty(t, appendExt(nil, Ext{Call: Call{Root: 3, Digest: 1}}))
	block := append([]byte(extMagic), unhex(t, "0000001c"+"00530018"+strings.Repeat("00", 7)+"01"+strings.Repeat("00", 16))...)
	require.Equal(t, Ext{}, (&reader{b: block}).ext())
	a := Call{Kind: 1, Root: 1, Digest: 2, Sum: 3}
	b := a
	b.Sum = 4
	require.True(t, a.Agrees(b), "the digest speaks for the counts that all know")
	b.Root = 2
	require.False(t, a.Agrees(b))
}

// Names of quantizers have numbers; forms that are told agree if they are the same.
func TestWireForms(t *testing.T) {
	as := FormOf("none", dtype.Float32)
	require.Equal(t, as, FormOf("", dtype.Float32))
	require.Equal(t, "sent as float32", as.String())
	require.Empty(t, WireForm{}.String())
	seen := map[WireForm]bool{}
	for _, name := range []string{"", "minmax", "zeropoint", "absmax", "mine"} {
		for _, dt := range []dtype.Type{dtype.Uint8, dtype.Int8} {
			f := FormOf(name, dt)
			require.False(t, seen[f], "%s as %v", name, dt)
			for o := range seen {
				require.False(t, f.Agrees(o) || o.Agrees(f))
				require.NotEqual(t, o.String(), f.String())
			}
			require.True(t, f.Agrees(f) && f.Agrees(WireForm{}) && WireForm{}.Agrees(f))
			require.Contains(t, f.String(), dt.String())
			seen[f] = true
		}
	}
}
