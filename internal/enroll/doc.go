// Package enroll gives a newcomer that has a join token a credential: the end of the
// newcomer ([Obtain]), and that of the master ([Desk]).
//
// Both speak inside a connection in TLS of the purpose secure.Enrolment. The newcomer
// has checked that the master's certificate leads to the authority that its token
// pins; it has none itself. It makes a key, and sends
//
//	u8        version, 1
//	8 bytes   id of the token
//	32 bytes  HMAC-SHA-256 of "gopccl-enroll/1", 32 bytes of the session's exporter
//	          (label EXPORTER-gopccl-enroll) and SHA-256 of the request; its key is
//	          derived from the secret (secure.Token.VerifyKey)
//	u16       size of the request
//	          PKCS 10 request, whose common name is the name that is asked for
//
// The exporter ties the proof to this session, so it is worth nothing in another one,
// and the secret does not travel. The answer is
//
//	u8        0: granted
//	u64       clock of the master, in ms since 1970
//	u8        number of certificates: that of the newcomer first, then those up to the
//	          authority, without it; each u16 size and DER
//
// or
//
//	u8        1: refused
//	u64       clock of the master
//	u16       size of the reason
//	          the reason, in UTF-8
//
// An endpoint that has a credential gets the next one ([Keep], [Desk.Renew]) in a
// connection of the purpose secure.Renewal, in which both ends show their certificates. It
// makes a new key, sends
//
//	u8   version, 1
//	u16  size of the request
//	     PKCS 10 request, of which the key alone counts
//
// and has the same answer. Name, role, groups and rights are those of the certificate
// that it has shown.
//
// Integers are big-endian. Name, role and groups come from the token. Whether a token
// is unknown, expired, used up or was not proved is told to the master's log alone.
package enroll
