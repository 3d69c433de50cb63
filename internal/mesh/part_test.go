package mesh

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/wire"
)

// slow accepts connections and reads nothing from the first one before it is told to.
type slow struct {
	net.Listener
	read chan struct{} // closed when it may; nil after the first
}

func (s *slow) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err == nil && s.read != nil {
		conn, s.read = unread{conn.(*net.TCPConn), s.read}, nil
	}
	return conn, err
}

type unread struct {
	*net.TCPConn
	until <-chan struct{}
}

func (u unread) Read(p []byte) (int, error) {
	<-u.until
	return u.TCPConn.Read(p)
}

// speaks is a connection that says when something was written to it.
type speaks struct {
	*net.TCPConn
	wrote func()
}

func (s speaks) Write(p []byte) (int, error) {
	n, err := s.TCPConn.Write(p)
	s.wrote()
	return n, err
}

// A pool is made when the other end has heard of all that were given up before: a hello that it read
// later would replace the connections of the new pool.
func TestPoolsComeAfterThoseGivenUp(t *testing.T) {
	var j journal
	near, far := link.NewHub(link.Config{}, aside{}), link.NewHub(link.Config{}, aside{})
	t.Cleanup(far.Close)
	t.Cleanup(near.Close)
	said, once := make(chan struct{}), new(sync.Once)
	a, self := open(t, wire.UUID{1}, &j, func(c *Config) {
		c.Pools, c.PoolSize = near, 3
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return speaks{conn.(*net.TCPConn), func() { once.Do(func() { close(said) }) }}, nil
		}
	})
	read := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(read) })
	_, b := open(t, wire.UUID{2}, &j, func(c *Config) {
		c.Pools, c.PoolSize, c.Listener = far, 3, &slow{Listener: c.Listener, read: read}
	})
	t.Cleanup(goOn) // before the meshes end
	far.Trust(self.UUID)
	peers := []wire.PeerEndpoint{b}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-said; cancel() }()
	require.Equal(t, []wire.UUID{b.UUID}, a.Establish(ctx, peers, nil), "its hello is not read")
	again, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	require.Equal(t, []wire.UUID{b.UUID}, a.Establish(again, peers, nil), "nor may another one be")
	goOn()
	require.Empty(t, a.Establish(context.Background(), peers, nil))
	a.growing.wg.Wait()
	require.Empty(t, a.parting.of)
	require.Equal(t, 3, near.PingSenders(context.Background(), b.UUID), "all live, and the other end reads them")
}
