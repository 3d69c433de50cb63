package wire

// M2CRevocations (id 91) is the revocation list that is in force, in DER. It is sent
// only to an end that announced Revocations, and on connections in TLS alone. What it
// says is signed: the master only passes it on.
type M2CRevocations struct{ DER string }

// Proto returns M2C.
func (M2CRevocations) Proto() Proto { return M2C }

// ID returns 91.
func (M2CRevocations) ID() ID { return 91 }

// Secured is what an end in TLS announces (on C2M 1).
type Secured struct {
	// Revocations: it takes revocation lists.
	Revocations bool
	// Plain: it takes members without a certificate, in plaintext.
	Plain bool
}
