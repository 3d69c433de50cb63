package master

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// announce is the beginning of a packet of n bytes.
func announce(n int) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(n)), 0, 8)
}

// A client that was not let in has nothing large to say, however it registered.
func TestLargePacketOfWhoWaits(t *testing.T) {
	h := serve(t, Options{})
	h.grow(nil, wire.Ext{})
	bad := h.register(wire.Ext{})
	_, err := bad.nc.Write(announce(waitingLimit + 1))
	require.NoError(t, err)
	bad.closed()
	require.Contains(t, h.fact("malformed").Text, "above the limit of 65536")
}

// A packet that does not go on ends the connection, and frees what it held.
func TestUnfinishedPackets(t *testing.T) {
	for name, n := range map[string]int{"waiting": 40 << 10, "member": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, Options{packetTime: 100 * time.Millisecond})
			rs := h.grow(nil, wire.Ext{})
			bad := h.register(wire.Ext{})
			if name == "member" {
				rs[0].send(wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true})
				together([]*raw{rs[0], bad}, func(r *raw) { r.round() })
			}
			_, err := bad.nc.Write(append(announce(n), make([]byte, n/2)...))
			require.NoError(t, err)
			bad.closed()
			require.Contains(t, h.fact("left").Text, fmt.Sprintf("no more of a packet of %d bytes arrived", n))
			for _, a := range []*allowance{&h.s.members.intake, &h.s.others.intake} {
				a.mu.Lock()
				require.Zero(t, a.lent)
				a.mu.Unlock()
			}
		})
	}
}

// A large packet that goes on, slowly, is read.
func TestSlowLargePacket(t *testing.T) {
	h := serve(t, Options{packetTime: 3 * time.Second})
	r := h.grow(nil, wire.Ext{})[0]
	vote := wire.Append(nil, wire.C2MSyncSharedState{Entries: []wire.StateEntry{{Key: strings.Repeat("k", 1<<20)}}})
	for len(vote) > 0 {
		n := min(2*paceStep, len(vote))
		_, err := r.nc.Write(vote[:n])
		require.NoError(t, err)
		vote = vote[n:]
		time.Sleep(5 * time.Millisecond) // a slow link
	}
	require.False(t, recv[wire.M2CSyncSharedState](r).IsOutdated)
}

func TestAllowance(t *testing.T) {
	a := &allowance{all: 100}
	over := make(chan struct{})
	none := func() {}
	require.Equal(t, 60, a.take(60, over, none))
	given := make(chan int, 2)
	waits := func(n, place int, over chan struct{}) {
		go func() { given <- a.take(n, over, none) }()
		for {
			a.mu.Lock()
			have := len(a.queue)
			a.mu.Unlock()
			if have == place {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	first := make(chan struct{})
	waits(50, 1, first)
	waits(10, 2, over) // would fit, and comes later
	require.Empty(t, given)
	close(first)
	require.ElementsMatch(t, []int{0, 10}, []int{<-given, <-given})
	a.give(60)
	a.give(10)
	require.Zero(t, a.lent)
	require.Equal(t, 100, a.take(1000, over, none), "what is larger than all gets all")
	waits(1, 1, over)
	close(over)
	require.Zero(t, <-given)
	a.give(100)
	require.Zero(t, a.lent)
}

// idle is a server without goroutines, with clients that read nothing.
func idle(t *testing.T, n int) (*Server, []*conn) {
	s, err := New(Options{})
	require.NoError(t, err)
	var cs []*conn
	for i := range n {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		c := &conn{id: fsm.ClientID(i), nc: a, over: make(chan struct{})}
		c.out.ready, c.out.book = make(chan struct{}, 1), &s.others.queued
		s.machine.conns[c.id] = c
		cs = append(cs, c)
	}
	return s, cs
}

// unread is a connection whose other end reads nothing.
type unread struct {
	net.Conn
	late chan struct{} // closed at the deadline of writes
}

func (u *unread) SetWriteDeadline(at time.Time) error {
	if !at.IsZero() {
		close(u.late)
	}
	return nil
}

func (u *unread) CloseWrite() error {
	<-u.late
	return os.ErrDeadlineExceeded
}

// In TLS the end of what is said to a member is written, too: it waits for a member that reads
// nothing no longer than what came before it.
func TestLingerHasABound(t *testing.T) {
	_, cs := idle(t, 1)
	c := cs[0]
	c.standing.Store(member)
	c.nc = &unread{c.nc, make(chan struct{})}
	c.out.last, c.out.until = true, time.Now()
	c.linger(t.Context(), nil)
}

// refusing is a connection whose writes fail.
type refusing struct {
	net.Conn
	err    error
	closed atomic.Bool
}

func (r *refusing) Write([]byte) (int, error) { return 0, r.err }

func (r *refusing) Close() error {
	r.closed.Store(true)
	return r.Conn.Close()
}

// resetError returns what this system says of a write to somebody who has closed.
func resetError(t *testing.T) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer near.Close()
	far, err := ln.Accept()
	require.NoError(t, err)
	require.NoError(t, far.(*net.TCPConn).SetLinger(0))
	require.NoError(t, far.Close())
	near.SetWriteDeadline(time.Now().Add(20 * time.Second))
	for err == nil {
		_, err = near.Write([]byte{0})
	}
	require.Equal(t, platform.ClassReset, platform.Classify(err), "%v", err)
	return err
}

// A peer that has said farewell and closed may be written to before its farewell is read: the
// write fails, and the socket stays open until the reader is done, for farewell at most.
func TestAFailedWriteLeavesTimeToRead(t *testing.T) {
	reset := resetError(t)
	for name, tc := range map[string]struct {
		err         error
		waits, ends bool
	}{
		"the reader ends":        {reset, true, true},
		"the reader never ends":  {reset, true, false},
		"a member does not read": {os.ErrDeadlineExceeded, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, cs := idle(t, 1)
			c := cs[0]
			nc := &refusing{Conn: c.nc, err: tc.err}
			c.nc = nc
			c.out.add(wire.M2CHeartbeat{}, s.opt.MaxQueue)
			done, written := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(written)
				s.write(t.Context(), c, done)
			}()
			synctest.Wait()
			require.Equal(t, !tc.waits, nc.closed.Load(), name)
			began := time.Now()
			if tc.ends {
				close(done)
			}
			<-written
			require.True(t, nc.closed.Load(), name)
			if tc.waits && !tc.ends {
				require.Equal(t, farewell, time.Since(began), name) // of the bubble's clock
			} else {
				require.Zero(t, time.Since(began), name)
			}
		})
	}
}

// Bytes that wait for clients which were not let in are bounded: the clients for
// which most wait go first. Members do not pay for it.
func TestShedding(t *testing.T) {
	s, cs := idle(t, 10)
	s.others.queued.limit = 1 << 20
	s.step(t.Context(), fsm.Tick{})
	cs[0].standing.Store(member)
	cs[0].out.move(&s.members.queued)
	show := wire.M2CTopology{Groups: []wire.GroupTopology{{Mbps: make([]float64, 10000)}}}
	for range 20 {
		s.send(fsm.Send{Client: 0, Packet: show})
	}
	s.send(fsm.Send{Client: 1, Packet: show})
	for range 3 {
		for i := 2; i < 10; i++ {
			s.send(fsm.Send{Client: fsm.ClientID(i), Packet: show})
		}
	}
	require.LessOrEqual(t, s.others.queued.bytes.Load(), s.others.queued.limit)
	require.Nil(t, cs[0].why.Load())
	require.Nil(t, cs[1].why.Load(), "one with less than the others had to go")
	gone := 0
	for _, c := range cs[2:] {
		if why := c.why.Load(); why != nil {
			gone++
			require.Contains(t, *why, "does not read")
			n, _ := c.out.held()
			require.Zero(t, n)
		}
	}
	require.Positive(t, gone)
	for _, c := range cs {
		c.out.discard()
	}
	require.Zero(t, s.others.queued.bytes.Load())
	require.Zero(t, s.members.queued.bytes.Load())
}

// One answer with the topology is on its way; a question that comes meanwhile
// is put when it has been taken.
func TestOneAnswerAtATime(t *testing.T) {
	_, cs := idle(t, 1)
	q := &cs[0].out
	require.True(t, q.mayAsk())
	require.True(t, q.add(wire.M2CTopology{}, 1<<20))
	require.False(t, q.mayAsk())
	require.False(t, q.mayAsk())
	b, last, again := q.take(nil)
	require.NotEmpty(t, b)
	require.False(t, last || again)
	require.False(t, q.mayAsk(), "it is taken, and not written")
	q.wrote(len(b))
	_, _, again = q.take(b)
	require.True(t, again)
	_, _, again = q.take(nil)
	require.False(t, again)
	require.True(t, q.mayAsk())
}

// A client that is closed has one bound for all that it has not read.
func TestFarewellIsShort(t *testing.T) {
	s, cs := idle(t, 1)
	a, b := net.Pipe()
	defer b.Close()
	c := cs[0]
	c.nc = a
	for c.out.size < 4<<20 {
		require.True(t, c.out.add(wire.M2CPeerDropped{Reason: strings.Repeat("r", 1<<16)}, 64<<20))
	}
	c.out.finish(a)
	go func() {
		s.write(t.Context(), c, nil)
		a.Close()
	}()
	got := 0
	for buf := make([]byte, 64<<10); ; {
		n, err := io.ReadFull(b, buf)
		got += n
		if err != nil {
			break
		}
		time.Sleep(farewell / 8) // reads something, each time before the bound of one write
	}
	require.Less(t, got, 2<<20, "it was waited for")
	require.Zero(t, s.others.queued.bytes.Load())
	require.NotEmpty(t, bytes.TrimSpace([]byte(*c.why.Load())))
}
