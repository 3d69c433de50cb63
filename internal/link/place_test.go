package link

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// pooled is a hub whose neighbour has a living pool of one connection.
type pooled struct {
	*testing.T
	h    *Hub
	peer wire.UUID
	far  net.Conn
}

func newPooled(t *testing.T) *pooled {
	p := &pooled{T: t, h: newRoom(t, Config{}).h, peer: uuid(1)}
	p.h.Trust(p.peer)
	p.far = p.add(0)
	p.h.EndRound(p.peer)
	return p
}

func (p *pooled) add(number uint32) net.Conn {
	far, near := net.Pipe()
	p.Cleanup(func() { far.Close() })
	p.h.AddReceiver(p.peer, number, near)
	return far
}

// ask has the neighbour ask whether its connection lives.
func (p *pooled) ask() {
	var question [transport.HeaderSize + 1]byte
	transport.Header{Payload: 1, Tag: 7, Stream: pingStream}.Put((*[transport.HeaderSize]byte)(question[:]))
	_, err := p.far.Write(question[:])
	require.NoError(p, err)
	_, err = p.far.Read(make([]byte, echoBytes))
	require.NoError(p, err)
}

// take reports whether another connection number 0 gets the place of the pool
// within a minute.
func (p *pooled) take() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return p.h.AwaitPlace(ctx, p.peer, 0, true)
}

// A connection with the uuid of a neighbour does not take the place of one that
// lives, outside of rounds and in those in which the neighbour has asked for it.
func TestLivingPoolsKeepTheirPlace(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(*pooled)
		takes  bool
	}{
		"no round":                      {func(p *pooled) {}, false},
		"a round that is over":          {func(p *pooled) { p.h.BeginRound(); p.h.EndRound(p.peer) }, false},
		"asked for in the round":        {func(p *pooled) { p.h.BeginRound(); p.ask() }, false},
		"asked for just before":         {func(p *pooled) { p.ask(); p.h.BeginRound() }, false},
		"not asked for in the round":    {func(p *pooled) { p.h.BeginRound() }, true},
		"asked for in an earlier round": {func(p *pooled) { p.ask(); time.Sleep(2 * vouchTime); p.h.BeginRound() }, true},
		"closed":                        {func(p *pooled) { p.far.Close(); synctest.Wait() }, true},
		"closed while another waits":    {func(p *pooled) { time.AfterFunc(time.Second, func() { p.far.Close() }) }, true},
		"a round begins while it waits": {func(p *pooled) { time.AfterFunc(time.Second, func() { p.h.BeginRound() }) }, true},
		"asked for while another waits": {func(p *pooled) { p.h.BeginRound(); time.AfterFunc(claimPause/2, p.ask) }, false},
		"another peer precedes":         {func(p *pooled) { p.h.EndRound(uuid(2)) }, true},
		"the peer is not a neighbour":   {func(p *pooled) { p.h.Forget(func(wire.UUID) bool { return false }) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPooled(t)
				tc.before(p)
				require.Equal(t, tc.takes, p.take())
			})
		})
	}
}

// A pool grows by itself, in order and soon, or in a round.
func TestPoolsGrowInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPooled(t)
		require.True(t, p.h.MayTake(p.peer, 1))
		require.False(t, p.h.MayTake(p.peer, 2), "leaves a hole")
		p.add(1)
		require.True(t, p.h.MayTake(p.peer, 2))
		time.Sleep(2 * growTime)
		require.False(t, p.h.MayTake(p.peer, 2), "the pool is complete")
		p.h.BeginRound()
		time.Sleep(claimPause)
		require.True(t, p.h.MayTake(p.peer, 2))
	})
}

// A neighbour that says so, over a connection that lives, may open more at any time:
// in order, and where one that it began did not come to be.
func TestPoolsGrowWhenAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPooled(t)
		far := p.add(1)
		time.Sleep(2 * growTime)
		var word [transport.HeaderSize + 1]byte
		transport.Header{Payload: 1, Tag: growTag, Stream: pingStream}.Put((*[transport.HeaderSize]byte)(word[:]))
		_, err := p.far.Write(word[:])
		require.NoError(t, err)
		synctest.Wait()
		require.True(t, p.h.MayTake(p.peer, 2))
		require.False(t, p.h.MayTake(p.peer, 3), "leaves a hole")
		require.False(t, p.h.MayTake(p.peer, 1), "it lives")
		far.Close()
		synctest.Wait()
		require.True(t, p.h.MayTake(p.peer, 1))
		time.Sleep(2 * growTime)
		require.False(t, p.h.MayTake(p.peer, 1), "that was long ago")
	})
}
