package mesh

import (
	"context"
	"io"
	"net"
	"slices"
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

// unread is a connection whose reads wait until the channel is closed.
type unread struct {
	*net.TCPConn
	until <-chan struct{}
}

func (u unread) TCP() *net.TCPConn { return u.TCPConn }

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
// later would replace the connections of the new pool. So it is for a single connection.
func TestPoolsComeAfterThoseGivenUp(t *testing.T) {
	for name, tc := range map[string]struct {
		dial func(*Mesh, context.Context, []wire.PeerEndpoint) []wire.UUID
		want int // connections
	}{
		"a round": {func(m *Mesh, ctx context.Context, peers []wire.PeerEndpoint) []wire.UUID {
			return m.Establish(ctx, peers, nil)
		}, 3},
		"a ring to come": {(*Mesh).Prepare, 3},
		"a mesh":         {(*Mesh).Connect, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var j journal
			near, far := link.NewHub(link.Config{}, aside{}), link.NewHub(link.Config{}, aside{})
			t.Cleanup(far.Close)
			t.Cleanup(near.Close)
			hello := make(chan struct{})
			wrote := sync.OnceFunc(func() { close(hello) })
			a, self := open(t, wire.UUID{1}, &j, func(c *Config) {
				c.Pools, c.PoolSize = near, 3
				c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return speaks{conn.(*net.TCPConn), wrote}, nil
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
			go func() { <-hello; cancel() }()
			require.Equal(t, []wire.UUID{b.UUID}, tc.dial(a, ctx, peers), "its hello is not read")
			again, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			require.Equal(t, []wire.UUID{b.UUID}, tc.dial(a, again, peers), "nor may another one be")
			goOn()
			require.Empty(t, tc.dial(a, context.Background(), peers))
			a.growing.wg.Wait()
			require.Empty(t, a.parting.of)
			require.Equal(t, tc.want, near.PingSenders(context.Background(), b.UUID), "all live, and the other end reads them")
		})
	}
}

// What the other end never ends is not waited for longer than a handshake may take, nor longer than
// the caller waits.
func TestWaitForWhatWasGivenUpEnds(t *testing.T) {
	m := &Mesh{cfg: Config{HandshakeTimeout: 10 * time.Millisecond}}
	ended := m.parting.begin(wire.UUID{2})
	require.NoError(t, m.awaitParted(context.Background(), wire.UUID{2}))
	m.cfg.HandshakeTimeout = time.Hour
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, m.awaitParted(ctx, wire.UUID{2}), context.DeadlineExceeded)
	require.NoError(t, m.awaitParted(context.Background(), wire.UUID{3}), "another peer")
	second := m.parting.begin(wire.UUID{2})
	ended()
	require.NotEmpty(t, m.parting.of)
	second()
	require.Empty(t, m.parting.of)
	require.NoError(t, m.awaitParted(context.Background(), wire.UUID{2}))
}

// More connections of a pool come after what was given up as well.
func TestPoolsWidenAfterWhatWasGivenUp(t *testing.T) {
	a, near, _, b := hubs(t, 0)
	ended := a.parting.begin(b.UUID)
	more := func(bound time.Duration) int {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		a.grow(ctx, a.growing.known[b.UUID], 3)
		return near.LiveSenders(b.UUID)
	}
	require.Equal(t, 1, more(50*time.Millisecond))
	ended()
	require.Equal(t, 3, more(time.Minute))

	var j journal
	hub := link.NewHub(link.Config{}, aside{})
	t.Cleanup(hub.Close)
	a, _ = open(t, wire.UUID{3}, &j, func(c *Config) { c.Pools, c.PoolSize = hub, 3 })
	peers := []wire.PeerEndpoint{b}
	require.Empty(t, a.Connect(context.Background(), peers))
	ended = a.parting.begin(b.UUID)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	require.Equal(t, []wire.UUID{b.UUID}, a.Prepare(ctx, peers), "a neighbour of a ring to come")
	require.Equal(t, 1, hub.LiveSenders(b.UUID))
	ended()
	require.Empty(t, a.Prepare(context.Background(), peers))
	require.Equal(t, 3, hub.LiveSenders(b.UUID))
}

// stranded returns a connection to p whose hello is said, and nothing follows.
func stranded(t *testing.T, self wire.UUID, p wire.PeerEndpoint, number uint32) net.Conn {
	conn, err := net.Dial("tcp", p.Addr.String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = conn.Write(wire.Append(nil, wire.P2PHello{UUID: self, Number: number, Ext: wire.Ext{Native: true}}))
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	return conn
}

// unanswered waits until the other end has closed conn, on which it says nothing.
func unanswered(t *testing.T, conn net.Conn) {
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	said, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Empty(t, said)
}

// An end that stood still reads a hello that was given up behind those of the next pool. That pool
// lives on.
func TestWhatWasGivenUpReplacesNothing(t *testing.T) {
	var j journal
	near, far := link.NewHub(link.Config{}, aside{}), link.NewHub(link.Config{}, aside{})
	t.Cleanup(far.Close)
	t.Cleanup(near.Close)
	a, self := open(t, wire.UUID{1}, &j, func(c *Config) { c.Pools, c.PoolSize = near, 3 })
	read := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(read) })
	_, b := open(t, wire.UUID{2}, &j, func(c *Config) {
		c.Pools, c.PoolSize, c.Listener = far, 3, &slow{Listener: c.Listener, read: read}
	})
	t.Cleanup(goOn)
	far.Trust(self.UUID)
	conn := stranded(t, self.UUID, b, 0)
	require.Empty(t, a.Establish(context.Background(), []wire.PeerEndpoint{b}, nil))
	pool := far.Receivers(self.UUID)
	require.Len(t, pool, 3)
	goOn()
	unanswered(t, conn)
	require.True(t, slices.Equal(pool, far.Receivers(self.UUID)), "nothing was replaced")
	require.Equal(t, 3, near.PingSenders(context.Background(), b.UUID))
}

// unsure is a Secure that never knows who is at the other end.
type unsure struct{}

func (unsure) Dial(_ context.Context, conn net.Conn, _ wire.UUID, _ bool) (net.Conn, error) {
	return conn, nil
}
func (unsure) Wrap(conn net.Conn) net.Conn                              { return conn }
func (unsure) Greet(context.Context, net.Conn) (name string, err error) { return "a", nil }
func (unsure) Is(ctx context.Context, _ string, _ wire.UUID) error {
	<-ctx.Done()
	return ctx.Err()
}

// A connection that waits for its place, or for the master to say whose it is, does so only as long as the
// other end wants it.
func TestNobodyWaitsInVain(t *testing.T) {
	for name, secure := range map[string]Secure{"a place": nil, "a name": unsure{}} {
		t.Run(name, func(t *testing.T) {
			var j journal
			far := link.NewHub(link.Config{}, aside{})
			t.Cleanup(far.Close)
			_, b := open(t, wire.UUID{2}, &j, func(c *Config) { c.Pools, c.HandshakeTimeout, c.Secure = far, time.Hour, secure })
			far.Trust(wire.UUID{1})
			unanswered(t, stranded(t, wire.UUID{1}, b, 2))
			require.Empty(t, far.Receivers(wire.UUID{1}))
		})
	}
}
