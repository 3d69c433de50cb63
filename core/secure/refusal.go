package secure

import (
	"fmt"
	"strings"
	"time"
)

// Reason is why a certificate was refused. It is an error, so that
// errors.Is(err, secure.Expired) works.
type Reason uint8

// Reasons.
const (
	// Unknown means that no trusted authority has signed the certificate, or that
	// it is for another run.
	Unknown Reason = iota + 1
	// Expired means that it was valid, by the clock of this machine.
	Expired
	// NotYet means that it will be valid, by the clock of this machine.
	NotYet
	// Revoked means that it, its name or its issuer is on a list.
	Revoked
	// WrongRole means that its role is not one for this purpose.
	WrongRole
	// WrongGroup means that it does not allow the group.
	WrongGroup
	// WrongName means that it is another endpoint's than the one that was expected.
	WrongName
	// WrongProtocol means that the connection is not one of ours: another version of
	// TLS, no purpose, or one that was not offered.
	WrongProtocol
	// WrongChain means that the chain or the certificate is not made as ours are.
	WrongChain
)

var reasons = map[Reason]string{
	Unknown: "unknown authority", Expired: "certificate expired", NotYet: "certificate not yet valid", Revoked: "certificate revoked",
	WrongRole: "wrong role", WrongGroup: "wrong group", WrongName: "wrong name", WrongProtocol: "wrong protocol", WrongChain: "malformed certificate or chain",
}

// Error returns the reason in words.
func (r Reason) Error() string {
	if s, ok := reasons[r]; ok {
		return s
	}
	return "refused"
}

// Refusal says why an endpoint was not believed.
type Refusal struct {
	Reason Reason
	Who    string // the identity in a certificate of a known authority; may be empty
	Err    error  // what exactly is wrong
}

// Error returns reason, endpoint and cause.
func (r *Refusal) Error() string {
	text := r.Reason.Error()
	if r.Who != "" {
		text += " of " + r.Who
	}
	if r.Err != nil {
		text += ": " + r.Err.Error()
	}
	return text
}

// Unwrap gives errors.Is and errors.As the reason and the cause.
func (r *Refusal) Unwrap() []error {
	if r.Err == nil {
		return []error{r.Reason}
	}
	return []error{r.Reason, r.Err}
}

func refuse(reason Reason, who, format string, a ...any) *Refusal {
	return &Refusal{reason, who, fmt.Errorf(format, a...)}
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// clockMark begins what an endpoint says of its clock.
const clockMark = "gopccl clock "

// stapled returns what an endpoint says of its clock beside its certificate, where others
// staple what an authority says of that (OCSP). An endpoint whose clock is wrong cannot be told
// so in any other way: its connection ends in the handshake.
func stapled(now time.Time) []byte { return []byte(clockMark + clock(now)) }

// otherClock says in words what the other end has said of its clock; "": nothing.
func otherClock(said []byte) string {
	text, ok := strings.CutPrefix(string(said), clockMark)
	at, err := time.Parse(time.RFC3339, text)
	if !ok || err != nil {
		return ""
	}
	return ", and that of the other end " + clock(at)
}
