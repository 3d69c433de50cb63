package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// localMaster runs a master in this process until the test ends.
func localMaster(t testing.TB) string {
	t.Helper()
	m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
		m.Close()
	})
	return m.Addr().String()
}

// connect and newMaster are those of core, in TLS where the environment says so.
func connect(ctx context.Context, o core.Options) (*core.Communicator, error) {
	issued.Peer(&o.Security)
	return core.Connect(ctx, o)
}

func newMaster(o core.MasterOptions) (*core.Master, error) {
	issued.Master(&o.Security)
	return core.NewMaster(o)
}

// world connects n peers in this process; options may be changed per peer.
func world(t testing.TB, ctx context.Context, master string, n int, change func(id int, o *core.Options)) []*core.Communicator {
	t.Helper()
	comms, err := tryWorld(t, ctx, master, n, change)
	require.NoError(t, err)
	return comms
}

// tryWorld is world for one that may fail to stand.
func tryWorld(t testing.TB, ctx context.Context, master string, n int, change func(id int, o *core.Options)) ([]*core.Communicator, error) {
	t.Helper()
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	begin := func(id int) (*core.Communicator, error) {
		o := core.Options{Master: master, PortBase: -1}
		if change != nil {
			change(id, &o)
		}
		return connect(ctx, o)
	}
	first, err := begin(0)
	if err != nil {
		return nil, err
	}
	comms := make([]*core.Communicator, n)
	comms[0] = first
	t.Cleanup(func() {
		for _, c := range comms {
			if c != nil {
				c.Close()
			}
		}
	})
	fail := make([]error, n)
	var wg sync.WaitGroup
	grow := func(c *core.Communicator) error {
		for c.Attributes().LocalWorldSize < n {
			pending, err := c.PeersPending(ctx)
			if err == nil && pending {
				err = c.UpdateTopology(ctx)
			}
			if err != nil {
				return err
			}
			time.Sleep(time.Millisecond) // leaves the processor to those that join
		}
		return nil
	}
	for id := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if id > 0 {
				comms[id], fail[id] = begin(id)
			}
			if fail[id] == nil {
				fail[id] = grow(comms[id])
			}
			if fail[id] != nil {
				giveUp() // the others would wait for it
			}
		}()
	}
	wg.Wait()
	return comms, errors.Join(fail...)
}

// each calls f for all at once and returns the errors.
func each(cs []*core.Communicator, f func(i int, c *core.Communicator) error) []error {
	out := make([]error, len(cs))
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Add(1)
		go func() { defer wg.Done(); out[i] = f(i, c) }()
	}
	wg.Wait()
	return out
}

// sums all-reduces what is long enough to go over all connections.
func sums(t *testing.T, ctx context.Context, comms []*core.Communicator) {
	t.Helper()
	for _, err := range each(comms, func(i int, c *core.Communicator) error {
		v := make([]float32, 1<<19)
		for k := range v {
			v[k] = float32(i + 1)
		}
		if _, err := core.AllReduceSlice(ctx, c, v, v, core.Sum); err != nil {
			return err
		}
		want := float32(len(comms)*(len(comms)+1)) / 2
		for k, x := range v {
			if x != want {
				return fmt.Errorf("element %d is %v", k, x)
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
}

// Four uses of sockets, each with its own lifetime: the master's lasts,
// the ring's last as long as the neighbours stay, shared state and benchmark
// connections are made for one job and closed after it.
func TestLifetimesOfSockets(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var dialled, open atomic.Int64
	comms := world(t, ctx, localMaster(t), 3, func(_ int, o *core.Options) {
		o.Probe.Connections, o.Probe.Duration = 2, 300*time.Millisecond // on a busy machine, too, a byte arrives
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			dialled.Add(1)
			open.Add(1)
			return &counted{Conn: c, open: &open}, nil
		}
	})
	all := func(f func(i int, c *core.Communicator) error) {
		t.Helper()
		for _, err := range each(comms, f) {
			require.NoError(t, err)
		}
	}
	// Three to the master; each peer has two neighbours to send to or, before
	// the ring is ordered, be ready to send to.
	require.EqualValues(t, 3+6, open.Load())
	steady := open.Load()

	before := dialled.Load()
	all(func(i int, c *core.Communicator) error {
		v := []int32{7, 7, 7}
		st := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("v", v)}}
		o := core.SyncOptions{}
		if i == 2 {
			v[0] = 8
		}
		_, err := c.SyncSharedState(ctx, st, o)
		if err == nil && v[0] != 7 {
			err = fmt.Errorf("state is %v", v)
		}
		return err
	})
	require.EqualValues(t, 1, dialled.Load()-before, "one outdated peer, one connection")
	require.EqualValues(t, steady, open.Load(), "and it is closed") // S1-01

	before = dialled.Load()
	all(func(_ int, c *core.Communicator) error { return c.OptimizeTopology(ctx) })
	require.GreaterOrEqual(t, dialled.Load()-before, int64(6*2), "six directed pairs, two connections each")
	require.EqualValues(t, steady, open.Load(), "and they are closed")

	before = dialled.Load()
	for range 5 {
		all(func(_ int, c *core.Communicator) error { // S1-32: the result is there on return
			v := []int32{1}
			_, err := core.AllReduceSlice(ctx, c, v, v, core.Sum)
			if err == nil && v[0] != 3 {
				err = fmt.Errorf("sum is %v", v)
			}
			return err
		})
	}
	require.Equal(t, before, dialled.Load(), "operations use the connections that stand")
}

type counted struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// Every method from many goroutines at once: what may not
// overlap is refused with a typed error, nothing hangs and the session lives.
// Quirks Q46 and Q63.
func TestAnyGoroutineMayCall(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 2, nil)
	// Collectives of distinct tags from many goroutines, launched in any order.
	var tag atomic.Uint64
	var wg, asking sync.WaitGroup
	// Queries beside them, until the operations are done. A query that finds the
	// other peer in an operation is answered alone, so their number says nothing,
	// and the last one may be left without a partner.
	asked, stop := context.WithCancel(ctx)
	defer stop()
	for _, c := range comms {
		asking.Add(1)
		go func() {
			defer asking.Done()
			for asked.Err() == nil {
				if _, err := c.PeersPending(asked); err != nil && asked.Err() == nil {
					t.Errorf("pending: %v", err)
				}
				c.Attributes()
			}
		}()
	}
	for range 24 {
		n := tag.Add(1)
		for _, c := range comms {
			wg.Add(1)
			go func() {
				defer wg.Done()
				v := make([]float64, 300)
				for i := range v {
					v[i] = float64(n)
				}
				r := core.ReduceOf(v, v, core.Sum)
				r.Tag = n
				_, err := c.AllReduce(ctx, r)
				if err != nil || v[299] != float64(2*n) {
					t.Errorf("tag %d: %v %v", n, v[299], err)
				}
			}()
		}
	}
	wg.Wait()
	stop()
	asking.Wait()
	// A phase-changing call beside an operation that is not awaited.
	h := make([]*core.Handle, 2)
	for i, c := range comms {
		v := []float32{1, 2, 3}
		var err error
		h[i], err = c.AllReduceAsync(ctx, core.ReduceOf(v, v, core.Max))
		require.NoError(t, err)
	}
	require.ErrorIs(t, comms[0].UpdateTopology(ctx), errs.PendingAsyncOps) // S1-34
	st := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("x", []int8{1})}}
	_, err := comms[0].SyncSharedState(ctx, st, core.SyncOptions{})
	require.ErrorIs(t, err, errs.PendingAsyncOps)
	for i := range h {
		<-h[i].Done()
		_, err := h[i].Wait(ctx)
		require.NoError(t, err)
		_, err = h[i].Wait(ctx) // the same answer again
		require.NoError(t, err)
	}
	// Two phase-changing calls at once: one of them is refused.
	out := make(chan error, 2)
	for range 2 {
		go func() { out <- comms[0].UpdateTopology(ctx) }()
	}
	require.ErrorIs(t, <-out, errs.Busy, "the other peer has not voted, so only a refusal can be first") // S1-35
	require.NoError(t, comms[1].UpdateTopology(ctx))
	require.NoError(t, <-out)
}

// A peer closes with operations in flight: each handle of
// each peer gets its verdict, with the first cause, and buffers are as before.
func TestCloseWithOperationsInFlight(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 3, nil)
	const ops = 8
	type flight struct {
		h   *core.Handle
		buf []uint32
	}
	var flights [3][]flight
	for i, c := range comms {
		for k := range ops {
			if i == 2 && k == ops-1 {
				continue // so that the last one cannot commence
			}
			v := make([]uint32, 100_000)
			for j := range v {
				v[j] = uint32(i + j)
			}
			r := core.ReduceOf(v, v, core.Sum)
			r.Tag = uint64(k)
			h, err := c.AllReduceAsync(ctx, r)
			require.NoError(t, err)
			flights[i] = append(flights[i], flight{h, v})
		}
	}
	require.NoError(t, comms[2].Close())
	// Awaits of different peers run at once: the last one of a peer takes part
	// in the round that repairs the ring.
	each(comms, func(i int, _ *core.Communicator) error {
		for k, f := range flights[i] {
			_, err := f.h.Wait(ctx)
			want := uint32(i)
			if err == nil {
				want = 3
			}
			assert.Equal(t, want, f.buf[0], "peer %d, operation %d: %v", i, k, err)
			if k == ops-1 {
				assert.ErrorIs(t, err, errs.RankConnectionLost) // S4-11, S4-13
			}
		}
		return nil
	})
	_, err := comms[2].PeersPending(ctx)
	require.Error(t, err, "a closed communicator says so")
	require.True(t, errors.Is(err, errs.Closed) || errors.Is(err, errs.InvalidUsage), "%v", err) // S4-19
}

// A hundred tiny peers in one world.
func TestHundredTinyPeers(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 100, nil)
	for _, err := range each(comms, func(_ int, c *core.Communicator) error {
		v := []int32{1, 2, 3}
		_, err := core.AllReduceSlice(ctx, c, v, v, core.Sum)
		if err == nil && v[2] != 300 {
			err = fmt.Errorf("sum is %v", v)
		}
		return err
	}) {
		require.NoError(t, err) // S2-56
	}
}

// Two hundred communicators in one process; what one of them costs is logged.
func TestTwoHundredCommunicators(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	var all []*core.Communicator
	for range 100 {
		all = append(all, world(t, ctx, localMaster(t), 2, nil)...)
	}
	for _, err := range each(all, func(_ int, c *core.Communicator) error {
		v := []int32{1}
		_, err := core.AllReduceSlice(ctx, c, v, v, core.Sum)
		if err == nil && v[0] != 2 {
			err = fmt.Errorf("sum is %v", v)
		}
		return err
	}) {
		require.NoError(t, err) // S4-27
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("a communicator, with its half of a master: %d KiB and %d goroutines",
		(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/200>>10, (runtime.NumGoroutine()-goroutines)/200)
}

// The connections of a large pool are opened side by side, whatever
// order they come in, and operations spread over all of them.
func TestPoolIsOpenedAtOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const pool = 24
	master := localMaster(t)
	comms := world(t, ctx, master, 2, func(_ int, o *core.Options) {
		var dials atomic.Int32
		later := make(chan struct{})
		o.PoolSize = pool
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != master {
				switch dials.Add(1) {
				case 2: // the second connection arrives after others behind it
					select {
					case <-later:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				case 5:
					defer close(later)
				}
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	for _, err := range each(comms, func(i int, c *core.Communicator) error {
		var hs []*core.Handle
		var vs [][]int64
		for k := range 2 * pool {
			v := []int64{int64(k), 1}
			r := core.ReduceOf(v, v, core.Sum)
			r.Tag = uint64(k)
			h, err := c.AllReduceAsync(ctx, r)
			if err != nil {
				return err
			}
			hs, vs = append(hs, h), append(vs, v)
		}
		for k, h := range hs {
			if _, err := h.Wait(ctx); err != nil {
				return err
			}
			if vs[k][0] != int64(2*k) || vs[k][1] != 2 {
				return fmt.Errorf("operation %d gave %v", k, vs[k])
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
}

// A connection of a pool that never comes does not hold up the end of the session.
func TestCloseWhileAPoolHasAGap(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	master := localMaster(t)
	const base = 25000
	c, err := connect(ctx, core.Options{Master: master, PortBase: base, ListenHost: "127.0.0.1", HandshakeTimeout: time.Hour})
	require.NoError(t, err)
	var open []net.Conn
	for port := base; port < base+80; port++ {
		nc, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer nc.Close()
		_, err = nc.Write(wire.Append(nil, wire.P2PHello{UUID: wire.UUID{1}, Number: 3, Ext: wire.Ext{Native: true}}))
		require.NoError(t, err)
		open = append(open, nc)
	}
	require.NotEmpty(t, open)
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-ctx.Done():
		t.Fatal("Close waits")
	}
}

// A trainer posts operations, goes on computing and polls for their
// ends; nothing has to wait on a goroutine for them to make progress. The second
// peer posts when the first one has posted all of its own: posting waits for nobody.
func TestPostAndPoll(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 2, nil)
	allPosted := make(chan struct{})
	for _, err := range each(comms, func(id int, c *core.Communicator) error {
		if id == 1 {
			select {
			case <-allPosted:
			case <-ctx.Done():
				c.Close() // frees the first peer
				return errors.New("the first peer cannot post without the second one")
			}
		}
		type posted struct {
			v    []float32
			want float32
		}
		open := map[*core.Handle]posted{}
		for k := range 10 {
			v := make([]float32, 50_000)
			for i := range v {
				v[i] = float32(k)
			}
			r := core.ReduceOf(v, v, core.Sum)
			r.Tag = uint64(k)
			h, err := c.AllReduceAsync(ctx, r)
			if err != nil {
				return err
			}
			open[h] = posted{v, float32(2 * k)}
		}
		if id == 0 {
			for h := range open {
				select {
				case <-h.Done():
					return errors.New("an operation ended that the second peer did not post")
				default:
				}
			}
			close(allPosted)
		}
		computed := 0.0
		for len(open) > 0 && ctx.Err() == nil {
			computed += math.Sqrt(float64(len(open)))
			for h, p := range open {
				select {
				case <-h.Done():
					_, err := h.Wait(ctx)
					if err != nil {
						return err
					}
					if p.v[0] != p.want || p.v[len(p.v)-1] != p.want {
						return fmt.Errorf("sum is %v, not %v", p.v[0], p.want)
					}
					delete(open, h)
				default:
				}
			}
			runtime.Gosched()
		}
		return ctx.Err()
	}) {
		require.NoError(t, err) // S4-02
	}
}

// The documented range of ports holds for many peers behind one address.
func TestPortRange(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(text), "`48149` to `48163 + n`", "the README names the range that is tested here")
	const n, base = 12, 28149
	world(t, ctx, localMaster(t), n, func(_ int, o *core.Options) {
		o.ListenHost, o.PortBase = "127.0.0.1", base
	})
	inside := 0
	for port := base; port <= base+14+n; port++ {
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			c.Close()
			inside++
		}
	}
	require.GreaterOrEqual(t, inside, n, "a listener of each peer") // S1-07
}
