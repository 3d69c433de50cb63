package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/errs"
)

// These tests are the same on every system, and so are their results;
// what only one system has is tested in files of its own.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of a TCP connection over loopback, closed at the end of the test.
func pair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	ln, err := Listen(context.Background(), "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	c, err := net.Dial("tcp4", ln.Addr().String())
	require.NoError(t, err)
	s, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// Errors that this system really produced, none with a number of its own.
func TestRealErrorsAreClassified(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		ln, err := Listen(context.Background(), "tcp4", "127.0.0.1:0")
		require.NoError(t, err)
		addr := ln.Addr().String()
		require.NoError(t, ln.Close())
		_, err = net.Dial("tcp4", addr)
		require.Equal(t, ClassRefused, Classify(err), "%v", err) // S0-02
	})
	t.Run("address in use", func(t *testing.T) {
		ln, err := Listen(context.Background(), "tcp4", "127.0.0.1:0")
		require.NoError(t, err)
		defer ln.Close()
		_, err = Listen(context.Background(), "tcp4", ln.Addr().String())
		require.Equal(t, ClassAddrInUse, Classify(err), "%v", err)
	})
	t.Run("reset", func(t *testing.T) {
		c, s := pair(t)
		_, err := c.Write([]byte("xy"))
		require.NoError(t, err)
		_, err = io.ReadFull(s, make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, s.Close()) // with a byte unread
		for err == nil {              // what is written into a broken connection may be taken for a while
			_, err = c.Write([]byte("z"))
		}
		require.Equal(t, ClassReset, Classify(err), "%v", err)
	})
	t.Run("ended", func(t *testing.T) {
		c, s := pair(t)
		require.NoError(t, s.Close())
		_, err := c.Read(make([]byte, 1))
		require.Equal(t, ClassEnded, Classify(err), "%v", err)
	})
	t.Run("timeout", func(t *testing.T) {
		c, _ := pair(t)
		require.NoError(t, c.SetReadDeadline(time.Unix(1, 0)))
		_, err := c.Read(make([]byte, 1))
		require.Equal(t, ClassTimeout, Classify(err), "%v", err)
	})
	t.Run("closed", func(t *testing.T) {
		c, _ := pair(t)
		require.NoError(t, c.Close())
		_, err := c.Read(make([]byte, 1))
		require.Equal(t, ClassClosed, Classify(err), "%v", err)
	})
	t.Run("address unavailable", func(t *testing.T) {
		_, err := Listen(context.Background(), "tcp4", "192.0.2.1:0")
		require.Equal(t, ClassAddrUnavailable, Classify(err), "%v", err)
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := (&net.Dialer{}).DialContext(ctx, "tcp4", "192.0.2.1:9")
		require.Equal(t, ClassCanceled, Classify(fmt.Errorf("dial: %w (%w)", err, ctx.Err())), "%v", err)
	})
}

func TestPortableErrors(t *testing.T) {
	require.Equal(t, ClassNone, Classify(nil))
	require.Equal(t, ClassOther, Classify(errors.New("strange")))
	require.Equal(t, ClassTimeout, Classify(context.DeadlineExceeded))
	require.Equal(t, ClassTimeout, Classify(&net.DNSError{IsTimeout: true}))
	require.Equal(t, ClassPermission, Classify(&os.PathError{Err: os.ErrPermission}))
	require.Equal(t, ClassUnsupported, Classify(errors.ErrUnsupported))
	require.Equal(t, ClassClosed, Classify(io.ErrClosedPipe))
	require.Equal(t, ClassEnded, Classify(io.ErrUnexpectedEOF))
}

// A close wakes a blocked read, every time, and leaves no goroutine.
func TestCloseWakesReaders(t *testing.T) {
	cycles := 10_000
	if testing.Short() {
		cycles = 500
	}
	ln, err := Listen(context.Background(), "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	for i := range cycles {
		c, err := net.Dial("tcp4", ln.Addr().String())
		require.NoError(t, err)
		s, err := ln.Accept()
		require.NoError(t, err)
		entered, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			close(entered)
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
		<-entered
		require.NoError(t, c.Close())
		select {
		case err := <-ended:
			require.Equal(t, ClassClosed, Classify(err), "cycle %d: %v", i, err) // S0-03
		case <-time.After(10 * time.Second):
			t.Fatalf("cycle %d: the reader still sleeps", i)
		}
		// A reset keeps thousands of ports out of TIME_WAIT.
		require.NoError(t, s.(*net.TCPConn).SetLinger(0))
		require.NoError(t, s.Close())
	}
}

// How long a read goes on behind the close that ends it.
func BenchmarkCloseWakesReader(b *testing.B) {
	ln, err := Listen(context.Background(), "tcp4", "127.0.0.1:0")
	require.NoError(b, err)
	defer ln.Close()
	var took []time.Duration
	for b.Loop() {
		c, err := net.Dial("tcp4", ln.Addr().String())
		require.NoError(b, err)
		s, err := ln.Accept()
		require.NoError(b, err)
		ended := make(chan time.Time, 1)
		go func() {
			c.Read(make([]byte, 1))
			ended <- time.Now()
		}()
		time.Sleep(time.Millisecond) // so that it sleeps in the system; a measurement, nothing depends on it
		began := time.Now()
		require.NoError(b, c.Close())
		took = append(took, (<-ended).Sub(began))
		require.NoError(b, s.(*net.TCPConn).SetLinger(0))
		require.NoError(b, s.Close())
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1e3, "p99-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1e3, "max-ms")
}

// What was sent before a half close arrives, then the end of the stream.
func TestHalfCloseDrains(t *testing.T) {
	c, s := pair(t)
	const n = 3<<20 + 17
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, n))
		if err == nil {
			err = c.CloseWrite()
		}
		sent <- err
	}()
	got, err := io.Copy(io.Discard, s)
	require.NoError(t, err)
	require.EqualValues(t, n, got) // S0-04
	require.NoError(t, <-sent)
	// The other direction is still open.
	_, err = s.Write([]byte("ok"))
	require.NoError(t, err)
	b := make([]byte, 2)
	_, err = io.ReadFull(c, b)
	require.NoError(t, err)
}

// A peer that stops reading blocks the sender until its deadline, not longer.
func TestWriteDeadlineFires(t *testing.T) {
	c, _ := pair(t)
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := c.Write(make([]byte, 64<<20))
	require.Equal(t, ClassTimeout, Classify(err), "%v", err) // S0-05
}

// Closing during a write ends the write with one defined outcome.
func TestShutdownDuringWrite(t *testing.T) {
	for _, how := range []string{"close", "half close"} {
		t.Run(how, func(t *testing.T) {
			c, s := pair(t)
			var wg sync.WaitGroup
			started := make(chan struct{})
			var werr error
			wg.Add(1)
			go func() {
				defer wg.Done()
				buf := make([]byte, 1<<20)
				once := sync.OnceFunc(func() { close(started) })
				for werr == nil {
					_, werr = c.Write(buf)
					once()
				}
			}()
			_, err := io.ReadFull(s, make([]byte, 1<<20))
			require.NoError(t, err)
			<-started
			if how == "close" {
				require.NoError(t, c.Close())
			} else {
				require.NoError(t, c.CloseWrite())
				// A writer that was blocked learns of it when there is room.
				_, _ = io.Copy(io.Discard, s)
			}
			wg.Wait()
			require.Contains(t, []Class{ClassClosed, ClassReset}, Classify(werr), "%v", werr) // S0-06
		})
	}
}

func TestTuneAcceptsEveryConn(t *testing.T) {
	c, s := pair(t)
	require.NoError(t, TuneMaster(c))
	require.NoError(t, TuneP2P(s, Options{Congestion: CongestionAuto}))
	require.NoError(t, TuneP2P(s, Options{UserTimeout: -1, KeepAliveIdle: -1}))
	QuickAcker(c)()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	require.NoError(t, TuneMaster(a))
	QuickAcker(a)()
	require.Empty(t, Congestion(a))

	require.NoError(t, c.Close())
	require.Equal(t, errs.Internal, errs.CodeOf(TuneMaster(c)), "a closed connection cannot be tuned")
	QuickAcker(c)()
	require.Empty(t, Congestion(c))
}

func TestUnknownCongestionControlIsAnError(t *testing.T) {
	c, _ := pair(t)
	err := TuneP2P(c, Options{Congestion: "no-such-control"})
	require.ErrorIs(t, err, errs.InvalidConfig)
}

// Control spec, section 1.1: a taken port moves the search to the next one.
func TestListenFromBumps(t *testing.T) {
	ctx := context.Background()
	first, err := Listen(ctx, "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer first.Close()
	at := first.Addr().(*net.TCPAddr).AddrPort()
	second, err := ListenFrom(ctx, "tcp4", at, 200)
	require.NoError(t, err)
	defer second.Close()
	require.Greater(t, second.Addr().(*net.TCPAddr).Port, int(at.Port()))

	_, err = ListenFrom(ctx, "tcp4", at, 1)
	require.ErrorIs(t, err, errs.InvalidUsage)
	require.Equal(t, ClassAddrInUse, Classify(err))
	// An error that the next port would meet as well ends the search.
	_, err = ListenFrom(ctx, "tcp4", netip.MustParseAddrPort("192.0.2.1:20000"), 1<<16)
	require.Equal(t, ClassAddrUnavailable, Classify(err))
}

// A port can be taken again right after its connections were closed, and a
// peer that restarts may have to.
func TestListenAgainAtOnce(t *testing.T) {
	ln, err := Listen(context.Background(), "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	c, err := net.Dial("tcp4", ln.Addr().String())
	require.NoError(t, err)
	s, err := ln.Accept()
	require.NoError(t, err)
	require.NoError(t, s.Close()) // the server's side closes first and waits in TIME_WAIT
	_, _ = io.Copy(io.Discard, c)
	require.NoError(t, c.Close())
	require.NoError(t, ln.Close())
	again, err := Listen(context.Background(), "tcp4", ln.Addr().String())
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestOpenHandlesCounts(t *testing.T) {
	before, err := OpenHandles()
	if errors.Is(err, errors.ErrUnsupported) {
		return
	}
	require.NoError(t, err)
	var files []*os.File
	for range 20 {
		f, err := os.Open(os.DevNull)
		require.NoError(t, err)
		files = append(files, f)
	}
	during, err := OpenHandles()
	require.NoError(t, err)
	for _, f := range files {
		require.NoError(t, f.Close())
	}
	require.GreaterOrEqual(t, during, before+20)
}
