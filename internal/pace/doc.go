// Package pace decides how connections to distant peers use the way there: over how many
// of them an operation is spread (Count), for how long those that rest are kept awake
// (Rest), whether their windows may leave at once (Spills), what is sent behind the last data so
// that a loss is seen soon (Tail), and how much all of them may send where they would fill a deep
// queue (Line).
//
// It is pure: samples and times come in, decisions go out. It has no clock, socket or
// goroutine. internal/link asks the system, and does what is decided.
//
// # Line
//
// Nothing is bounded until a queue of this host's own is Deep, or overflows. Then the first rate is
// what arrives while it stands, by the clock of the other ends, and the queue is let out. From
// then on intervals of 400 ms are judged:
//
//   - More is sent than arrives, and a queue begins: the line carries what arrives.
//   - A queue stands: it is let out, at a part of what arrives.
//   - Neither, and the rate was used while there was something to send: it rises, by steps
//     that double. Where half a queue is seen it stays: on a way whose round trips vary by
//     20 to 40 ms without any queue, a rate that is too low is not raised.
//   - There are queues, and the host pauses, or did a round trip ago: that says nothing. Over a
//     long way windows leave in flights, which are queues of their own.
//   - A queue that does not get shorter when it is let out is somebody else's. For a while
//     nothing is bounded, as if there were no Line, and then it is tried again.
//
// A short operation is over before that: windows that together hold more than the queue has room for
// leave at once, and much of them is lost. So what leaves between two rests, a stretch, is judged
// when it is over. If it has overflowed, the rate is the most that stretches have arrived with, or
// what this one has if that is less. If that does not help, losses are by chance. A rate far above
// the most that stretches have arrived with holds nothing up: it is lowered to that where less is lost,
// behind a shorter queue.
//
// The queue is that of the way there alone. Of the round trip beyond the shortest it is what
// the way back has not taken, which the words of the other end show: they carry its time.
//
// What the model in the tests shows, of lines of 2 to 500 Mbit/s with buffers of 0.3 to 4
// seconds, is printed by go test ./internal/pace -run TestLine -v.
package pace
