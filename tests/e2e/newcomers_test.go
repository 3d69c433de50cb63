package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// overseer is a master that counts how rounds end and remembers who was closed.
type overseer struct {
	addr       string
	failed, ok atomic.Int64

	revision uint64 // of the next state that settle has synchronized
	synced   chan struct{}

	mu   sync.Mutex
	gone []core.Fact // those that the master closed
}

func overseen(t *testing.T, opt core.MasterOptions) *overseer {
	t.Helper()
	o := &overseer{synced: make(chan struct{}, 64)}
	opt.Listen = "127.0.0.1:0"
	opt.OnFact = func(f core.Fact) {
		switch f.Kind {
		case "round":
			if f.Warn {
				o.failed.Add(1)
			} else {
				o.ok.Add(1)
			}
		case "sync":
			o.synced <- struct{}{}
		case "kick", "dropped", "malformed", "preflight":
			o.mu.Lock()
			o.gone = append(o.gone, f)
			o.mu.Unlock()
		}
	}
	m, err := newMaster(opt)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
		m.Close()
	})
	o.addr = m.Addr().String()
	return o
}

// settle waits until the master has told of everything so far. Facts come in order, and later
// than what they tell of.
func (o *overseer) settle(t *testing.T, ctx context.Context, comms []*core.Communicator) {
	t.Helper()
	for _, err := range each(comms, func(_ int, c *core.Communicator) error {
		_, err := c.SyncSharedState(ctx, &core.SharedState{Revision: o.revision, Tensors: []core.Tensor{core.TensorOf("x", []int32{1})}}, core.SyncOptions{})
		return err
	}) {
		require.NoError(t, err)
	}
	o.revision++
	<-o.synced
}

// closed returns what the master said about those it closed.
func (o *overseer) closed() (facts []core.Fact) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append(facts, o.gone...)
}

// training is what comms do until it is stopped: reduce, and let newcomers in.
type training struct {
	steps atomic.Int64 // of the one that is furthest
	stop  func()       // all after the same step
}

func train(t *testing.T, ctx context.Context, comms []*core.Communicator) *training {
	t.Helper()
	tr := &training{}
	var last atomic.Int64
	last.Store(1 << 60)
	done := make(chan []error, 1)
	go func() {
		done <- each(comms, func(_ int, c *core.Communicator) error {
			for n := int64(1); n <= last.Load(); n++ {
				if err := step(ctx, c); err != nil {
					return err
				}
				for was := tr.steps.Load(); n > was && !tr.steps.CompareAndSwap(was, n); was = tr.steps.Load() {
				}
			}
			return nil
		})
	}()
	tr.stop = sync.OnceFunc(func() {
		last.Store(tr.steps.Load() + 3) // nobody can be further than the next one
		for i, err := range <-done {
			assert.NoError(t, err, "trainer %d", i)
		}
	})
	t.Cleanup(tr.stop)
	return tr
}

// step is one step of a trainer: let newcomers in, compute, reduce.
func step(ctx context.Context, c *core.Communicator) error {
	pending, err := c.PeersPending(ctx)
	if err == nil && pending {
		err = c.UpdateTopology(ctx)
	}
	if err != nil {
		return err
	}
	time.Sleep(5 * time.Millisecond) // what a trainer computes
	v := []float32{1, 2, 3, 4}
	_, err = core.AllReduceSlice(ctx, c, v, v, core.Sum)
	return err
}

// await waits until cond holds; the bound only ends a hang.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "waited for: %s", what)
	}
}

// stranger is a connection to a master that speaks for itself.
type stranger struct {
	conn net.Conn
	gone chan struct{} // closed when the master has closed it
}

// newStranger registers with a P2P port; answer is called for every packet of
// the master and may return an answer.
func newStranger(t testing.TB, master string, port uint16, ext wire.Ext, answer func(wire.Packet) wire.Packet) *stranger {
	t.Helper()
	conn, err := issued.Dial(master, secure.Control)
	require.NoError(t, err)
	s := &stranger{conn: conn, gone: make(chan struct{})}
	_, err = conn.Write(wire.Append(nil, wire.C2MRequestSessionRegistration{P2PPort: port, SharedStatePort: 1, BenchmarkPort: 2, Ext: ext}))
	require.NoError(t, err)
	go func() {
		defer close(s.gone)
		r := bufio.NewReader(conn)
		for {
			p, err := wire.Read(r, wire.M2C, wire.MaxPacket)
			if err != nil {
				return
			}
			if a := answer(p); a != nil {
				conn.Write(wire.Append(nil, a))
			}
		}
	}()
	return s
}

// agree answers rounds with success, and never anything else.
func agree(p wire.Packet) wire.Packet {
	if _, ok := p.(wire.M2CP2PConnectionInfo); ok {
		return wire.C2MP2PConnectionsEstablished{Success: true}
	}
	return nil
}

// slowDoor answers every hello after a while, as PCCL does.
func slowDoor(t testing.TB, wait time.Duration) uint16 {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				if _, err := wire.Read(c, wire.P2P, 1<<16); err == nil {
					time.Sleep(wait)
					c.Write(wire.Append(nil, wire.P2PHelloAck{}))
				}
			}()
		}
	}()
	return uint16(ln.Addr().(*net.TCPAddr).Port)
}

// A newcomer that takes its time with every connection of a pool, and says that
// all is well itself, is named by those who wait for it and has to go; they stay.
func TestSlowHandshakesCostTheSlowOne(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := overseen(t, core.MasterOptions{RoundTimeout: 10 * time.Second})
	comms := world(t, ctx, o.addr, 3, func(_ int, p *core.Options) { p.PoolSize = 4 })
	o.settle(t, ctx, comms)
	failed := o.failed.Load()
	tr := train(t, ctx, comms)
	slow := newStranger(t, o.addr, slowDoor(t, 3500*time.Millisecond), wire.Ext{}, agree)
	await(t, "the slow one has to go", func() bool {
		select {
		case <-slow.gone:
			return true
		default:
			return false
		}
	})
	steps := tr.steps.Load()
	await(t, "the others go on", func() bool { return tr.steps.Load() > steps+10 })
	tr.stop()
	o.settle(t, ctx, comms)
	require.LessOrEqual(t, o.failed.Load()-failed, int64(1))
	require.Len(t, o.closed(), 1)
	require.Contains(t, o.closed()[0].Text, "cannot reach it at")
	sums(t, ctx, comms)
}

// willing is a newcomer that says yes to everything.
func willing(p wire.Packet) wire.Packet {
	if f, ok := p.(wire.M2CPreflight); ok {
		return wire.C2MPreflightDone{Number: f.Number}
	}
	return agree(p)
}

// A newcomer that is not reached, because its port is closed or nobody answers
// there, costs no round and is told why; the run goes on, and lets others in.
func TestUnreachableNewcomerCostsNoRound(t *testing.T) {
	t.Parallel()
	mute, err := net.Listen("tcp", "127.0.0.1:0") // as behind a firewall that drops
	require.NoError(t, err)
	t.Cleanup(func() { mute.Close() })
	for name, port := range map[string]int{"closed": 1, "filtered": mute.Addr().(*net.TCPAddr).Port} {
		for _, n := range []int{2, 5} {
			t.Run(fmt.Sprintf("%s, %d", name, n), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				o := overseen(t, core.MasterOptions{})
				comms := world(t, ctx, o.addr, n, nil)
				o.settle(t, ctx, comms)
				failed := o.failed.Load()
				tr := train(t, ctx, comms)
				steps, told := tr.steps.Load(), make(chan string, 1)
				bad := newStranger(t, o.addr, uint16(port), wire.Ext{Native: true, Preflight: true}, func(p wire.Packet) wire.Packet {
					if d, ok := p.(wire.M2CPeerDropped); ok {
						told <- d.Reason
					}
					return willing(p)
				})
				<-bad.gone
				require.Contains(t, <-told, "cannot reach it at 127.0.0.1:")
				await(t, "the run goes on", func() bool { return tr.steps.Load() > steps+5 })
				tr.stop()
				o.settle(t, ctx, comms)
				require.Equal(t, failed, o.failed.Load())
				require.Len(t, o.closed(), 1)
			})
		}
	}
}

// Twenty newcomers with closed ports that come again and again, each time with
// another one: the members take part in no round for them, none fails, and what
// they are asked to try grows with time and not with how fast the others come.
func TestReturningNewcomersCostNoRounds(t *testing.T) {
	const ghosts = 20
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := overseen(t, core.MasterOptions{})
	comms := world(t, ctx, o.addr, 4, nil)
	o.settle(t, ctx, comms)
	stood, failed := o.ok.Load(), o.failed.Load()
	tr := train(t, ctx, comms)
	began := time.Now()
	var port atomic.Uint32 // below 1024 nobody listens
	haunt, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var turned atomic.Int64
	for range ghosts {
		wg.Go(func() {
			for haunt.Err() == nil {
				s := newStranger(t, o.addr, uint16(port.Add(1)%1000+1), wire.Ext{Native: true, Preflight: true}, willing)
				select {
				case <-s.gone:
					turned.Add(1)
				case <-haunt.Done():
				}
				s.conn.Close()
			}
		})
	}
	await(t, "they come and go, and the run goes on", func() bool { return turned.Load() >= 12 && tr.steps.Load() > 20 })
	stop()
	wg.Wait()
	tr.stop()
	o.settle(t, ctx, comms)
	require.Equal(t, failed, o.failed.Load())
	require.Equal(t, stood, o.ok.Load(), "a round was for them")
	require.LessOrEqual(t, turned.Load(), int64(8*(time.Since(began).Seconds()+2)), "trials")
	require.Len(t, comms, 4)
	sums(t, ctx, comms)
}
