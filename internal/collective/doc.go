// Package collective runs collectives over the connections of package link: every kind
// that has a plan (plan.For). Of a kind it knows where its data lies, and nothing else.
// An operation is the lanes of a plan, and what is done with what comes in on them.
//
// A lane is a stream of segments to or from one peer. Each segment is cut into pieces,
// and a frame carries one piece with its index, so that frames may travel on any
// connection to that peer and be processed in any order. A piece of a segment that
// follows another one may leave when the same bytes of that one are processed.
//
// A reader processes the frames of its connection, and never waits for anything in an
// operation: frames for one that has not started here, or whose source has not come from
// this member's own device, wait before. Blocks
// on their way to others, and sums that are not final here, lie in memory of the
// operation, at most as much as the data. What is to be added to something that is not
// there yet is put aside, and the reader that completes that adds it: the order of additions
// is that of the plan, and the bits do not depend on what comes first. An all-reduce over
// trees (plan.Scheme) is cut in stripes, of which a member keeps no more than a window of
// what others send: a segment that has a gate waits for it, at both ends of its lane.
//
// A short lane over a way that loses packets has spares of its pieces, so that nobody waits for what
// is lost (spare.go).
//
// The sender of a lane chooses the size of its pieces. Every piece says how many bytes
// the lane has, and a receiver that expects another number ends the operation with
// Mismatch before it writes anything.
//
// Locks: Operation.mu inside Engine.mu or link.Sender.mu; link.Hub.mu inside Engine.mu;
// the pool's inside Operation.mu or Hub.mu. Nothing else nests, and Hub.mu and
// Operation.mu are never held together. No lock is held while a connection could make
// us wait.
package collective
