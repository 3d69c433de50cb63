// Package secure says who is at the other end of a connection: credentials,
// identities, authorities, revocation lists, and the one function that checks a
// certificate ([Trust.Verify]).
//
// `gopccl keys` makes and shows the files that it reads. Endpoints that have a
// credential speak TLS with each other, and with nobody else (docs/security.md).
//
// # Identities
//
// The identity of an endpoint is one URI in its certificate,
//
//	spiffe://RUN.run/gopccl/ROLE/NAME
//
// where RUN is the id of the run, 26 characters that follow from the key of its
// first authority. The groups that the endpoint may enter and its rights are an
// extension beside it. Common names and host names are never looked at. A [Mapping]
// gives roles to the URIs and DNS names of an authority that is not ours.
//
// # Chains
//
// An authority signs endpoints of every role. It may sign an issuer, too, which
// signs peers and observers and nothing else: a certificate below an issuer that
// claims more is refused by every verifier.
//
// # Join tokens
//
// A [Token] pins an authority and has a secret. An endpoint without a credential checks the
// master by the pin ([Token.Client]), and proves the secret inside that connection.
// Options have it as a [Join].
//
// # Immutability
//
// A [Trust] and the tls.Configs that it makes are never changed. A new list, or a
// new credential, makes a new Trust, and a [Keeper] hands it to those that come.
// There are no session tickets, so every connection is checked in full.
//
// # Secrets
//
// A [Credential], a [Token] and a [Secret] print as what they are called, in every
// format. Errors name a file and the number of a block, and never quote its text.
//
// # The extension
//
// Its identifier is 2.25 followed by the bits of a random UUID
// (55dbef08-bab1-4a6d-a498-01804d8e5ef2) in five parts, because crypto/x509 refuses
// larger numbers; below it 1 is the grant of a certificate, and 2 the names of a
// revocation list.
package secure
