package core

import (
	"context"
	"io"
	"net"
	"net/netip"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/master"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// MasterOptions of NewMaster.
type MasterOptions = master.Options

// Master coordinates a run: it holds membership, votes, ring orders,
// bandwidths and shared state hashes, and never sees a tensor. It serves
// gopccl and PCCL 1.0.0 peers alike.
type Master struct {
	s  *master.Server
	ln net.Listener
}

// NewMaster listens. Errors: errs.InvalidUsage if the address cannot be had.
func NewMaster(opt MasterOptions) (*Master, error) {
	s, err := master.New(opt)
	if err != nil {
		return nil, err
	}
	if opt.Listen == "" {
		opt.Listen = master.DefaultListen
	}
	ln, err := platform.Listen(context.Background(), "tcp", opt.Listen)
	if err != nil {
		return nil, errs.New(errs.InvalidUsage, "run master", err).WithPeer(opt.Listen).
			WithHint("free the port or choose another address")
	}
	return &Master{s, ln}, nil
}

// Addr returns where the master listens.
func (m *Master) Addr() netip.AddrPort { return m.ln.Addr().(*net.TCPAddr).AddrPort() }

// Run serves until ctx ends (nil) or the listener fails.
func (m *Master) Run(ctx context.Context) error { return m.s.Serve(ctx, m.ln) }

// Status returns clients, rings and votes as they are now.
func (m *Master) Status() master.Status { return m.s.Snapshot() }

// DumpState writes what Status returns as text. The error is w's.
func (m *Master) DumpState(w io.Writer) error { return master.WriteStatus(w, m.Addr(), m.Status()) }

// Topology is what is known of the links of a group: peers, the ring as
// positions in them, rates in Mbit/s by row and column, 0 where unknown.
type Topology = wire.GroupTopology

// Topology returns a copy of what the master knows of the links of every group.
func (m *Master) Topology() []Topology { return m.s.Topology() }

// ResetSharedState gives up the shared state that a group expects: its next
// synchronisation elects the highest revision that its members have, as the
// first one does. It is for a group that has lost its state because nobody is
// left who had the revision that comes next; the log says which was given up.
// Error: errs.Closed if Run does not run.
func (m *Master) ResetSharedState(group uint32) error { return m.s.ResetSharedState(group) }

// SetBeginAnew changes MasterOptions.BeginAnew. Error: errs.Closed if Run does not run.
func (m *Master) SetBeginAnew(on bool) error { return m.s.SetBeginAnew(on) }

// Close ends the master and every connection to it.
func (m *Master) Close() error {
	err := m.s.Close()
	m.ln.Close() // after the server, for which a closed listener would be a failure
	return err
}
