// Package authority makes the credentials of a run: it signs certificates and
// revocation lists, and keeps the directory of an authority, which `gopccl keys`
// works on. It checks nothing at a connection; core/secure does.
//
// # The directory
//
// Its mode is 0700, and every change is made by the holder of its lock.
//
//	authority.key   private key (PKCS 8, mode 0600); may be taken offline
//	authority.crt   certificate of the authority that signs
//	issued.log      one line of JSON for each certificate, appended and synced
//	revoked.crl     the revocation list (DER)
//	tokens.json     join tokens: what checks a proof, and never the secret
//	next.key, .crt  a later authority, between the steps of a rotation
//	cross.crt       the present authority vouches for the next one
//	former.crt      the authority before, until its certificates have run out
//	lock            held around every change
package authority
