package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// closes is a connection of which a test learns that it was closed.
type closes struct {
	net.Conn
	closed bool
}

func (c *closes) Close() error {
	c.closed = true
	return nil
}

// Of connections whose first packets are lost, one that is begun later is there first. What comes after
// it is closed, and nothing of it runs on.
func TestDialAgain(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		takes []time.Duration // of each of them; 0: it never is there
		fails int             // the one that fails, from 1 on
		which int             // the one that counts, from 1 on
		after time.Duration
		begun int
	}{
		"at once":             {takes: []time.Duration{50 * time.Millisecond}, which: 1, after: 50 * time.Millisecond, begun: 1},
		"far away":            {takes: []time.Duration{650 * time.Millisecond}, which: 1, after: 650 * time.Millisecond, begun: 1},
		"lost twice":          {takes: []time.Duration{3200 * time.Millisecond, 200 * time.Millisecond}, which: 2, after: 900 * time.Millisecond, begun: 2},
		"the first after all": {takes: []time.Duration{1100 * time.Millisecond, 0}, which: 1, after: 1100 * time.Millisecond, begun: 2},
		"both":                {takes: []time.Duration{900 * time.Millisecond, 200*time.Millisecond + 1}, which: 1, after: 900 * time.Millisecond, begun: 2},
		"refused":             {takes: []time.Duration{100 * time.Millisecond}, fails: 1, which: 1, after: 100 * time.Millisecond, begun: 1},
		"all but the last":    {takes: []time.Duration{0, 0, 0, 0, 100 * time.Millisecond}, which: 5, after: 2900 * time.Millisecond, begun: 5},
		"none":                {takes: []time.Duration{0, 0, 0, 0, 0}, after: 5 * time.Second, begun: 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				began := time.Now()
				var mu sync.Mutex
				var conns []*closes
				conn, err := first(ctx, func(ctx context.Context) (net.Conn, error) {
					mine := &closes{}
					mu.Lock()
					n := len(conns)
					conns = append(conns, mine)
					mu.Unlock()
					if c.takes[n] == 0 {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					select {
					case <-time.After(c.takes[n]):
					case <-ctx.Done():
						if n == 1 { // it is there, as it happens
							return mine, nil
						}
						return nil, ctx.Err()
					}
					if n+1 == c.fails {
						return nil, refused
					}
					return mine, nil
				})
				require.Equal(t, c.after, time.Since(began))
				require.Len(t, conns, c.begun)
				switch {
				case c.which == 0:
					require.ErrorIs(t, err, context.DeadlineExceeded)
				case c.fails > 0:
					require.ErrorIs(t, err, refused)
				default:
					require.NoError(t, err)
					require.Same(t, conns[c.which-1], conn)
					for i, other := range conns {
						require.Equal(t, i == 1 && c.which != 2 && c.takes[1] > 0, other.closed, i)
					}
				}
			})
		})
	}
}

func TestDial(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	conn, err := DialFrom(t.Context(), "tcp", ln.Addr().String(), netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	conn.Close()
	ln.Close()
	_, err = Dial(t.Context(), "tcp", ln.Addr().String())
	require.Error(t, err)
}
