// Package wire turns CCoIP packets into bytes and back, and does nothing else
// (control spec, sections 2 to 4; data spec, sections 1.3 and 4.2).
//
// Every packet type names its direction: C2M peer to master, M2C master to
// peer, P2P, C2S/S2C shared state, C2B/B2C bandwidth benchmark. What gopccl
// endpoints say beyond PCCL 1.0.0 travels as an extension block after the last
// field of a body (type Ext), where PCCL looks at nothing, and in packet ids
// from 64 on, which are only sent to endpoints that announced the capability.
//
// Decoders trust nothing: a count is refused when the bytes that follow cannot
// hold it, and memory grows with what has arrived.
package wire
