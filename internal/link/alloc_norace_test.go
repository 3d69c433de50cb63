//go:build !race

package link

import (
	"net"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/allocs"
	"github.com/gopccl/gopccl/internal/transport"
)

// loop is a source of many frames of one memory.
type loop struct {
	*roll
	payload []byte
	left    int
}

func (x *loop) NextFrame(f *Frame, _ int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.left == 0 {
		return false
	}
	x.left--
	f.Payload = x.payload
	transport.Header{Payload: len(f.Payload), Tag: x.tag, Stream: x.number}.Put((*[transport.HeaderSize]byte)(f.Head))
	return true
}

func (x *loop) ReleaseFrame(*Frame, bool) (idle, over bool) { return false, false }

// sieve is a sink that reads frames into the reader's memory, and counts them.
type sieve struct {
	*tape
	count atomic.Int64
}

func (x *sieve) ReceiveFrame(r *Receiver, h transport.Header) error {
	err := r.Fill(x, r.Scratch()[:h.Payload])
	x.count.Add(1)
	return err
}

// A frame costs no allocation, at either side of a connection.
func TestNothingIsAllocatedPerFrame(t *testing.T) {
	a, b := newRoom(t, Config{FrameBytes: 1024}), newRoom(t, Config{FrameBytes: 1024})
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	out, err := net.Dial("tcp4", ln.Addr().String())
	require.NoError(t, err)
	in, err := ln.Accept()
	require.NoError(t, err)
	x, y := &loop{roll: newRoll(1, 1), payload: make([]byte, 1000)}, &sieve{tape: newTape()}
	b.open(uuid(0), 1, 1, y)
	b.h.AddReceiver(uuid(0), 0, in)
	a.h.AddSender(uuid(1), 0, out, Features{Native: true})
	s := a.h.Senders(uuid(1))[0]
	s.Attach(x)
	const frames = 2000
	move := func() {
		x.mu.Lock()
		x.left = frames
		x.mu.Unlock()
		until := y.count.Load() + frames
		for s.Kick(true, true); y.count.Load() < until; {
			runtime.Gosched()
		}
	}
	move()
	require.Less(t, allocs.PerRun(5, move), 16., "allocations for %d frames", frames)
}
