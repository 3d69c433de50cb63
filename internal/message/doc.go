// Package message sends messages from one member of a group to another, over the
// connections of package link. Two members know of a message and nobody else does:
// there is no vote and no verdict.
//
// A sender offers a message. Small ones travel with their offer, in memory of the engine;
// others wait until the receiver has taken the offer, and are sent from the caller's
// memory. A receiver matches offers with receives of the same tag in the order in which
// they came. It says done when all of a message is there, and only then the send ends.
//
// What becomes of a message, and when nothing waits for a member any more, is decided by
// package fsm. Here are the bytes of its words (route.go), a source for those to each
// member, and a source or a sink for the data of each message (transfer.go).
//
// Locks: Engine.mu inside link.Sender.mu; nothing else nests. It is never held while the
// hub or a connection is called, other than to interrupt a read.
package message
