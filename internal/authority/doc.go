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
//	issuer.pem      credential of an issuer below it, if newcomers are to be signed
//	                by one; on the machine of a master it stands alone
//	tokens.json     what is kept of join tokens, written as a whole
//	issued.log      one line of JSON for each certificate, appended and synced
//	revoked.crl     the revocation list (DER), written as a whole
//	lock            held around every change
//
// # Join tokens
//
// `gopccl keys token` and the master that lets newcomers in work on the same
// directory; the master reads it again for each newcomer. A use of a token is counted on disk before its certificate
// leaves the process (Dir.Enrol).
package authority
