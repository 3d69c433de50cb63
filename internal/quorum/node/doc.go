// Package node is one of several masters of a run: the sockets, the file and the timer
// around a machine of internal/quorum. It is an authority (core.Authority).
//
// Masters listen on a port of their own for each other. Each dials each: what one has
// dialled it writes to alone, what it has accepted it reads from alone, so neither end
// has to agree on which connection counts. A frame is a packet of the control protocol:
// its length and an id. The first one says who writes, to whom, and has a digest of all
// addresses, so masters that were told different lists do not hear each other. An empty
// one answers it, and nothing else comes back.
//
// With a credential the connections are mutual TLS between masters of the run. Without
// one anybody who reaches the port can speak as a master: keep it in a network of your
// own.
package node
