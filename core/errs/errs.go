package errs

import (
	"errors"
	"strings"
)

// Code classifies an error. A Code is itself an error, so that
// errors.Is(err, errs.TooFewPeers) works.
type Code int

// Results of PCCL 1.0.0, same numbers.
const (
	Success                    Code = 0
	NotInitialized             Code = 1
	Internal                   Code = 2
	InvalidArgument            Code = 3
	InvalidUsage               Code = 4
	TooFewPeers                Code = 5
	MasterConnectionFailed     Code = 6
	RankConnectionFailed       Code = 7
	RankConnectionLost         Code = 8
	NoSharedStateAvailable     Code = 9
	PendingAsyncOps            Code = 10
	UpdateTopologyFailed       Code = 11
	TopologyOptimizationFailed Code = 12
)

// Codes of our own. A caller that only knows PCCL's results uses PCCL().
const (
	// Busy means that another call that changes the phase is running on this communicator.
	Busy Code = 100 + iota
	// Closed means that the communicator was closed, or has left the run.
	Closed
	// MasterLost means that the connection to the master ended or fell silent, and that
	// no master has taken this peer back in the time that it waits for one.
	MasterLost
	// Kicked means that the master closed the connection without a word.
	Kicked
	// Canceled means that the caller's context ended.
	Canceled
	// Protocol means that the other endpoint sent something that the protocol does not allow.
	Protocol
	// Timeout means that the other endpoint did not do its part within its bound.
	Timeout
	// Mismatch means that peers passed different arguments to one collective.
	Mismatch
	// TransferFailed means that a transfer of shared state failed at every holder.
	TransferFailed
	// HashMismatch means that received or stored bytes do not have the expected hash.
	HashMismatch
	// CorruptFile means that a checkpoint or another file is damaged.
	CorruptFile
	// InvalidConfig means that a configuration value is unknown, out of range or impossible.
	InvalidConfig
	// DeviceFailed means that an accelerator, or its driver, refused or failed.
	// Tensors on the host are not affected.
	DeviceFailed
	// TurnedAway means that the master does not let this peer in now; the reason says what
	// it has cost the run, and when to come again.
	TurnedAway
	// Unsupported means that another peer, or the master, does not know what was asked
	// for: it is an older gopccl, or PCCL. The error names it.
	Unsupported
	// NotLeading means that this master leads its run no longer, or not yet: another one
	// does, or nobody can say.
	NotLeading
)

var names = map[Code]string{
	Success: "success", NotInitialized: "not initialized", Internal: "internal error",
	InvalidArgument: "invalid argument", InvalidUsage: "invalid usage", TooFewPeers: "too few peers",
	MasterConnectionFailed: "master connection failed", RankConnectionFailed: "rank connection failed",
	RankConnectionLost: "rank connection lost", NoSharedStateAvailable: "no shared state available",
	PendingAsyncOps: "pending async operations", UpdateTopologyFailed: "update topology failed",
	TopologyOptimizationFailed: "topology optimization failed",
	Busy:                       "busy", Closed: "closed", MasterLost: "master lost", Kicked: "kicked by the master",
	Canceled: "canceled", Protocol: "protocol violation", Timeout: "timeout", Mismatch: "argument mismatch",
	TransferFailed: "transfer failed", HashMismatch: "hash mismatch", CorruptFile: "corrupt file",
	InvalidConfig: "invalid configuration", DeviceFailed: "device failed",
	TurnedAway: "turned away by the master", Unsupported: "not supported",
	NotLeading: "this master does not lead",
}

// Error returns the name of the code.
func (c Code) Error() string {
	if n, ok := names[c]; ok {
		return n
	}
	return "unknown error code"
}

// Error says what failed, where, against whom and why. It is not changed once it
// has been returned: it may be known to several waiters and logs.
type Error struct {
	Op    string // the user's operation: "connect", "all-reduce", "sync shared state", ...
	Phase string // the phase inside it: "vote", "establish", "reduce-scatter step 3", ...; may be empty
	Peer  string // remote endpoint: uuid, address or both; may be empty
	Code  Code
	Err   error  // cause; may be nil
	Hint  string // what the user can do; may be empty
}

// New returns an *Error; cause may be nil.
func New(code Code, op string, cause error) *Error { return &Error{Op: op, Code: code, Err: cause} }

// WithPhase returns a copy of e that names the phase in which it happened.
func (e *Error) WithPhase(phase string) *Error { c := *e; c.Phase = phase; return &c }

// WithPeer returns a copy of e that names the remote endpoint.
func (e *Error) WithPeer(peer string) *Error { c := *e; c.Peer = peer; return &c }

// WithHint returns a copy of e that says what the user can do.
func (e *Error) WithHint(hint string) *Error { c := *e; c.Hint = hint; return &c }

// Error formats op, phase, peer, code, cause and hint in this order.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("gopccl: ")
	if e.Op != "" {
		b.WriteString(e.Op)
	}
	if e.Phase != "" {
		b.WriteString(" (" + e.Phase + ")")
	}
	if e.Peer != "" {
		b.WriteString(" with " + e.Peer)
	}
	if e.Op != "" || e.Phase != "" || e.Peer != "" {
		b.WriteString(": ")
	}
	b.WriteString(e.Code.Error())
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Hint != "" {
		b.WriteString(" [" + e.Hint + "]")
	}
	return b.String()
}

// Unwrap gives errors.Is and errors.As both the code and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.Err}
}

// CodeOf returns the code of the outermost *Error in err's chain, Success for
// nil and Internal for a foreign error.
func CodeOf(err error) Code {
	if err == nil {
		return Success
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	var c Code
	if errors.As(err, &c) {
		return c
	}
	return Internal
}
