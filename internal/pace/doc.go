// Package pace decides how fast connections send, so that no queue of theirs
// stands before an uplink. A host that sends and receives at the rate of its line
// fills its own queue. Acknowledgements wait in it, losses halve the windows, and
// everybody else on the line waits too. Sent a little slower, everything arrives.
//
// It also says how many connections to a peer are used (Count), and for how long
// connections that rest are kept awake (Rest). internal/link asks for these two. No
// connection asks for a rate yet: only the model in the tests has shown what an
// Uplink does. Between real ends it has to know what arrives from the end where it does.
// Where both ends fill their uplinks, acknowledgements wait in the queue of the other
// end. While that becomes longer or shorter they come slower or faster than the line
// carries, and what they show of its rate is wrong by up to a quarter.
//
// It is pure: samples and times come in, rates and numbers go out. It has no clock,
// socket or goroutine.
//
// # Rules
//
// The rate belongs to the uplink, and all its connections share it. Nothing is
// paced until a queue shows what the uplink carries: what arrived in that interval
// is the first rate. Then each interval of two round trips, at least 100 ms, is
// read after its first round trip, when what was sent since its beginning is
// answered.
//
//   - A queue is the round trip beyond the least that was seen. One longer than a
//     quarter of that, within 8 and 25 ms, is congestion, and the rate becomes 0.96
//     of what arrived. It stays while such a queue gets shorter by itself.
//   - It is not reduced below 0.75 of the best that has arrived, because a queue may
//     be somebody else's. If much less arrives than is sent the way has lost rate,
//     and the best is what arrives now.
//   - Without a queue the rate rises, slowly near what arrived at the last
//     congestion, and by doubled steps above it.
//   - A queue of two limits is let out at 0.4 of the rate, at most once a second. One
//     that does not go then, although no more arrives than is sent, is a longer way.
//   - A queue that stands while the rate is at the floor is somebody else's, and is
//     borne for a while.
//   - Losses without a queue are chance, and the answer is more connections. An
//     interval without enough to send changes nothing, and one with gaps tells no rate.
//   - A peer that has a queue while most others have none is capped alone.
//
// On one host, and in one room, nothing is paced: a way of less than 2 ms is not
// sampled, whatever its queues, and where no queue exceeds 8 ms no rate is ever
// set (TestNothingIsPacedWithoutAQueue).
//
// # Limits
//
// A neighbour that fills a buffer of a second takes most of the line, as it does
// from connections that are not paced. With foreign traffic of more than half of
// the line the queue is longer than the limits for part of the time. Intervals end
// with operations, so that those of less than 100 ms teach nothing.
//
// # Constants
//
// go test ./internal/pace -run '^$' -bench Constants -benchtime 1x runs thirteen
// lines of the model in the tests, of 5 Mbit/s to 1 Gbit/s. In percent: of the rate
// that arrives after two seconds, and in these; of the time with a queue above two
// limits; of the rate in the three seconds after it has tripled.
//
//	             settled  first 2 s  queued  tripled
//	chosen          98.7       91.5    0.80     72.2
//	cut 0.92        97.9       90.9    0.53     78.5
//	cut 0.98        99.5       91.9    0.58     82.6
//	enough 0.25     98.8       91.7    0.19     78.2
//	enough 1        98.8       91.5    2.07     78.1
//	slow 1.005      97.7       91.3    6.44     65.9
//	slow 1.04       98.1       91.4   12.95     83.4
//	limits / 2      98.6       91.2    0.00     79.4
//	limits * 2      99.4       92.5   23.59     77.9
//	interval 50     98.8       91.5    0.91     82.1
//	interval 200    99.0       91.3    0.59     69.3
//	no draining     98.9       93.3    1.79     76.9
//	drain at 1      97.3       91.3    0.67     81.1
//
// Most of them are flat in the model. What decides on a real machine is that it
// answers some milliseconds late when it is busy: that is not a queue. So a queue
// has to stand through an interval, rates count only from intervals that always had
// something to send, and no interval takes more than a part of the rate.
package pace
