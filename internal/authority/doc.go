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
//	revoked.crl     the revocation list (DER), written as a whole
//	lock            held around every change
//
// Join tokens and the rotation of an authority are not there yet: what would take
// them, the master, does not know of credentials.
package authority
