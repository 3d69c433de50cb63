package transport_test

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

func sockets(t *testing.T) (a, b net.Conn) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	a, err = net.Dial("tcp4", ln.Addr().String())
	require.NoError(t, err)
	b, err = ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// A connection that is not a socket is read as it is.
func TestSourceOfAnything(t *testing.T) {
	a, b := net.Pipe()
	require.Equal(t, io.Reader(b), transport.Source(b))
	require.Nil(t, transport.NonBlocking(a))
	a.Close()
	b.Close()
}

// fill makes p differ in every place that a test could mix up.
func fill(p []byte) {
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], uint64(i)*0x9e3779b97f4a7c15)
	}
}

func suite() transporttest.Suite {
	return transporttest.Suite{Pair: func(t testing.TB) (a, b net.Conn) { return sockets(t.(*testing.T)) }}
}

// Sockets do what every connection of the data path does.
func TestConnections(t *testing.T) { suite().Run(t) }

// Nothing is allocated per call.
func TestNoAllocation(t *testing.T) {
	if allocs := suite().Allocations(t); allocs > maxAllocs {
		t.Fatalf("%v allocations", allocs) // S0-14
	}
}
