// Package tlsconn is a connection in TLS 1.3.
//
// A tls.Conn on a socket would not do. A deadline that interrupts a write ruins it,
// it has no writes that never wait, it makes a system call for each record of
// 16 KiB, and its Close may wait for five seconds. So it never touches the socket
// here: it stands on a pump, a connection in memory. What it writes goes into a
// buffer, and what it reads comes out of another one. Below are the calls of
// internal/transport, as they are: writes that do not wait, deadlines that may
// interrupt, one system call for many records.
//
// # Writing
//
// Plaintext counts as written when it is sealed, which a deadline does not
// interrupt. The rest of the ciphertext is the connection's own, and goes in front
// of what comes later, so an interrupted write can always go on. A writer that never
// waits asks Flushed before it stops. Small buffers travel in one record with what
// follows them.
//
// # Reading
//
// Reads wait, and are woken, as those of the socket are: crypto/tls keeps errors
// that are not temporary alone, and goes on inside a record after a deadline. It is
// not documented, so a test keeps watch.
//
// The end of the stream is an end (io.EOF) only if the other endpoint has said it
// (close_notify). A connection that was cut between two records is an error
// (ErrCut), so nobody on the way can shorten a stream unnoticed.
//
// # New keys
//
// The keys of a connection can be made new while it is used, and its ends can show other
// certificates then (Renewable). Each end ends its stream in TLS; behind that follows a
// whole handshake on the same socket. Writes wait for it. The end that has dialled begins,
// not before the other one has said something, and reads have to go on at both ends. A
// connection that is cut there ends as if the other end had said so: it says the end of its
// keys.
//
// # Limits
//
// Close says the end if no write is under way and the socket takes it at once; it
// never waits. More than a hundred answers to key updates that wait for the socket end
// the connection, and so does the number of records that one key is good for, if it is not
// made new before.
package tlsconn
