package peer

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/sharedstate"
)

// A master that has stopped reading holds up no call: packets that it does not take are
// written by a goroutine, and a caller that gives up, or closes, has an answer.
func TestStoppedMasterHoldsUpNobody(t *testing.T) {
	s := newScript(t)
	sess := s.welcome()
	s.conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	st := &SharedState{} // its description is more than sockets hold
	for i := range 40_000 {
		st.Tensors = append(st.Tensors, sharedstate.Tensor{Key: string(rune(0x4e00+i%20000)) + string(rune(0x100+i/20000)) + string(make([]byte, 200)), DType: dtype.Uint8})
	}
	given, giveUp := context.WithCancel(ctx)
	synced := make(chan error, 1)
	go func() {
		_, err := sess.SyncSharedState(given, st, SyncOptions{})
		synced <- err
	}()
	require.Eventually(t, func() bool { // it waits for the master to read
		sess.master.conn().mu.Lock()
		defer sess.master.conn().mu.Unlock()
		return sess.master.conn().writes
	}, time.Minute, time.Millisecond)
	asked, stop := context.WithCancel(ctx)
	pending := make(chan error, 1)
	go func() {
		_, err := sess.PeersPending(asked)
		pending <- err
	}()
	require.Eventually(t, func() bool { return sess.State().Calls == 2 }, time.Minute, time.Millisecond)
	stop()
	require.ErrorIs(t, <-pending, errs.Canceled)
	sess.master.conn().mu.Lock()
	require.True(t, sess.master.conn().writes, "the master took it after all, which proves nothing")
	sess.master.conn().mu.Unlock()
	giveUp()
	require.ErrorIs(t, <-synced, errs.Canceled)
	require.NoError(t, sess.Close())
	require.NoError(t, ctx.Err())
}

// The end of the context while the master is dialled is what Connect reports.
func TestConnectCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	opt := Options{Master: "192.0.2.1:9", PortBase: -1, Backend: "none", Network: Network{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}}}
	_, err := Connect(ctx, opt)
	require.Equal(t, errs.Canceled, errs.CodeOf(err), err)
	opt.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
	_, err = Connect(context.Background(), opt)
	require.Equal(t, errs.MasterConnectionFailed, errs.CodeOf(err), err)
}

// bounded is a connection that says its end only if that has a bound.
type bounded struct {
	net.Conn
	t        *testing.T
	deadline time.Time
	ended    bool
}

func (b *bounded) SetWriteDeadline(at time.Time) error {
	b.deadline = at
	return b.Conn.SetWriteDeadline(at)
}

func (b *bounded) CloseWrite() error {
	b.ended = true
	require.False(b.t, b.deadline.IsZero(), "a master that does not read would hold it up for ever")
	return nil
}

// In TLS the end of the stream is written, so it has a bound, on an idle connection, too.
func TestEndOfMasterConnIsBounded(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	b := &bounded{Conn: near, t: t}
	mc := newMasterConn(b)
	mc.close()
	require.True(t, b.ended)
}
