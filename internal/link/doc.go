// Package link owns the peer to peer connections and carries frames over them
// (data spec, sections 1.2 and 1.3). It knows no collective: no element, no step
// and no reduction.
//
// # What it has
//
// A Hub has the connections, in pools by peer and direction. A Sender is a
// connection to a peer. It asks the sources that are attached to it for frames,
// and writes what they have ready in batches. A Receiver is a connection from a
// peer. Its reader goroutine asks the Router which Sink takes each frame, and
// the sink processes the frame on that goroutine. Receiving never waits for a
// source, so that streams which depend on each other always drain.
//
//	sources ──► Sender (batch, gauge) ──► connection
//	                                             Hub: pools, places, early frames
//	sinks ◄── Router ◄── Receiver (reader) ◄── connection
//
// One peer at each side is the ring. Any number of peers may have streams at
// once: a stream to each of many peers is a source for each. Flows are the
// connections of one stream that uses several of a pool.
//
// # What stands on it
//
// A room above brings a Router, and a Source or a Sink for each of its streams.
// The Router is asked which sink takes a frame, and hears which connections came
// and were lost. What is to be done about a stream whose connection was lost is
// its decision alone.
//
// Frames that have no sink yet can be kept. They are stored as the bytes that
// came, by peer, tag and stream, within bounds for each peer (early.go).
//
// # Distant peers
//
// A gauge is what is known of the speed of one connection, measured at the writes
// that had to wait. The survey asks the sockets of connections to distant peers that
// have data every 10 ms (internal/pace says which way is short). From what they say
// it decides how many connections to each peer operations use, and has pools grow
// (Config.Grow). Operations that run hear of it (Router.Regrouped). When they rest, pulses
// keep their windows. It is one goroutine, and there is none without such connections.
//
// Where a connection loses much of a window that left at once, the system is to spread the next ones
// (spread.go). The count of each peer hears what arrives at the others meanwhile (others.go).
//
// It asks peers to tell what comes (told.go), and where a queue of this host is deep or overflows
// says how much all such connections may write together. Sender.transmit waits for that
// (allowance.go).
//
// # Locks
//
// Hub.mu guards the pools and all that is decided by name: neighbours, places and
// early frames. Sender.mu guards the queue of a connection, and Receiver.mu why it
// was closed. A lock of a router may be held around calls of the Hub: its rank is
// below RankHub. A source may take a lock of its own in the calls that are made
// with Sender.mu held: its rank is above RankConn. So the order is
//
//	router's lock → Hub.mu
//	Sender.mu     → source's lock
//	Hub.telling   → Hub.mu
//
// and the lock of the buffers' pool, which takes no other, comes last. No other
// two locks are held together, and none while a connection could make the holder
// wait. Route and the other methods of a Router, Settle, Fail and RouseBest are
// called with no lock held.
package link
