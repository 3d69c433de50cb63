package platform

import (
	"context"
	"net"
	"net/netip"
)

// Dial connects to another peer and tunes the connection for data (TuneP2P).
// Errors are those of the system.
func Dial(ctx context.Context, addr netip.AddrPort, o Options) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	if err := TuneP2P(conn, o); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
