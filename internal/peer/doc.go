// Package peer is the shell around a peer's session machine (internal/peer/fsm): it
// owns the sockets, goroutines and timers of one communicator and decides
// nothing that the machine could decide.
//
//	API calls ──► events ──► fsm.Machine ──► effects ──► master connection
//	                 ▲                             ├──► internal/mesh (neighbours)
//	                 │                             ├──► reduce.Engine (data), on a link.Hub
//	                 └── results of work ◄─────────├──► sharedstate (fetch, serve)
//	                                               └──► probe (bandwidth)
//
// The machine is stepped by the goroutine that brings an event, one at a time: to
// wake another one would cost more than the step. One that finds the machine
// taken leaves its event in the mailbox, and the holder handles it before it lets
// go. The session's own goroutine does the rest: ticks, and events that were only
// posted. Work that waits runs on goroutines of its own and
// posts its result.
package peer
