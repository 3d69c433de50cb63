package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal is a data path that notes what happens to it.
type journal struct {
	mu      sync.Mutex
	lines   []string
	early   bool   // nobody may take a place at once
	refuses bool   // ... nor later
	sends   bool   // there is a connection to everybody
	busy    bool   // ... which an operation uses
	full    uint32 // from which number of a pool on there is no place; 0: there always is
	conns   []net.Conn
}

func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) read() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string{}, j.lines...)
}

func (j *journal) keep(conn net.Conn) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.conns = append(j.conns, conn)
}

func (j *journal) AddSender(_ wire.UUID, number uint32, conn net.Conn, features link.Features) error {
	if j.full > 0 && number >= j.full {
		j.note("no place for sender %d", number)
		conn.Close()
		return errors.New("no place")
	}
	j.note("sender %d native=%v", number, features.Native)
	j.keep(conn)
	return nil
}

func (j *journal) AddReceiver(_ wire.UUID, number uint32, conn net.Conn) {
	j.note("receiver %d", number)
	j.keep(conn)
}

func (j *journal) MayTake(wire.UUID, uint32) bool { return !j.early }

func (j *journal) AwaitPlace(_ context.Context, _ wire.UUID, number uint32, fill bool) bool {
	j.note("await %d, those below it %v", number, fill)
	return !j.refuses
}

func (j *journal) PingSenders(_ context.Context, u wire.UUID) int { return j.LiveSenders(u) }

func (j *journal) LiveSenders(wire.UUID) int {
	if j.sends {
		return 1
	}
	return 0
}

func (j *journal) Sends(wire.UUID) bool   { return j.busy }
func (j *journal) Wanted(wire.UUID) int   { return 0 }
func (j *journal) Announce(wire.UUID) int { return 0 }
func (j *journal) Refused(wire.UUID, int) {}

func (j *journal) Retain(send, recv func(wire.UUID) bool) {
	j.note("keep senders to %v, receivers %v", send(wire.UUID{2}), recv == nil || recv(wire.UUID{2}))
}

func (j *journal) Between(on bool) { j.note("between %v", on) }

// open returns a mesh on the loopback that runs until the end of the test.
func open(t *testing.T, self wire.UUID, j *journal, change ...func(*Config)) (*Mesh, wire.PeerEndpoint) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cfg := Config{
		Pools: j, Between: j.Between, Self: func() wire.UUID { return self }, Listener: ln, PoolSize: 1,
		DialTimeout: time.Minute, HandshakeTimeout: time.Minute, Log: slog.New(slog.DiscardHandler),
		Crash: func(err *errs.Error) { t.Errorf("%v\n%s", err, errs.StackOf(err)) },
	}
	for _, f := range change {
		f(&cfg)
	}
	m := New(ctx, cfg)
	var runs sync.WaitGroup
	runs.Go(m.Run)
	t.Cleanup(func() {
		cancel()
		m.Close()
		m.Wait()
		runs.Wait()
		for _, c := range j.conns {
			c.Close()
		}
	})
	return m, wire.PeerEndpoint{UUID: self, Addr: netip.MustParseAddrPort(ln.Addr().String())}
}

// said is a connection whose writes are noted.
type said struct {
	net.Conn
	j *journal
}

func (s said) Write(b []byte) (int, error) {
	s.j.note("answer")
	return s.Conn.Write(b)
}

// greeted lets a connection in that says hello, and returns what it was answered.
func greeted(t *testing.T, m *Mesh, j *journal, hello wire.P2PHello) (wire.Packet, error) {
	near, far := net.Pipe()
	t.Cleanup(func() { far.Close() })
	m.Accept(said{near, j})
	_, err := far.Write(wire.Append(nil, hello))
	require.NoError(t, err)
	return wire.Read(far, wire.P2P, 1<<10)
}

// The reader of a connection is in place before the answer: data may follow it at once.
func TestReaderIsInPlaceBeforeTheAnswer(t *testing.T) {
	var j journal
	m, _ := open(t, wire.UUID{1}, &j)
	ack, err := greeted(t, m, &j, wire.P2PHello{UUID: wire.UUID{2}, Ext: wire.Ext{Native: true, Flows: wire.FlowsAhead}})
	require.NoError(t, err)
	require.Equal(t, wire.P2PHelloAck{Ext: wire.Ext{Native: true, Flows: wire.FlowsAhead, Session: m.number}}, ack)
	require.Equal(t, []string{"receiver 0", "answer"}, j.read())

	ack, err = greeted(t, m, &j, wire.P2PHello{UUID: wire.UUID{2}, Ext: wire.Ext{Native: true, Collectives: 1}})
	require.NoError(t, err)
	require.Equal(t, wire.P2PHelloAck{Ext: wire.Ext{Native: true, Session: m.number, Collectives: 1}}, ack)

	ack, err = greeted(t, m, &j, wire.P2PHello{UUID: wire.UUID{2}})
	require.NoError(t, err)
	require.Equal(t, wire.P2PHelloAck{}, ack, "what PCCL would not understand is not said to it")
}

// What has no place in a pool is refused before anybody makes room for it, and
// what is meant for another session. Quirk Q25.
func TestHellosThatAreRefused_Q25(t *testing.T) {
	for name, hello := range map[string]wire.P2PHello{
		"first number beyond a pool": {UUID: wire.UUID{2}, Number: MaxPool},
		"last number there is":       {UUID: wire.UUID{2}, Number: 1<<32 - 1, Ext: wire.Ext{Native: true}},
		"another session":            {UUID: wire.UUID{2}, Ext: wire.Ext{Native: true, Session: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var j journal
			m, _ := open(t, wire.UUID{1}, &j)
			m.number = 2
			_, err := greeted(t, m, &j, hello)
			require.ErrorIs(t, err, io.EOF)
			require.Empty(t, j.read())
		})
	}
}

// A gopccl peer that is early waits for its place and for the numbers below it. One
// of PCCL waits for the place alone: a hole is the data path's to refuse, as PCCL
// does, since waiting would not help it.
func TestEarlyConnectionsWait(t *testing.T) {
	j := journal{early: true}
	m, _ := open(t, wire.UUID{1}, &j)
	_, err := greeted(t, m, &j, wire.P2PHello{UUID: wire.UUID{2}, Number: 3, Ext: wire.Ext{Native: true}})
	require.NoError(t, err)
	require.Equal(t, []string{"await 3, those below it true", "receiver 3", "answer"}, j.read())

	pccl := journal{early: true}
	m, _ = open(t, wire.UUID{1}, &pccl)
	_, err = greeted(t, m, &pccl, wire.P2PHello{UUID: wire.UUID{2}, Number: 3})
	require.NoError(t, err)
	require.Equal(t, []string{"await 3, those below it false", "receiver 3", "answer"}, pccl.read())

	late := journal{early: true, refuses: true}
	m, _ = open(t, wire.UUID{1}, &late)
	_, err = greeted(t, m, &late, wire.P2PHello{UUID: wire.UUID{2}, Ext: wire.Ext{Native: true}})
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []string{"await 0, those below it true"}, late.read())
}

// A pool begins with number 0 when everything that was sent there before is
// closed, and its connections come in order although they are opened together.
// The other operations are told before and afterwards. Quirk Q17.
func TestPoolsAreMadeAnewFromZero_Q17(t *testing.T) {
	var near, far journal
	a, _ := open(t, wire.UUID{1}, &near, func(c *Config) { c.PoolSize = 6 })
	_, b := open(t, wire.UUID{2}, &far)
	require.Empty(t, a.Establish(context.Background(), []wire.PeerEndpoint{b}, nil))
	want := []string{"between true", "keep senders to false, receivers true"}
	for n := range 6 {
		want = append(want, fmt.Sprintf("sender %d native=true", n))
	}
	require.Equal(t, append(want, "keep senders to true, receivers true", "between false"), near.read())
	require.ElementsMatch(t, []string{"receiver 0", "receiver 1", "receiver 2", "receiver 3", "receiver 4", "receiver 5"}, far.read())
}

// A pool without one of its connections is none, and who dialled hears of it. Those behind the gap, which
// are opened together with it, are offered to nobody.
func TestPoolsHaveNoGaps(t *testing.T) {
	near, far := journal{full: 2}, journal{}
	a, _ := open(t, wire.UUID{1}, &near, func(c *Config) { c.PoolSize = 6 })
	_, b := open(t, wire.UUID{2}, &far)
	require.Equal(t, []wire.UUID{{2}}, a.Prepare(context.Background(), []wire.PeerEndpoint{b}))
	require.Equal(t, []string{
		"keep senders to false, receivers true",
		"sender 0 native=true", "sender 1 native=true", "no place for sender 2",
	}, near.read())
}

// The other members of a group that are near get one connection each, whatever the pools to the
// neighbours have; those that have one keep it.
func TestMembersGetOneConnection(t *testing.T) {
	var near, far journal
	a, _ := open(t, wire.UUID{1}, &near, func(c *Config) { c.PoolSize = 6 })
	_, b := open(t, wire.UUID{2}, &far)
	nobody := wire.PeerEndpoint{UUID: wire.UUID{3}, Addr: netip.MustParseAddrPort("127.0.0.1:1")}
	require.Equal(t, []wire.UUID{{3}}, a.Connect(context.Background(), []wire.PeerEndpoint{b, nobody}))
	require.Equal(t, []string{"sender 0 native=true"}, near.read())
	near.sends = true
	require.Empty(t, a.Connect(context.Background(), []wire.PeerEndpoint{b, nobody}))
	require.Equal(t, []string{"sender 0 native=true"}, near.read())
	require.Equal(t, []string{"receiver 0"}, far.read())
}

// A member that becomes a neighbour gets the rest of its pool beside the connection that
// it has, which a collective may use meanwhile.
func TestMembersBecomeNeighbours(t *testing.T) {
	for _, busy := range []bool{false, true} {
		var near, far journal
		a, _ := open(t, wire.UUID{1}, &near, func(c *Config) { c.PoolSize = 3 })
		_, b := open(t, wire.UUID{2}, &far)
		require.Empty(t, a.Connect(context.Background(), []wire.PeerEndpoint{b}))
		near.sends, near.busy = true, busy
		require.Empty(t, a.Prepare(context.Background(), []wire.PeerEndpoint{b}))
		require.Equal(t, []string{"sender 0 native=true", "sender 1 native=true", "sender 2 native=true"}, near.read())
	}
}

// A round drops the connections of peers that have left, and leaves those of the mesh.
func TestRoundsKeepMembers(t *testing.T) {
	var near journal
	a, _ := open(t, wire.UUID{1}, &near)
	require.Empty(t, a.Establish(context.Background(), nil, []wire.UUID{{2}}))
	require.Empty(t, a.Establish(context.Background(), nil, []wire.UUID{{3}}))
	require.Equal(t, []string{
		"between true", "keep senders to true, receivers true", "between false",
		"between true", "keep senders to false, receivers false", "between false",
	}, near.read())
}

// A PCCL peer is told its numbers one after the other: each is dialled when the
// one before has been answered. Quirk Q25.
func TestPCCLPeersAreDialledInTurn_Q25(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	var j journal
	m, _ := open(t, wire.UUID{1}, &j, func(c *Config) {
		c.PoolSize = 5
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			j.note("dial")
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if p, err := wire.Read(conn, wire.P2P, 1<<10); err == nil {
				j.note("hello %d", p.(wire.P2PHello).Number)
				conn.Write(wire.Append(nil, wire.P2PHelloAck{}))
			}
		}
	})
	there := wire.PeerEndpoint{UUID: wire.UUID{2}, Addr: netip.MustParseAddrPort(ln.Addr().String())}
	require.Empty(t, m.Prepare(context.Background(), []wire.PeerEndpoint{there}))
	want := []string{"keep senders to false, receivers true"}
	for n := range 5 {
		want = append(want, "dial", fmt.Sprintf("hello %d", n), fmt.Sprintf("sender %d native=false", n))
	}
	require.Equal(t, want, j.read())
	ln.Close()
	served.Wait()
}

// A trial tells who cannot be reached, and leaves nothing behind at either end.
func TestTryLeavesNothingBehind(t *testing.T) {
	var near, far journal
	a, _ := open(t, wire.UUID{1}, &near)
	_, b := open(t, wire.UUID{2}, &far)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := wire.PeerEndpoint{UUID: wire.UUID{3}, Addr: netip.MustParseAddrPort(ln.Addr().String())}
	ln.Close()
	require.Equal(t, []wire.UUID{{3}}, a.Try(wire.UUID{1}, []wire.PeerEndpoint{b, nobody}))
	require.Empty(t, near.read())
	require.Empty(t, far.read())
}

// Who answers at an address that a neighbour has named says the number of its
// session; somebody else's answer there sends the connection the master's way.
func TestAnotherPeerAtANamedAddress(t *testing.T) {
	var near, far, other journal
	a, _ := open(t, wire.UUID{1}, &near, func(c *Config) { c.PoolSize = 3 })
	_, wrong := open(t, wire.UUID{9}, &other)
	b, there := open(t, wire.UUID{2}, &far)
	ack := wire.P2PHelloAck{Ext: wire.Ext{Native: true, Session: b.number, Addresses: []netip.AddrPort{wrong.Addr}}}
	ways := a.ways(there, ack)
	require.Len(t, ways, 2)
	conn, got, err := a.dialWay(context.Background(), there, 1, ways)
	require.NoError(t, err)
	defer conn.Close()
	require.Equal(t, b.number, got.Ext.Session)
	require.True(t, ways[1].dead.Load(), "nobody takes it again")
	require.Equal(t, []string{"receiver 1"}, far.read())
	require.Empty(t, other.read())
}

func TestDialable(t *testing.T) {
	good := netip.MustParseAddrPort("10.0.0.1:7")
	require.Equal(t, []netip.AddrPort{good}, Dialable([]netip.AddrPort{{}, good, netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort("0.0.0.0:7")}))
}

// late is a connection whose first read takes one byte and then blocks until a deadline passes, so
// that the rest of the answer has arrived and stays unread.
type late struct {
	*net.TCPConn
	came chan struct{}   // closed when something has come
	ends context.Context // when a deadline has passed
	end  context.CancelFunc
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.TCPConn.Read(p[:1])
	if err != nil || l.ends.Err() != nil {
		return n, err
	}
	close(l.came)
	<-l.ends.Done()
	return 0, os.ErrDeadlineExceeded
}

func (l *late) SetDeadline(at time.Time) error {
	err := l.TCPConn.SetDeadline(at)
	if !at.IsZero() && at.Before(time.Now()) {
		l.end()
	}
	return err
}

// If a handshake is cancelled when its answer has arrived unread, the other end sees an orderly end
// of the connection and no reset: it has the connection in a pool by then, and a reset would fail the
// next operation.
func TestHandshakesAreGivenUpInOrder(t *testing.T) {
	var near, far journal
	came := make(chan struct{})
	a, _ := open(t, wire.UUID{1}, &near, func(c *Config) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			l := &late{TCPConn: conn.(*net.TCPConn), came: came}
			l.ends, l.end = context.WithCancel(context.Background())
			return l, nil
		}
	})
	_, b := open(t, wire.UUID{2}, &far)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-came; cancel() }()
	require.Equal(t, []wire.UUID{{2}}, a.Establish(ctx, []wire.PeerEndpoint{b}, nil))
	require.Equal(t, []string{"receiver 0"}, far.read())
	_, err := far.conns[0].Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	far.conns[0].Close()
	a.growing.wg.Wait() // the other end has ended it, too
}

// stuck is a connection on which setting a past deadline blocks until past is closed.
type stuck struct {
	net.Conn
	past chan struct{}
}

func (s stuck) SetDeadline(at time.Time) error {
	if !at.IsZero() && at.Before(time.Now()) {
		<-s.past
	}
	return nil
}

// A cancelled handshake returns only after the deadline that cancels it has been set. Set later, it
// would cut short what follows on the connection.
func TestNoDeadlineIsLeftBehind(t *testing.T) {
	for _, fails := range []error{nil, io.EOF} {
		m := &Mesh{cfg: Config{HandshakeTimeout: time.Minute}}
		ctx, cancel := context.WithCancel(context.Background())
		s, over := stuck{past: make(chan struct{})}, make(chan error, 1)
		go func() {
			over <- m.handshake(ctx, s, func() error {
				cancel()
				return fails
			})
		}()
		for range 100 {
			runtime.Gosched()
			require.Empty(t, over)
		}
		close(s.past)
		require.ErrorIs(t, <-over, cmp.Or(fails, context.Canceled))
	}
}
