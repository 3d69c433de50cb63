package wire

import "bytes"

// Finishing forward (docs/spec/extensions.md): a member returns the result of an all-reduce before the
// master has said that all have it. If some others fail, the master passes the result on to them.
type (
	// C2MResult (id 81) is the result of the all-reduce that M2CAskResult asked for: Data are the
	// bytes of the destination, none if the sender does not have them.
	C2MResult struct {
		Tag, Seq uint64
		Data     []byte
	}
	// M2CAskResult (id 81) asks a member that said that it holds the result to send it.
	M2CAskResult struct{ Tag, Seq uint64 }
	// M2CResult (id 82) is the result of an all-reduce that the receiver could not complete. It
	// answers with another C2M 11.
	M2CResult struct {
		Tag, Seq uint64
		Data     []byte
	}
	// M2CGivenUp (id 83) answers a C2M 11 of an aborted operation before its commence: no member
	// returns its result.
	M2CGivenUp struct{ Tag uint64 }
)

// Early is what ends say of collectives that do not wait for the master.
type Early struct {
	// Eager announces an end that may begin a collective before its commence
	// (on C2M 1).
	Eager bool
	// Epoch names the round in a group whose members all announced Eager (on
	// M2C 2); 0: collectives begin with their commence.
	Epoch uint64
	// Forward is the version of finishing forward that the sender knows (on C2M 1, M2C 1); 0:
	// none. Elsewhere 1 is yes.
	Forward uint8
}

// forwardGivenUp is what Ext.Forward has beside 1 on C2M 11.
const forwardGivenUp = 2

const (
	// ForwardVersion is what this version announces as Ext.Forward.
	ForwardVersion = 1
	// MaxForward is the largest all-reduce that is finished forward, in bytes of its destination.
	MaxForward = 4 << 20
)

func (C2MResult) Proto() Proto    { return C2M }
func (C2MResult) ID() ID          { return 81 }
func (M2CAskResult) Proto() Proto { return M2C }
func (M2CAskResult) ID() ID       { return 81 }
func (M2CResult) Proto() Proto    { return M2C }
func (M2CResult) ID() ID          { return 82 }
func (M2CGivenUp) Proto() Proto   { return M2C }
func (M2CGivenUp) ID() ID         { return 83 }

// saysForward is the block of a packet in which the entry says yes.
func saysForward(yes bool) Ext {
	if yes {
		return Ext{Early: Early{Forward: ForwardVersion}}
	}
	return Ext{}
}

func appendResult(dst []byte, tag, seq uint64, data []byte) []byte {
	return append(appendU64(appendU64(appendU64(dst, tag), seq), uint64(len(data))), data...)
}

// data reads bytes behind their count, as a copy; nil if there are none.
func (r *reader) data() []byte {
	if b := r.take(r.count(1)); len(b) > 0 {
		return bytes.Clone(b)
	}
	return nil
}

func initiateExt(p *C2MCollectiveCommsInitiate) Ext {
	x := saysForward(p.Forward)
	x.Form, x.Call = p.Form, p.Call
	return x
}

func completeExt(p *C2MCollectiveCommsComplete) Ext {
	x := saysForward(p.Holds)
	if p.GivenUp {
		x.Forward |= forwardGivenUp
	}
	x.Reason, x.ReasonCode = p.Reason, p.ReasonCode
	return x
}
