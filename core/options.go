package core

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/peer"
)

// Options configure [Connect]. Only Master is needed: zero values take the
// defaults named here. Slices and pointers stay the caller's and must not change
// while the communicator lives. A combination that can never work is
// errs.InvalidArgument, before anything is dialled.
type Options struct {
	// Master is HOST:PORT of the master: a name, an IPv4 or an IPv6 address.
	// Towards a PCCL master only IPv4 works (quirk Q38). Where several masters stand
	// ready, it is the list of them, separated by commas, at most 16.
	Master string
	// Group is the peer group. Collectives and shared state stay inside it;
	// rounds that change the membership include all groups.
	Group uint32
	// PoolSize is the number of connections to the next peer of the ring, up to 1024. Distant
	// gopccl peers that are not neighbours get as many, or one each where that were more than
	// 48 to those that are connected together.
	// 0 (default): one to a near peer or a PCCL peer; to a distant gopccl peer as many
	// as help, which is found out while operations run.
	PoolSize int
	// Flows is the most of these connections over which one all-reduce is striped,
	// if the next peer can take it. 0 (default): all; 1: none is striped.
	Flows int
	// ListenHost is the local IP address to listen on, default all.
	ListenHost string
	// Ports is the exact port to listen on, for data, shared state and bandwidth
	// measurements; or the three that others are told for shared state, data and
	// measurements, in this order; nil: as PortBase says. With them, a peer that
	// comes back soon listens on the port that it had before, which PCCL peers
	// take badly (quirk Q7).
	Ports []int
	// Announce says where others reach this peer, if that is not where it listens.
	Announce AnnounceOptions
	// Security says whom this peer believes, and with what it proves who it is.
	Security SecurityOptions
	// Addresses are IP addresses of this machine, or names of interfaces (the first
	// address of the master's family counts), one for each network that leads to
	// the neighbours; see "Several networks" in docs/flows.md. At most 16; nil: none.
	Addresses []string
	// PortBase is where the search for a free port to listen on begins, at one of the 16
	// from there on. Default 48149; negative: any free port.
	PortBase int
	// Backend is the registered name of the reduce kernels; "auto" or "" takes
	// the best that runs on this processor.
	Backend string
	// FrameBytes is the largest payload of a data frame sent, default 1 MiB.
	FrameBytes int
	// EagerBytes is the largest buffer whose all-reduce begins when it is
	// launched, and not when the master has heard of it from all, if all members
	// of the group can do that; where the master is distant, larger ones do so, too.
	// It must be the same on every peer. Default 512 KiB, at most 1 MiB; negative:
	// none begins so.
	EagerBytes int
	// Threads is what senders and readers of connections run on: "goroutine"
	// (default) or "pinned", an operating system thread for each. Affinity binds
	// pinned threads to processors, such as "0-3,8"; default: any.
	Threads, Affinity string
	// Post says how posted operations are picked up.
	Post PostOptions
	// Hash says by what shared states in host memory are hashed, and by how many
	// goroutines. What all hashers compute is the same; one that does not is refused.
	Hash HashSettings
	// HeartbeatInterval (default 1 s) is how often this peer tells a gopccl master
	// that it lives. HeartbeatTimeout (default 8 s, at least two intervals) is how
	// long a silent end is kept, on both sides.
	HeartbeatInterval, HeartbeatTimeout time.Duration
	// DialTimeout (default 5 s) bounds one TCP connect, HandshakeTimeout (default
	// 5 s) the exchange of hellos on a new connection between peers.
	DialTimeout, HandshakeTimeout time.Duration
	// UserTimeout (default 8 s) bounds how long sent data may stay unacknowledged
	// on a connection between peers before it counts as cut; on Linux twice as long where
	// the peer is heard over another connection. An end that answers but takes nothing for
	// now does not count. One that has nothing to send may be silent for three times
	// as long if the master is a gopccl master, which misses a peer that is gone.
	UserTimeout time.Duration
	// Congestion is the TCP congestion control of connections between peers:
	// "auto" (default: cubic where the round trip is below 2 ms), "system" or a
	// name that the system knows.
	Congestion string
	// Probe bounds the bandwidth measurements of Optimize.
	Probe ProbeOptions
	Patience
	// Device changes the settings of the platforms that serve device memory, for
	// the whole process. Its Logger defaults to the one here.
	Device DeviceSettings
	// Trace hears of operations, connections and idleness; nil: nobody does.
	Trace *Listener
	// Logger receives facts; nil discards them. Lines go to its handler through a
	// bounded queue, so that it never holds the communicator up; lines that find
	// no room are dropped and counted in its next one. Close waits a second for the
	// last ones.
	Logger *slog.Logger
	// Dial replaces the dialer of every outgoing connection, for tests and
	// proxies; it chooses the local addresses, too. nil: TCP, with
	// up to four more tries beside the first one while no answer comes.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// AnnounceOptions say where others reach a peer.
type AnnounceOptions struct {
	// Ports are the ports at which others reach those of Options.Ports, as many and in
	// the same order, where something between forwards them; nil: the listen ports.
	Ports []int
	// Host is the IP address at which others reach this peer, if that is not where
	// its connection to the master comes from. A PCCL master ignores it.
	Host string
}

// SecurityOptions say whom an endpoint believes, and with what it proves who it is
// (docs/security.md). With a credential all of its connections are in TLS 1.3, and no
// other ones are made or taken unless Mode is "allow".
type SecurityOptions struct {
	// Mode is "auto" (default: require if there is a credential, else off), "off",
	// "require", or "allow", which is for the migration of a run: connections in plaintext
	// are taken, too, and members without a certificate are connected with in plaintext. It
	// needs a credential, and the log reminds of it once a minute.
	Mode string
	// File is the path of a credential (gopccl keys issue), Credential one that was
	// loaded; at most one of them. The file is read again when it changes, and what it
	// has then is shown in new connections; the others go on.
	File       string
	Credential *secure.Credential
	// Join is a join token (gopccl keys token), or @ and the path of a file that has it:
	// a peer without a credential gets one from the master. It is written to File, if
	// that is named, and used from there the next time.
	Join secure.Join
	// Revoked is the path of a revocation list (gopccl keys revoke). It is read again
	// when it changes: connections with endpoints that a newer list revokes end.
	Revoked string
	// Identities give roles and groups to certificates of an authority that is not
	// gopccl's.
	Identities []secure.Mapping
	// PlainNetworks are those whose wires are trusted: connections between peers with
	// addresses there prove who is at each end and go on in plaintext, if both ends have
	// it so. Those who can write on such a wire can read and change tensors.
	// Connections with the master are always in TLS.
	PlainNetworks []netip.Prefix
	// PCCLListen is where a master takes PCCL peers, which speak plaintext, in a run that
	// is in TLS; "": nowhere. They may come from PCCLNetworks, and enter PCCLGroups. A peer
	// makes and takes connections in plaintext with PCCL peers if its group is one of
	// PCCLGroups. All who reach the ports from there can change such a group.
	PCCLListen   string
	PCCLNetworks []netip.Prefix
	PCCLGroups   []uint32
}

// Patience is what a communicator waits for, and how long it bears that nothing moves.
type Patience struct {
	// FinishForward asks for every all-reduce what Reduce.FinishForward asks for one.
	FinishForward bool
	// WarnStuckAfter is after what time an operation whose data does not move is
	// named in the log, with the peer that it waits for. Default 30 s; negative: never.
	WarnStuckAfter time.Duration
	// ReattachTimeout is how long the communicator goes on without a master, if its
	// master allows that: calls wait, and operations in flight go on. It tries the
	// masters that Master names until one takes it back, and ends with errs.MasterLost
	// after that time. Default 60 s; negative: it ends when its master does, for programs
	// that connect again by themselves.
	ReattachTimeout time.Duration
}

// PostOptions say how operations that were posted are picked up, which trades the
// time of the next one against the number of all.
type PostOptions struct {
	// Preset is "latency", "balanced" (default) or "throughput".
	Preset string
	// Frequency and Batch, each from 1 to 1024, replace the numbers of the preset if
	// they are not 0: the batches of events that are handled before posted operations
	// are looked at again, and the most that are picked up at a time.
	Frequency, Batch int
}

// ProbeOptions bound one bandwidth measurement.
type ProbeOptions struct {
	// Duration (default 3 s) bounds its time.
	Duration time.Duration
	// Connections (default 4, at most 1024) are used in parallel.
	Connections int
}

// Check refuses options that can never work on any machine, as Connect does: *Error
// with code errs.InvalidArgument that names the fields.
func (o Options) Check() error { return o.inner().Check() }

func (o Options) inner() peer.Options {
	return peer.Options{
		Master: o.Master, Group: o.Group, PoolSize: o.PoolSize, Flows: o.Flows,
		ListenHost: o.ListenHost, Ports: o.Ports, Announce: peer.Announce(o.Announce), Security: guard.Options(o.Security),
		Addresses: o.Addresses, PortBase: o.PortBase,
		Backend: o.Backend, FrameBytes: o.FrameBytes, EagerBytes: o.EagerBytes, Threads: o.Threads, Affinity: o.Affinity,
		Post: peer.Post(o.Post), Hash: o.Hash, Probe: peer.Probe(o.Probe), Device: o.Device,
		HeartbeatInterval: o.HeartbeatInterval, HeartbeatTimeout: o.HeartbeatTimeout,
		DialTimeout: o.DialTimeout, HandshakeTimeout: o.HandshakeTimeout, UserTimeout: o.UserTimeout,
		Congestion: o.Congestion, Patience: peer.Patience{WarnStuckAfter: o.WarnStuckAfter, FinishForward: o.FinishForward},
		Trace: o.Trace, Logger: o.Logger, Network: peer.Network{ReattachTimeout: o.ReattachTimeout, Dial: o.Dial},
	}
}
