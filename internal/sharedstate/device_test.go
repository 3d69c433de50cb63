package sharedstate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// card is a device of this process: its memory are slices, which pass in small
// pieces. fails names the call that fails.
type card struct {
	device.Platform

	mu     sync.Mutex
	memory map[uint64][]byte
	fails  string
	stuck  string        // the call that waits for a stream that never comes
	waits  chan struct{} // gets one from each that waits so
	open   int
	hashes atomic.Int64 // calls
}

var errBroken = errs.New(errs.DeviceFailed, "touch the device", errors.New("a bolt came loose"))

func newCard(t testing.TB) *card {
	c := &card{memory: map[uint64][]byte{}, waits: make(chan struct{}, 16)}
	t.Cleanup(device.Replace("card", c))
	return c
}

// take returns ts with copies of the content on the card.
func (c *card) take(ts []Tensor) []Tensor {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := append([]Tensor(nil), ts...)
	for i := range out {
		ptr := uint64(len(c.memory)+1) << 32
		c.memory[ptr] = append([]byte(nil), out[i].Data...)
		out[i].Device = device.Buffer{Platform: "card", Ptr: ptr, Bytes: len(out[i].Data)}
		out[i].Data = nil
	}
	return out
}

func (c *card) at(ptr uint64) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory[ptr]
}

func (c *card) content(t Tensor) []byte { return c.at(t.Device.Ptr) }

// fail makes the call of that name fail.
func (c *card) fail(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = name
}

// idle waits until every flow is closed.
func (c *card) idle(t testing.TB) {
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.open == 0
	}, time.Minute, time.Millisecond)
}

func (c *card) call(ctx context.Context, name string) error {
	c.mu.Lock()
	if c.stuck == name {
		c.mu.Unlock()
		c.waits <- struct{}{}
		<-ctx.Done()
		return errs.New(errs.Canceled, "wait for the stream", context.Cause(ctx))
	}
	defer c.mu.Unlock()
	if c.fails == name {
		return errBroken
	}
	return nil
}

func (c *card) count(d int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open += d
}

func (c *card) HashAll(ctx context.Context, bufs []device.Buffer) (sums []uint32, failed int, err error) {
	c.hashes.Add(1)
	for _, b := range bufs {
		sums = append(sums, digest.SimpleHash(c.at(b.Ptr)))
	}
	return sums, len(bufs) - 1, c.call(ctx, "hash")
}

func (c *card) Read(ctx context.Context, b device.Buffer) (device.Source, error) {
	if err := c.call(ctx, "read"); err != nil {
		return nil, err
	}
	c.count(1)
	return &cardFlow{c: c, left: c.at(b.Ptr)}, nil
}

func (c *card) Write(ctx context.Context, b device.Buffer) (device.Sink, error) {
	if err := c.call(ctx, "write"); err != nil {
		return nil, err
	}
	c.count(1)
	return cardSink{&cardFlow{c: c, left: c.at(b.Ptr)}}, nil
}

// cardFlow hands memory out in pieces that are used again.
type cardFlow struct {
	c    *card
	left []byte
	slot [1000]byte
}

func (f *cardFlow) Next() ([]byte, error) {
	if len(f.left) == 0 {
		return nil, io.EOF
	}
	n := copy(f.slot[:], f.left)
	f.left = f.left[n:]
	return f.slot[:n], f.c.call(context.Background(), "next")
}

func (f *cardFlow) Close() { f.c.count(-1) }

type cardSink struct{ *cardFlow }

func (s cardSink) Room() ([]byte, error) {
	return s.slot[:min(len(s.slot), len(s.left))], s.c.call(context.Background(), "room")
}

func (s cardSink) Commit(n int) error {
	copy(s.left, s.slot[:n])
	s.left = s.left[n:]
	return s.c.call(context.Background(), "commit")
}

func (s cardSink) Close() error {
	s.c.count(-1)
	return s.c.call(context.Background(), "close")
}

// Tensors on devices vote with the entries of tensors on the host, and are
// handed out and fetched in every mixture of both.
func TestDeviceTensors(t *testing.T) {
	c := newCard(t)
	host := state(1, 0, 5, 1000, 70_001)
	onCard := c.take(host)
	want, err := Entries(context.Background(), host, false, nil, 1)
	require.NoError(t, err)
	got, err := Entries(context.Background(), onCard, false, nil, 1)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.EqualValues(t, 1, c.hashes.Load(), "all in one pass")
	require.Equal(t, Digest(host), Digest(onCard))
	for _, holder := range [][]Tensor{host, onCard} {
		s, addr := serve(t, ServerConfig{})
		s.Open(7, holder, false)
		for _, hash := range []wire.HashType{wire.HashSimple, wire.HashCRC32} {
			old := state(2, 0, 5, 1000, 70_001)
			mine := c.take(old)
			w := wants(host, false)
			if hash == wire.HashCRC32 {
				for i := range w {
					w[i].HashType, w[i].Hash = hash, uint64(digest.CRC32C(host[i].Data))
				}
			}
			for _, ts := range [][]Tensor{old, mine} {
				res, err := impatient(FetchConfig{Distributors: []netip.AddrPort{addr}, Want: w, Tensors: ts})
				require.NoError(t, err)
				require.EqualValues(t, 71_006, res.RxBytes)
			}
			requireSame(t, host, old)
			for i := range mine {
				require.True(t, bytes.Equal(host[i].Data, c.content(mine[i])))
			}
		}
	}
	c.idle(t)
}

// PCCL's view of 16 bit types holds for devices as well: there is nothing.
func TestDeviceTensorsLegacy(t *testing.T) {
	c := newCard(t)
	ts := state(1, 64)
	ts[0].DType = dtype.Float16
	es, err := Entries(context.Background(), c.take(ts), true, nil, 1)
	require.NoError(t, err)
	require.Zero(t, es[0].Hash)
}

// A device that fails is told at once, by the tensor's name, and no other
// holder is asked; a holder's device costs that holder only.
func TestDeviceFailsInSync(t *testing.T) {
	c := newCard(t)
	host := state(1, 3000)
	good, addr := serve(t, ServerConfig{})
	good.Open(7, host, false)
	bad, worse := serve(t, ServerConfig{})
	bad.Open(7, c.take(host), false)
	for _, call := range []string{"write", "room", "commit", "close", "hash"} {
		c.fail(call)
		res, err := impatient(FetchConfig{Distributors: []netip.AddrPort{addr}, Want: wants(host, false), Tensors: c.take(state(2, 3000))})
		require.ErrorIs(t, err, errs.DeviceFailed, call)
		require.ErrorContains(t, err, `tensor "t0"`)
		require.ErrorContains(t, err, "a bolt came loose")
		require.Zero(t, res.Retries, call)
	}
	for _, call := range []string{"read", "next"} {
		c.fail(call)
		mine := state(2, 3000)
		_, err := impatient(FetchConfig{Distributors: []netip.AddrPort{worse, addr}, Want: wants(host, false), Tensors: mine})
		require.NoError(t, err, call)
		requireSame(t, host, mine)
	}
	c.fail("hash")
	_, err := Entries(context.Background(), c.take(host), false, nil, 1)
	require.ErrorIs(t, err, errs.DeviceFailed)
	require.ErrorContains(t, err, `tensor "t0"`)
	require.NotEqual(t, Digest(host), Digest(c.take(host)))
	c.idle(t)

	lost := c.take(host)
	lost[0].Device.Platform = "abacus"
	_, err = Entries(context.Background(), lost, false, nil, 1)
	require.ErrorIs(t, err, errs.InvalidArgument)
	_, err = Fetch(context.Background(), FetchConfig{Distributors: []netip.AddrPort{addr}, Want: wants(host, false), Tensors: lost})
	require.Error(t, err)
	require.True(t, strings.Contains(err.Error(), `nothing serves "abacus" memory`), err)
}

// hang makes the call of that name wait for a stream that never comes.
func (c *card) hang(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stuck = name
}

// What waits for a trainer's stream that never comes ends with the call that it
// is for: of one that votes or fetches with its context, of a holder with the
// window, and with the server.
func TestDeviceNeverReady(t *testing.T) {
	c := newCard(t)
	host := state(1, 3000)
	within := func(what string, f func(ctx context.Context) error) {
		c.hang(what)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		over := make(chan error, 1)
		go func() { over <- f(ctx) }()
		<-c.waits
		cancel()
		require.ErrorIs(t, <-over, errs.Canceled, what)
	}
	within("hash", func(ctx context.Context) error {
		_, err := Entries(ctx, c.take(host), false, nil, 1)
		return err
	})
	holder, addr := serve(t, ServerConfig{})
	holder.Open(7, host, false)
	for _, call := range []string{"write", "hash"} {
		within(call, func(ctx context.Context) error {
			_, err := Fetch(ctx, FetchConfig{Distributors: []netip.AddrPort{addr}, Want: wants(host, false), Tensors: c.take(state(2, 3000))})
			return err
		})
	}
	c.hang("read")
	for _, end := range []func(s *Server, w *Window){(*Server).Shut, func(s *Server, _ *Window) { s.Close() }} {
		s, at := serve(t, ServerConfig{ShutGrace: time.Millisecond})
		w := s.Open(7, c.take(host), false)
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan error, 1)
		go func() {
			_, err := Fetch(ctx, FetchConfig{Distributors: []netip.AddrPort{at}, Want: wants(host, false), Tensors: state(2, 3000)})
			over <- err
		}()
		<-c.waits
		end(s, w) // and returns
		cancel()
		require.Error(t, <-over)
	}
	c.idle(t)
}
