package e2e

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
)

// A dump shows every operation of every communicator of the process, not only
// those of one, and what each waits for.
func TestDumpShowsEveryOperationOfEveryCommunicator(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var firsts, seconds []*core.Communicator
	for range 3 {
		w := world(t, ctx, localMaster(t), 2, nil)
		firsts, seconds = append(firsts, w[0]), append(seconds, w[1])
	}
	var handles []*core.Handle
	post := func(comms []*core.Communicator) {
		for i, c := range comms {
			for tag := range uint64(3) {
				v := make([]float32, 1000)
				r := core.ReduceOf(v, v, core.Sum)
				r.Tag = uint64(10*i) + tag
				h, err := c.AllReduceAsync(ctx, r)
				require.NoError(t, err)
				handles = append(handles, h)
			}
		}
	}
	post(firsts)
	var b bytes.Buffer
	require.NoError(t, core.DumpState(&b))
	text := b.String()
	require.Contains(t, text, "gopccl: 6 communicators\n")
	for i, c := range firsts {
		_, own, found := strings.Cut(text, "communicator "+c.Attributes().UUID.String()+": connected to the master ")
		require.True(t, found, text)
		own, _, _ = strings.Cut(own, "communicator ")
		for tag := range 3 {
			require.Contains(t, own, fmt.Sprintf("operation tag %d: ", 10*i+tag), own) // S4-30
		}
		require.Equal(t, 3, strings.Count(own, "waits for: votes of the other peers"), own)
		require.Equal(t, 1, strings.Count(own, "  sender, peer "), own)
		require.Equal(t, 1, strings.Count(own, "  reader, peer "), own)
		conns := c.State().Conns
		at := slices.IndexFunc(conns, func(s core.ConnState) bool { return s.Role == "sender" })
		require.Equal(t, conns[at].RTT > 0, strings.Contains(own, "round trip "), own) // as far as the system tells
		require.Len(t, c.State().Ops, 3)
	}
	require.Len(t, core.States(), 6)
	post(seconds)
	for _, h := range handles {
		_, err := h.Wait(ctx)
		require.NoError(t, err)
	}
	for _, c := range append(firsts, seconds...) {
		require.Empty(t, c.State().Ops)
		require.NoError(t, c.Close())
	}
	b.Reset()
	require.NoError(t, core.DumpState(&b))
	require.Equal(t, "gopccl: 0 communicators\n", b.String())
}

// A dump shows collectives of other kinds and messages, what each does, and whom it
// waits for.
func TestDumpShowsCollectivesAndMessages(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 3, nil)
	// With a mesh the members that scatter gets its data from are known to it.
	for _, err := range each(c, func(_ int, c *core.Communicator) error { return everyKind(ctx, c, 10, 1) }) {
		require.NoError(t, err)
	}
	at := func(rank int) *core.Communicator {
		return c[slices.IndexFunc(c, func(c *core.Communicator) bool { return c.Attributes().Index == rank })]
	}
	first, root := at(0), at(2)
	call := func(rank int) core.Collective {
		s := core.Collective{Kind: core.KindScatter, Tag: 6, Root: 2, DType: dtype.Float32, Dst: make([]byte, 400)}
		if rank == 2 {
			s.Src = make([]byte, 1200)
		}
		return s
	}
	handles := make([]*core.Handle, 3)
	var err error
	handles[0], err = first.CollectAsync(ctx, call(0))
	require.NoError(t, err)
	got, err := first.ReceiveAsync(ctx, core.Message{Peer: 2, Tag: 9, Data: make([]byte, 5)})
	require.NoError(t, err)
	from := called(first.State(), root.Attributes().UUID)
	var st core.State
	require.Eventually(t, func() bool {
		st = first.State()
		return len(st.Ops) == 1 && len(st.Ops[0].Lanes) == 1
	}, patience, time.Millisecond)
	op := st.Ops[0]
	require.Equal(t, []any{"scatter", 2, uint64(6), 100}, []any{op.Kind, op.Root, op.Tag, op.Count})
	require.Equal(t, core.LaneState{Peer: root.Attributes().UUID, Total: 400}, op.Lanes[0])
	require.Contains(t, op.Waits, "peer "+from+": 0 of 400 bytes have come")
	require.Equal(t, 1, st.Active)
	require.Len(t, st.Messages, 1)
	require.Equal(t, root.Attributes().UUID, st.Messages[0].Peer)
	var b bytes.Buffer
	require.NoError(t, core.DumpState(&b))
	require.Contains(t, b.String(), "  operation tag 6: scatter, root 2, of 100 float32, posted ")
	require.Contains(t, b.String(), "received 0 of 400 bytes, sent 0 of 0, waits for: votes of the other peers; peer "+from)
	require.Contains(t, b.String(), "  message tag 9: receive of 5 bytes, "+from+", since ")
	require.Contains(t, b.String(), "waits for: peer "+from+": has sent nothing with this tag")
	for rank := 1; rank < 3; rank++ {
		handles[rank], err = at(rank).CollectAsync(ctx, call(rank))
		require.NoError(t, err)
	}
	require.NoError(t, root.Send(ctx, core.Message{Peer: 0, Tag: 9, Data: make([]byte, 5)}))
	for _, h := range handles {
		_, err := h.Wait(ctx)
		require.NoError(t, err)
	}
	_, err = got.Wait(ctx)
	require.NoError(t, err)
	require.Empty(t, first.State().Messages)
}

// gated holds its writes back while the gate is shut.
type gated struct {
	net.Conn
	shut  *atomic.Bool
	open  chan struct{}
	ended chan struct{}
	end   sync.Once
}

// behind is c behind a gate: while shut is set, writes wait until open is closed, or c.
func behind(c net.Conn, shut *atomic.Bool, open chan struct{}) net.Conn {
	return &gated{Conn: c, shut: shut, open: open, ended: make(chan struct{})}
}

func (g *gated) Write(p []byte) (int, error) {
	if g.shut.Load() {
		select {
		case <-g.open:
		case <-g.ended:
			return 0, net.ErrClosed
		}
	}
	return g.Conn.Write(p)
}

func (g *gated) Close() error {
	g.end.Do(func() { close(g.ended) })
	return g.Conn.Close()
}

// A link that stops moving data: the watchdog names the operation, the role and
// the peer that it waits for, on both ends, in the log and to the listener.
func TestWatchdogNamesWhatIsStuck(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	master := localMaster(t)
	var shut atomic.Bool
	open := make(chan struct{})
	var logs [2]lockedBuffer
	var mu sync.Mutex
	told := map[int]string{}
	comms := world(t, ctx, master, 2, func(i int, o *core.Options) {
		o.WarnStuckAfter = time.Second
		o.Logger = slog.New(slog.NewTextHandler(&logs[i], nil))
		o.Trace = &core.Listener{Stuck: func(tag, _ uint64, since time.Duration, waits string) {
			mu.Lock()
			defer mu.Unlock()
			if tag == 77 && since >= time.Second {
				told[i] = waits
			}
		}}
		if i == 0 {
			o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				if err != nil || addr == master {
					return c, err
				}
				return behind(c, &shut, open), nil
			}
		}
	})
	shut.Store(true)
	var handles []*core.Handle
	for _, c := range comms {
		v := make([]float32, 1000)
		r := core.ReduceOf(v, v, core.Sum)
		r.Tag = 77
		h, err := c.AllReduceAsync(ctx, r)
		require.NoError(t, err)
		handles = append(handles, h)
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told) == 2
	}, patience, 10*time.Millisecond)
	shut.Store(false)
	close(open)
	for _, h := range handles {
		_, err := h.Wait(ctx)
		require.NoError(t, err)
	}
	st := comms[0].State()
	first, second := called(st, comms[0].Attributes().UUID), called(st, comms[1].Attributes().UUID)
	require.Contains(t, told[0], "sender to "+second+": ") // S4-33
	require.Contains(t, told[0], "being written")
	require.Contains(t, told[1], "previous peer "+first+": no frame of step 0 has come")
	for i := range logs {
		written(t, "an operation does not move", &logs[i])
	}
}

// called returns what texts call a member.
func called(st core.State, peer core.UUID) string {
	if i := slices.Index(st.Attributes.Ring, peer); i >= 0 && st.Names != nil && st.Names[i] != "" {
		return st.Names[i] + "/" + peer.Short()
	}
	return peer.Short()
}
