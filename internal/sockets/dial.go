package sockets

import (
	"context"
	"net"
	"net/netip"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/platform"
)

// Dial connects to another peer and tunes the connection for data (platform.TuneP2P).
// Errors are those of the system.
func Dial(ctx context.Context, addr netip.AddrPort, o platform.Options) (net.Conn, error) {
	conn, err := transport.Dial(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	if err := platform.TuneP2P(conn, o); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
