package mesh

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// aside takes no frame.
type aside struct{}

func (aside) Route(*link.Receiver, transport.Header, *link.Early) (link.Sink, link.Verdict, error) {
	return nil, link.Drop, nil
}
func (aside) Wake()                              {}
func (aside) Connected(*link.Receiver)           {}
func (aside) SenderLost(*link.Sender, error)     {}
func (aside) ReceiverLost(*link.Receiver, error) {}
func (aside) Regrouped(wire.UUID)                {}

// hubs returns meshes of two peers with a hub each; the second follows the first.
func hubs(t *testing.T, size int) (a *Mesh, near, far *link.Hub, b wire.PeerEndpoint) {
	var j journal
	near, far = link.NewHub(link.Config{}, aside{}), link.NewHub(link.Config{}, aside{})
	t.Cleanup(far.Close)
	t.Cleanup(near.Close)
	a, _ = open(t, wire.UUID{1}, &j, func(c *Config) { c.Pools, c.PoolSize = near, size })
	_, b = open(t, wire.UUID{2}, &j, func(c *Config) { c.Pools, c.PoolSize = far, size })
	far.Trust(wire.UUID{1})
	far.EndRound(wire.UUID{1})
	require.Empty(t, a.Establish(context.Background(), []wire.PeerEndpoint{b}, nil))
	return a, near, far, b
}

// A pool grows behind the connections that it has, in order, and stays so.
func TestPoolsGrow(t *testing.T) {
	a, near, far, b := hubs(t, 0)
	require.Equal(t, 1, near.LiveSenders(b.UUID), "the peer is near")
	first := near.Senders(b.UUID)[0]
	a.Grow(b.UUID, 6)
	require.Eventually(t, func() bool { return near.LiveSenders(b.UUID) == 6 && len(far.Receivers(wire.UUID{1})) == 6 }, time.Minute, time.Millisecond)
	require.Same(t, first, near.Senders(b.UUID)[0])
	require.Eventually(t, func() bool { return a.poolSize(b.UUID) == 6 }, time.Minute, time.Millisecond)
	require.Empty(t, a.Establish(context.Background(), []wire.PeerEndpoint{b}, nil))
	require.Same(t, first, near.Senders(b.UUID)[0], "nothing is made again")
	require.Equal(t, 6, near.LiveSenders(b.UUID))
}

// A round ends a growth that is under way and keeps what there is of the pool.
func TestRoundEndsGrowth(t *testing.T) {
	a, near, far, b := hubs(t, 0)
	far.Trust() // as it is
	release := a.growing.hold()
	a.Grow(b.UUID, 6)
	require.Equal(t, 1, near.LiveSenders(b.UUID), "not while pools are made")
	release()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a.grow(ctx, a.growing.known[b.UUID], 6)
	require.Equal(t, 1, a.poolSize(b.UUID))
	require.Empty(t, a.Establish(context.Background(), []wire.PeerEndpoint{b}, nil))
	require.Equal(t, 1, near.LiveSenders(b.UUID))
}

// Pools that are to grow while another one does are not refused: each grows when those before it
// have. The last number counts. What waits when a round begins is refused.
func TestPoolsGrowOneBehindAnother(t *testing.T) {
	a, near, _, b := hubs(t, 0)
	_, c := open(t, wire.UUID{3}, &journal{}, func(c *Config) {
		c.Pools = link.NewHub(link.Config{}, aside{})
		t.Cleanup(c.Pools.(*link.Hub).Close)
		c.Pools.(*link.Hub).Trust(wire.UUID{1})
		c.Pools.(*link.Hub).EndRound(wire.UUID{1})
	})
	require.Empty(t, a.Establish(context.Background(), []wire.PeerEndpoint{b, c}, nil))
	g := &a.growing
	g.mu.Lock()
	ended := false
	g.stop, g.done = func() { ended = true }, make(chan struct{}) // one is under way
	g.mu.Unlock()
	a.Grow(b.UUID, 8)
	a.Grow(c.UUID, 3)
	a.Grow(b.UUID, 4)
	require.Equal(t, []wanted{{b.UUID, 4}, {c.UUID, 3}}, g.next)
	require.False(t, ended)
	g.mu.Lock()
	g.stop = nil // its end
	first := g.next[0]
	g.next = g.next[1:]
	a.beginGrowth(first)
	g.mu.Unlock()
	require.Eventually(t, func() bool { return near.LiveSenders(b.UUID) == 4 && near.LiveSenders(c.UUID) == 3 }, time.Minute, time.Millisecond)
	g.wg.Wait()
	release := g.hold()
	g.mu.Lock()
	a.beginGrowth(wanted{c.UUID, 9})
	require.Nil(t, g.stop)
	g.mu.Unlock()
	release()
	require.Equal(t, 3, near.LiveSenders(c.UUID))
}

// few is a hub that wants fewer connections by now.
type few struct {
	*link.Hub
	n int
}

func (f few) Wanted(wire.UUID) int { return f.n }

// A pool that had to wait gets no more connections than are wanted when it is its turn.
func TestPoolsGrowToWhatIsWanted(t *testing.T) {
	a, near, _, b := hubs(t, 0)
	a.cfg.Pools = few{near, 3}
	a.Grow(b.UUID, 6)
	a.growing.wg.Wait()
	require.Equal(t, 3, near.LiveSenders(b.UUID))
}

// A number that somebody has chosen is kept.
func TestChosenPoolsDoNotGrow(t *testing.T) {
	a, near, _, b := hubs(t, 2)
	a.Grow(b.UUID, 6)
	a.growing.wg.Wait()
	require.Equal(t, 2, near.LiveSenders(b.UUID))
}

// A member at a distance has as many connections as a neighbour, and of many members
// each has fewer. What was chosen is kept, or there is one.
func TestMembersGetPools(t *testing.T) {
	for _, c := range []struct{ chosen, members, want int }{{0, 3, 4}, {0, mostMesh / 2, 2}, {0, mostMesh, 1}, {4, 3, 4}, {4, mostMesh / 2, 1}} {
		a, near, far, b := hubs(t, 0)
		before := near.LiveSenders(b.UUID)
		a.cfg.PoolSize = c.chosen
		a.sizes.Store(b.UUID, 4) // as if it were distant
		a.single.Store(b.UUID, []*way{{to: b.Addr}})
		a.widen(context.Background(), b, []*way{{to: b.Addr}}, c.members, time.Second)
		require.Equal(t, c.want, near.LiveSenders(b.UUID), "%d members", c.members)
		require.Eventually(t, func() bool { return len(far.Receivers(wire.UUID{1})) == c.want }, time.Minute, time.Millisecond)
		_, single := a.single.Load(b.UUID)
		require.Equal(t, c.want == before, single)
		if !single {
			require.Equal(t, c.want, a.poolSize(b.UUID))
		}
	}
}

// short is a hub that takes two connections.
type short struct{ *link.Hub }

func (s short) AddSender(peer wire.UUID, number uint32, conn net.Conn, features link.Features) error {
	if number < 2 {
		return s.Hub.AddSender(peer, number, conn, features)
	}
	conn.Close()
	return errors.New("no place")
}

// A chosen number that cannot be had at first is that of the pool still: a neighbour gets it.
func TestChosenPoolsAreNotCut(t *testing.T) {
	a, near, _, b := hubs(t, 0)
	a.cfg.PoolSize, a.cfg.Pools = 4, short{near}
	a.sizes.Store(b.UUID, 4) // as if it were distant
	a.widen(context.Background(), b, []*way{{to: b.Addr}}, 3, time.Second)
	require.Equal(t, 2, near.LiveSenders(b.UUID))
	require.Equal(t, 4, a.poolSize(b.UUID))
	a.cfg.Pools = near
	require.NoError(t, a.prepare(context.Background(), b))
	require.Equal(t, 4, near.LiveSenders(b.UUID))
}

// A pool that is opened again gets as many connections as operations wanted before.
func TestReopenedPoolsKeepTheirSize(t *testing.T) {
	var j forgetful
	a, _ := open(t, wire.UUID{1}, &j.journal, func(c *Config) { c.Pools, c.PoolSize = &j, 0 })
	_, b := open(t, wire.UUID{2}, &journal{})
	for want, c := range map[int]struct {
		rtt          time.Duration
		wanted, ways int
	}{
		2: {5 * time.Millisecond, 0, 1}, 16: {5 * time.Millisecond, 16, 1}, 9: {time.Second, 9, 1},
		pace.FirstCount: {5 * time.Millisecond, 3, 3}, // all ways carry something
	} {
		require.Equal(t, want, firstSize(c.rtt, c.wanted, c.ways))
	}
	j.wanted = 16
	require.Empty(t, a.Establish(context.Background(), []wire.PeerEndpoint{b}, nil))
	require.Equal(t, 16, j.said)
}

// forgetful is a data path that forgets how many connections were wanted when they are closed.
type forgetful struct {
	journal
	wanted, said int
}

func (f *forgetful) Wanted(wire.UUID) int {
	f.said = f.wanted
	return f.wanted
}

func (f *forgetful) Retain(send, recv func(wire.UUID) bool) {
	f.journal.Retain(send, recv)
	f.wanted = 0
}
