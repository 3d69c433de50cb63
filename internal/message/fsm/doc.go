// Package fsm decides what becomes of the messages of one member (docs/spec/extensions.md,
// "Messages"), as a pure machine: what the caller asks for, what other members say and
// what becomes of connections are events, each a method; what is to be done about them is
// asked for with Effects. It has no clock, socket, lock, goroutine or random source, and
// no order of a map decides anything.
//
// # A message
//
// Words are frames of the other end, whole is that all of the data is there.
//
//	a send                                a receive
//
//	Offered --take--> Moving              Waiting --offer--> Moving
//	 |                 |                   |                  |
//	 +--done--> Over   +--done--> Over     +--whole--> Over   +--whole--> Over
//
// A send whose data travels with its offer is done without being taken, and so is a
// receive that matches it. From every state a message is over when either end gives it
// up, when the sizes differ, or for one of the reasons below. The buffer is the caller's
// again when nothing touches it any more (Free).
//
// # Memory
//
// A member keeps offers of another one that it does not receive yet, within bounds that
// both ends count: a message is open from its offer until its answer. Answers that a
// connection does not take count as if they had not been given, so that nobody has another
// member pile them up. What a connection has not taken of a message that is given up is
// not said at all.
//
// # Ends
//
// Nothing waits for a member that has gone. Words and data go to a member over one
// connection at a time (Way), and come from it over one (Came).
//
//   - Nothing can come any more over a connection from a member that has ended, or that
//     another one replaces: what is under way with that member fails, and its offers go.
//   - What is under way when the connection to a member ends has lost some words. Answers
//     of the other end may be on their way: it fails when the connection from there ends,
//     or after Config.Patience.
//   - A member that the master names as gone may have said its last words: what concerns
//     it, receives from any member included, fails in the same way.
//   - A round ends everything. Offers name their epoch, so that none outlives it.
//
// A message that fails here is given up at the other end, too, as long as there is a
// connection: nobody has to have noticed the same.
package fsm
