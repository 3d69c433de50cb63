// Package quorum lets one of several masters lead, and keeps a registry for the
// next one. It is Raft (go.etcd.io/raft/v3) behind events and effects: no clock, socket, file
// or goroutine. A tick is an event, and so is a message of another master.
//
// An entry of the log is a whole registry, so the last committed one is all that counts.
// What has to be on the disk is one small file (Save), which is replaced as a whole. The
// masters are named by their addresses and are the same for as long as the file lives.
//
// The library draws the time of an election from crypto/rand. Here a machine's own timer
// begins elections, on numbers that its owner draws, so the same events give the same
// effects: only the ticks of a leader are the library's.
package quorum
