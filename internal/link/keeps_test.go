package link

import (
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// miser is a connection that keeps what it takes without waiting, as one in TLS does
// while the system takes nothing.
type miser struct {
	*transporttest.Conn
	mu   sync.Mutex
	kept []byte
}

func (k *miser) Source() io.Reader                  { return k.Conn }
func (k *miser) NonBlocking() transport.TryWriter   { return k }
func (k *miser) Resumable() bool                    { return true }
func (k *miser) TryWrite(p []byte) (n int, _ error) { return k.keep(p), nil }

func (k *miser) keep(p []byte) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept = append(k.kept, p...)
	return len(p)
}

// Flushed implements transport.Flusher.
func (k *miser) Flushed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.kept) == 0
}

// Write waits until all that was taken is written.
func (k *miser) Write(p []byte) (int, error) {
	k.mu.Lock()
	b := append(k.kept, p...)
	k.kept = nil
	k.mu.Unlock()
	_, err := k.Conn.Write(b)
	return len(p), err
}

// What a connection keeps of a write that does not wait is sent, though nothing comes
// after it.
func TestKeptBytesAreSent(t *testing.T) {
	p := newPair(t, Config{}, 0, transporttest.Options{}, Features{Native: true})
	x, y := transporttest.Pair(transporttest.Options{})
	k := &miser{Conn: x}
	require.False(t, transport.Keeps(k))
	p.b.h.AddReceiver(uuid(0), 0, y)
	p.a.h.AddSender(uuid(1), 0, k, Features{Native: true})
	from, to := newRoll(1, 7, []byte{1, 2, 3}), newTape()
	p.b.open(uuid(0), 1, 7, to)
	p.sender(0).Attach(from)
	p.sender(0).Kick(true, true)
	require.Equal(t, []byte{1, 2, 3}, to.next(t))
	require.False(t, transport.Keeps(k))
}
