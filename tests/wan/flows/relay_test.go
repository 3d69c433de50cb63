package main

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What goes over a long way arrives whole and in order, with both ends closed
// behind it.
func TestHopCarriesAll(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	sent := make([]byte, 300_001)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(sent)
	got := make(chan []byte, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c)
		got <- b
	}()
	c, err := hop{delay: time.Millisecond, window: 64 << 10}.dial(context.Background(), &net.Dialer{}, ln.Addr().String())
	require.NoError(t, err)
	_, err = c.Write(sent)
	require.NoError(t, err)
	c.Close()
	require.True(t, bytes.Equal(sent, <-got))
}

// tap asks, when the first bytes are through, how many were taken in.
type tap struct {
	src   *endless
	taken int64
}

func (w *tap) Write(p []byte) (int, error) {
	if w.taken == 0 {
		w.taken = w.src.n.Load()
		w.src.stop.Store(true)
	}
	return len(p), nil
}

func (w *tap) Close() error { return nil }

type endless struct {
	n    atomic.Int64
	stop atomic.Bool
}

func (e *endless) Read(p []byte) (int, error) {
	if e.stop.Load() {
		return 0, io.EOF
	}
	e.n.Add(int64(len(p)))
	return len(p), nil
}

// No more than the window is taken in before the first byte is through.
func TestHopWindow(t *testing.T) {
	src := &endless{}
	dst := &tap{src: src}
	require.NoError(t, hop{delay: 20 * time.Millisecond, window: 64 << 10}.carry(dst, src))
	require.EqualValues(t, 64<<10, dst.taken)
}
