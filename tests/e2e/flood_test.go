package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/platform"
)

// firstFlight returns what a client sends first, so that a server answers it in full.
func firstFlight(t testing.TB, c *secure.Credential, p secure.Purpose) []byte {
	tr, err := secure.NewTrust(secure.TrustOptions{Credential: c})
	require.NoError(t, err)
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, tr.Client(secure.Want{Purpose: p})).Handshake()
	}()
	defer far.Close()
	defer near.Close()
	head := make([]byte, 5)
	_, err = io.ReadFull(far, head)
	require.NoError(t, err)
	body := make([]byte, int(head[3])<<8|int(head[4]))
	_, err = io.ReadFull(far, body)
	require.NoError(t, err)
	return slices.Concat(head, body)
}

// floodTLS begins handshakes at a master and at two peers, some thousands at a time, and
// ends none. most is the memory that was in use, and closeAll closes what is left.
func floodTLS(t testing.TB, r realm, total int, at []string) (most uint64, closeAll func()) {
	const atOnce, slowly = 3000, 20
	purposes := []secure.Purpose{secure.Control, secure.Data, secure.Data}
	insider := r.peer("gpu-9").Credential
	var open []net.Conn
	var hellos [][]byte
	for _, p := range purposes {
		hellos = append(hellos, firstFlight(t, insider, p))
	}
	for n := range total {
		k := n % len(at)
		conn, err := net.Dial("tcp", at[k])
		require.NoError(t, err)
		switch n / len(at) % 4 {
		case 0: // answered in full, and never finished
			_, _ = conn.Write(hellos[k])
		case 1: // says nothing
		case 2: // half of it
			_, _ = conn.Write(hellos[k][:len(hellos[k])/2])
		case 3: // the rest comes slowly, below
			_, _ = conn.Write(hellos[k][:len(hellos[k])-slowly])
		}
		if open = append(open, conn); len(open) > atOnce {
			open[0].Close()
			open = open[1:]
		}
		if n%100 == 99 {
			for i, slow := range open {
				if slow.RemoteAddr().String() == at[0] {
					_, _ = slow.Write(hellos[0][len(hellos[0])-1-i%slowly:][:1])
				}
			}
		}
		if n%1000 == 999 {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapInuse+now.StackInuse)
		}
	}
	return most, func() {
		for _, c := range open {
			c.Close()
		}
	}
}

// Thousands of handshakes that never end, against master and peers and from the address
// that the members have, while a run goes on: no operation fails, newcomers get in, and what the flood has taken is given back.
func TestHandshakeFlood(t *testing.T) {
	total := counts(30_000)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := newRealm(t)
	addr, log := r.master(nil)
	ports := freePorts(t)[:2]
	comms := world(t, ctx, addr, 2, func(id int, o *core.Options) {
		o.Security, o.ListenHost, o.Ports = r.peer("gpu-"+string(rune('0'+id))), "127.0.0.1", ports[id:id+1]
	})
	sums(t, ctx, comms)
	handles, counted := platform.OpenHandles()
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	done, stop := reducing(t, ctx, comms)
	most, closeAll := floodTLS(t, r, total, []string{addr, fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])})
	reduced := done.Load()
	require.Positive(t, reduced)
	// A newcomer gets in while they are all there; the two others let it in when the run is over.
	joined := make(chan error, 1)
	third := make(chan *core.Communicator, 1)
	go func() {
		c, err := core.Connect(ctx, core.Options{Master: addr, PortBase: -1, ListenHost: "127.0.0.1", Security: r.peer("gpu-2")})
		third <- c
		joined <- err
	}()
	stop()
	for _, err := range each(comms, func(_ int, c *core.Communicator) error {
		for c.Attributes().LocalWorldSize < 3 {
			pending, err := c.PeersPending(ctx)
			if err == nil && pending {
				err = c.UpdateTopology(ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	newcomer := <-third
	require.NoError(t, <-joined)
	comms = append(comms, newcomer)
	sums(t, ctx, comms)

	require.Less(t, most, before.HeapInuse+before.StackInuse+(192<<20), "there are 512 at a time at each port, and both ends of them are here")
	log.has(t, "kind=stranger")
	closeAll()
	require.NoError(t, newcomer.Close())
	if counted == nil {
		require.Eventually(t, func() bool {
			now, err := platform.OpenHandles()
			return err == nil && now <= handles+4 // connections between the two may be new
		}, patience, 10*time.Millisecond)
	}
	t.Logf("%d all-reduces of each peer beside %d handshakes; at most %d MiB, before them %d", reduced, total, most>>20, (before.HeapInuse+before.StackInuse)>>20)
}
