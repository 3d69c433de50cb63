package master

import (
	"context"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// refusing is a connection whose writes fail.
type refusing struct {
	net.Conn
	err    error
	closed atomic.Bool
}

func (r *refusing) Write([]byte) (int, error)        { return 0, &net.OpError{Op: "write", Err: r.err} }
func (r *refusing) SetWriteDeadline(time.Time) error { return nil }
func (r *refusing) Close() error                     { r.closed.Store(true); return nil }

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
	far.(*net.TCPConn).SetLinger(0)
	far.Close()
	near.SetWriteDeadline(time.Now().Add(20 * time.Second))
	for err == nil {
		_, err = near.Write([]byte{0})
	}
	require.Equal(t, platform.ClassReset, platform.Classify(err), "%v", err)
	return err
}

// A peer that has said farewell and closed may be written to before its farewell is read:
// the write fails, and the socket stays open until the reader is done.
func TestAFailedWriteLeavesTimeToRead(t *testing.T) {
	for _, tc := range []struct {
		name  string
		err   error
		waits bool
	}{
		{"reset", resetError(t), true},
		{"does not read", os.ErrDeadlineExceeded, false},
	} {
		for _, ends := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(Options{})
				require.NoError(t, err)
				nc := &refusing{err: tc.err}
				c := &conn{nc: nc, over: make(chan struct{})}
				c.out.ready, c.out.book = make(chan struct{}, 1), &s.others.queued
				c.out.add(wire.M2CHeartbeat{}, s.opt.MaxQueue)
				done, written := make(chan struct{}), make(chan struct{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					defer close(written)
					s.write(ctx, c, done)
				}()
				synctest.Wait()
				require.Equal(t, !tc.waits, nc.closed.Load(), tc.name)
				if ends {
					close(done)
				} else {
					time.Sleep(farewell) // a reader that never ends holds nobody up
				}
				<-written
				require.True(t, nc.closed.Load(), tc.name)
			})
		}
	}
}
