// Package master is the shell around the master machine (internal/master/fsm):
// it accepts connections, turns bytes into events and effects into bytes, and
// decides nothing about the protocol.
//
//	connections ──► packets ──► fsm.Machine ──► packets ──► queues ──► connections
//	                               ▲  │
//	    ticks, ends, operator ─────┘  └──► solver jobs, facts, log
//
// Every connection has one goroutine that reads and one that writes what could
// not be written at once. The machine is stepped, under the server's lock, by the
// goroutine that brings the event; nothing in a step waits. Packets that a client
// does not read wait in its queue, which is bounded, and hold up no other client. The
// loop of Serve does the ticks; solvers, log lines and facts have goroutines of
// their own.
package master
