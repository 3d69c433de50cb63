package wire

import (
	"math"
	"net/netip"
	"time"
	"unicode/utf8"

	"github.com/gopccl/gopccl/core/dtype"
)

// The extension block (docs/spec/extensions.md) starts right after the last field
// of a body: magic, u32 size of the entries, then entries of u16 type, u16
// size, value.
const extMagic = "gopcclX1"

// Bounds of an extension block.
const (
	// MaxExtBlock is the largest size of a block's entries, in bytes.
	MaxExtBlock = 64 << 10
	// MaxReason is the largest reason, in bytes; longer ones are cut.
	MaxReason = 512
	// MaxDistributors is the number of distributors that a block carries; more are left out.
	MaxDistributors = 128
	// MaxAddresses is the number of addresses that a block carries; more are left out.
	MaxAddresses = 16
	// MaxMembers is the largest group whose members a block names; of a larger one
	// it names none.
	MaxMembers = 4000
	// MaxWays is the number of ways that a block carries; of more it carries none.
	MaxWays = 1024
)

// Entry types of an extension block.
const (
	extNative            = 1
	extHeartbeatInterval = 2
	extHeartbeatTimeout  = 3
	extGroupNative       = 4
	extDistributors      = 5
	extFailed            = 6
	extReason            = 7
	extReasonCode        = 8
	extTorn              = 9
	extProgress          = 10
	extTopology          = 16
	extSwitch            = 17
	extRoundBound        = 18
	extPreflight         = 19
	extFlows             = 32
	extAddresses         = 33
	extSession           = 34
	extWireForm          = 35
	extWireGroups        = 36
	extHost              = 48
	extEager             = 50
	extEpoch             = 51
	extResume            = 52
	extTerm              = 53
	extIdentity          = 54
	extLeader            = 55
	extDecision          = 56
	extMortal            = 57
	extNextRevision      = 58
	extMet               = 59
	extPlans             = 60
	extForward           = 61
	extDirect            = 62
	extWays              = 63
	extSchemes           = 64
	extRevocations       = 70
	extPlain             = 71
	extCollectives       = 80
	extGroupCollectives  = 81
	extMembers           = 82
	extKind              = 83
)

// FlowsLevel says how much of flows an end knows; 0: nothing.
type FlowsLevel uint8

const (
	// FlowsPieces: it takes pieces and answers pings. The entry is empty.
	FlowsPieces FlowsLevel = 1 + iota
	// FlowsAhead: what a neighbour sends of a collective before its commence it takes
	// as pieces and on several connections, too, and the sequence number behind it.
	FlowsAhead
	// FlowsSpares: it takes lanes with spare pieces.
	FlowsSpares
)

func appendExt(dst []byte, x Ext) []byte {
	if x.IsZero() {
		return dst
	}
	dst = append(dst, extMagic...)
	at := len(dst)
	dst = appendU32(dst, 0)
	flag := func(kind uint16, on bool) {
		if on {
			dst = appendU16(appendU16(dst, kind), 0)
		}
	}
	flag(extNative, x.Native)
	for _, t := range []struct {
		kind uint16
		d    time.Duration
	}{{extHeartbeatInterval, x.HeartbeatInterval}, {extHeartbeatTimeout, x.HeartbeatTimeout}} {
		if t.d > 0 {
			dst = appendU32(appendU16(appendU16(dst, t.kind), 4), milliseconds(t.d))
		}
	}
	flag(extGroupNative, x.GroupNative)
	addrs := func(kind uint16, list []netip.AddrPort) {
		if len(list) == 0 {
			return
		}
		dst = appendU16(dst, kind)
		sizeAt := len(dst)
		dst = appendU16(dst, 0)
		for _, a := range list {
			dst = appendAddr(dst, a)
		}
		size := len(dst) - sizeAt - 2
		dst[sizeAt], dst[sizeAt+1] = byte(size>>8), byte(size)
	}
	addrs(extDistributors, x.Distributors[:min(len(x.Distributors), MaxDistributors)])
	flag(extFailed, x.Failed)
	if x.Reason != "" {
		reason := cutString(x.Reason, MaxReason)
		dst = append(appendU16(appendU16(dst, extReason), uint16(len(reason))), reason...)
	}
	if x.ReasonCode != 0 {
		dst = appendU16(appendU16(appendU16(dst, extReasonCode), 2), x.ReasonCode)
	}
	flag(extTorn, x.Torn)
	if h := x.Heartbeat; h.Reports {
		dst = appendU64(appendU16(appendU16(dst, extProgress), 8), h.Moved)
	}
	flag(extTopology, x.Topology)
	flag(extSwitch, x.Switch)
	if x.RoundBound > 0 {
		dst = appendU32(appendU16(appendU16(dst, extRoundBound), 4), milliseconds(x.RoundBound))
	}
	flag(extPreflight, x.Preflight)
	if x.Flows >= FlowsAhead {
		dst = append(appendU16(appendU16(dst, extFlows), 1), byte(min(x.Flows, FlowsSpares)-FlowsPieces))
	} else {
		flag(extFlows, x.Flows == FlowsPieces)
	}
	addrs(extAddresses, x.Addresses[:min(len(x.Addresses), MaxAddresses)])
	if x.Session != 0 {
		dst = appendU64(appendU16(appendU16(dst, extSession), 8), x.Session)
	}
	if f := x.Form; f.Told {
		dst = append(appendU16(appendU16(dst, extWireForm), 2), f.Algorithm, byte(f.DType))
		if f.Elements != 0 {
			dst = appendU16(appendU16(appendU16(appendU16(dst, extWireGroups), 4), f.Elements), f.Bytes)
		}
	}
	if x.Host.IsValid() {
		addrs(extHost, []netip.AddrPort{netip.AddrPortFrom(x.Host, 0)})
	}
	flag(extEager, x.Eager)
	if x.Epoch != 0 {
		dst = appendU64(appendU16(appendU16(dst, extEpoch), 8), x.Epoch)
	}
	dst = appendResuming(dst, &x.Resuming)
	dst = appendPlans(dst, &x)
	if x.Forward != 0 {
		dst = append(appendU16(appendU16(dst, extForward), 1), x.Forward)
	}
	flag(extRevocations, x.Revocations)
	flag(extPlain, x.Plain)
	dst = appendCollectives(dst, &x)
	size := uint32(len(dst) - at - 4)
	dst[at], dst[at+1], dst[at+2], dst[at+3] = byte(size>>24), byte(size>>16), byte(size>>8), byte(size)
	return dst
}

// milliseconds rounds d up, so that a positive duration never becomes "none".
func milliseconds(d time.Duration) uint32 {
	ms := (d-1)/time.Millisecond + 1
	return uint32(min(int64(ms), math.MaxUint32))
}

// cutString returns at most n bytes of s and cuts no valid rune in two.
func cutString(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for i := n; i > n-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i]
		}
	}
	return s[:n]
}

// ext reads the rest of a body as an extension block. Anything else than an
// undamaged block, more bytes behind it included, is not an error: a PCCL
// endpoint may send anything there.
func (r *reader) ext() Ext {
	if r.short || len(r.b) < len(extMagic)+4 || string(r.b[:len(extMagic)]) != extMagic {
		return Ext{}
	}
	block := reader{b: r.b[len(extMagic):]}
	size := block.u32()
	if size > MaxExtBlock || uint64(size) > uint64(len(block.b)) {
		return Ext{}
	}
	block.b = block.b[:size]
	var x Ext
	for len(block.b) > 0 {
		kind := block.u16()
		value := reader{b: block.take(int(block.u16()))}
		if block.short {
			return Ext{}
		}
		switch kind {
		case extNative:
			x.Native = true
		case extHeartbeatInterval:
			x.HeartbeatInterval = time.Duration(value.u32()) * time.Millisecond
		case extHeartbeatTimeout:
			x.HeartbeatTimeout = time.Duration(value.u32()) * time.Millisecond
		case extGroupNative:
			x.GroupNative = true
		case extDistributors:
			x.Distributors = value.addrs(MaxDistributors)
		case extFailed:
			x.Failed = true
		case extReason:
			x.Reason = cutString(string(value.b), MaxReason)
		case extReasonCode:
			x.ReasonCode = value.u16()
		case extTorn:
			x.Torn = true
		case extProgress:
			x.Heartbeat = C2MHeartbeat{Reports: true, Moved: value.u64()}
		case extTopology:
			x.Topology = true
		case extSwitch:
			x.Switch = true
		case extRoundBound:
			x.RoundBound = time.Duration(value.u32()) * time.Millisecond
		case extPreflight:
			x.Preflight = true
		case extFlows:
			x.Flows = FlowsPieces
			if len(value.b) > 0 {
				x.Flows += FlowsLevel(min(value.u8(), uint8(FlowsSpares-FlowsPieces)))
			}
		case extAddresses:
			x.Addresses = value.addrs(MaxAddresses)
		case extSession:
			x.Session = value.u64()
		case extWireForm:
			x.Form.Told, x.Form.Algorithm, x.Form.DType = true, value.u8(), dtype.Type(value.u8())
		case extWireGroups:
			x.Form.Elements, x.Form.Bytes = value.u16(), value.u16()
		case extHost:
			x.Host = value.addr().Addr()
		case extEager:
			x.Eager = true
		case extEpoch:
			x.Epoch = value.u64()
		case extResume, extTerm, extIdentity, extLeader, extDecision, extMortal, extNextRevision, extMet:
			x.Resuming.take(kind, &value)
		case extPlans:
			x.Plans = value.u8()
		case extForward:
			x.Forward = value.u8()
		case extDirect:
			x.Direct = value.direct(x.Direct.Schemes)
		case extSchemes:
			x.Direct.Schemes = value.schemes()
		case extWays:
			x.Ways = value.ways()
		case extRevocations:
			x.Revocations = true
		case extPlain:
			x.Plain = true
		case extCollectives:
			x.Collectives = value.u8()
		case extGroupCollectives:
			x.GroupCollectives = true
		case extMembers:
			x.Members = value.members()
		case extKind:
			x.Call = value.call()
		}
		if value.short {
			return Ext{}
		}
	}
	return x
}

// addrs reads addresses to the end, at most most of them.
func (r *reader) addrs(most int) []netip.AddrPort {
	var out []netip.AddrPort
	for len(r.b) > 0 && len(out) < most {
		a := r.addr()
		if r.short {
			return nil
		}
		out = append(out, a)
	}
	return out
}
