package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/wire"
)

// migrating is a run in plaintext that gets credentials.
type migrating struct {
	t     *testing.T
	ctx   context.Context
	r     realm
	addr  string
	state string
	log   *lockedLog
	stop  func()

	revision uint64 // of the shared state

	mu    sync.Mutex
	first map[string]map[byte]bool // first bytes of what was dialled, by address
}

// lead runs a master at the address of the run, in place of the one before.
func (g *migrating) lead(mode string) {
	g.stop()
	g.log = &lockedLog{}
	o := core.MasterOptions{Listen: g.addr, State: g.state, Logger: slog.New(slog.NewTextHandler(g.log, nil))}
	if o.Security.Mode = mode; mode != guard.ModeOff {
		o.Security.Credential = g.r.issue(secure.Identity{Name: "head", Role: secure.Master}, 0)
	}
	m, err := core.NewMaster(o)
	require.NoError(g.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	g.stop = func() {
		cancel()
		require.NoError(g.t, <-ended)
		require.NoError(g.t, m.Close())
	}
}

// join has a peer connect, and all others let it in; name: of its certificate, "": it has
// none.
func (g *migrating) join(others []*core.Communicator, name, mode string) (c *core.Communicator) {
	o := core.Options{Master: g.addr, ListenHost: "127.0.0.1", PortBase: -1, Dial: g.dial}
	if name != "" {
		o.Security = g.r.peer(name)
	}
	o.Security.Mode = mode
	in := make(chan error, 1)
	go func() {
		var err error
		c, err = core.Connect(g.ctx, o)
		in <- err
	}()
	for _, err := range each(others, func(_ int, c *core.Communicator) error {
		for updated := false; !updated || c.Attributes().LocalWorldSize <= len(others); {
			pending, err := c.PeersPending(g.ctx)
			if err == nil && pending { // for a newcomer, or because a member has left
				updated, err = true, c.UpdateTopology(g.ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}) {
		require.NoError(g.t, err)
	}
	require.NoError(g.t, <-in)
	g.t.Cleanup(func() { c.Close() })
	return c
}

// replace has a member leave, and one with a certificate come in its place.
func (g *migrating) replace(all []*core.Communicator, i int, mode string) {
	require.NoError(g.t, all[i].Close())
	all[i] = g.join(slices.Concat(all[:i], all[i+1:]), fmt.Sprint("gpu-", i), mode)
}

// dial notes with which byte connections begin.
func (g *migrating) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	var once sync.Once
	return tapped{c, func(b []byte) {
		once.Do(func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.first[addr] == nil {
				g.first[addr] = map[byte]bool{}
			}
			g.first[addr][b[0]] = true
		})
	}}, nil
}

// work has all members do what a run does.
func (g *migrating) work(all []*core.Communicator) {
	sums(g.t, g.ctx, all)
	g.revision++
	for _, err := range each(all, func(i int, c *core.Communicator) error {
		if err := c.OptimizeTopology(g.ctx); err != nil {
			return err
		}
		w := []float32{float32(i), 7}
		st := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("w", w)}}
		if i == len(all)-1 {
			st.Revision = g.revision
		}
		if _, err := c.SyncSharedState(g.ctx, st, core.SyncOptions{}); err != nil {
			return err
		}
		got := make([]float32, 2*len(all))
		_, err := core.AllGather(g.ctx, c, got, w)
		for k := range len(all) {
			if err == nil && (got[2*k] != w[0] || got[2*k+1] != 7) {
				err = fmt.Errorf("the states of all are %v, and that of this peer is %v", got, w)
			}
		}
		return err
	}) {
		require.NoError(g.t, err)
	}
}

// A run gets credentials one endpoint after another, and no call of those that stay fails:
// beside each other, members with and without a certificate do all that members do.
func TestMigration(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	g := &migrating{t: t, ctx: ctx, r: newRealm(t), addr: freeAddresses(t, 1)[0], state: t.TempDir(), stop: func() {}, first: map[string]map[byte]bool{}}
	defer func() { g.stop() }()
	g.lead(guard.ModeOff)
	var all []*core.Communicator
	for range 3 {
		all = append(all, g.join(all, "", guard.ModeOff))
	}
	g.work(all)
	g.lead(guard.ModeAllow)
	g.work(all)
	g.log.has(t, "security.mode is allow")
	for i := range all {
		g.replace(all, i, guard.ModeAllow)
		g.work(all)
		g.log.has(t, fmt.Sprintf("gpu-%d/", i))
	}
	g.lead(guard.ModeAllow)
	g.work(all)
	g.log.has(t, "security.mode is allow")

	g.mu.Lock()
	g.first = map[string]map[byte]bool{}
	g.mu.Unlock()
	g.lead(guard.ModeRequire)
	g.work(all)
	for i := range all {
		g.replace(all, i, guard.ModeRequire)
		g.work(all)
	}
	require.NotEmpty(t, g.first)
	for addr, began := range g.first {
		require.Equal(t, map[byte]bool{0x16: true}, began, "%s was dialled in plaintext, where all have a certificate", addr)
	}
	_, err := core.Connect(ctx, core.Options{Master: g.addr, PortBase: -1, Security: core.SecurityOptions{Mode: guard.ModeOff}})
	require.Error(t, err)
	for _, c := range all {
		require.NoError(t, c.Close())
	}
}

// Beside plaintext a name stays the property of its certificate: nobody without it takes the
// uuid or the session that goes with it, and those who require TLS are in no group with
// plaintext.
func TestAllowKeepsNames(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := newRealm(t)
	addr, _ := r.master(func(o *core.MasterOptions) { o.Security.Mode = guard.ModeAllow })
	log, ports := &lockedLog{}, freePorts(t)[:3]
	all := world(t, ctx, addr, 3, func(id int, o *core.Options) {
		o.ListenHost, o.Ports, o.PortBase, o.HandshakeTimeout = "127.0.0.1", ports[id:id+1], 0, patience
		o.Security.Mode = guard.ModeOff
		if id < 2 {
			o.Security = r.peer(fmt.Sprint("gpu-", id))
			o.Security.Mode = guard.ModeAllow
		}
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	sums(t, ctx, all)
	at := func(id int) string { return fmt.Sprintf("127.0.0.1:%d", ports[id]) }
	named := wire.UUID(all[0].Attributes().UUID)

	conn, err := net.Dial("tcp", at(1))
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(wire.Append(nil, wire.P2PHello{UUID: named, Ext: wire.Ext{Native: true}}))
	require.NoError(t, err)
	log.has(t, "an endpoint without a certificate says that it is peer", "whose name is gpu-0")

	hello := wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: wire.Ext{Native: true}}
	hello.Ext.Resuming = wire.Resuming{Resume: true, Identity: wire.Identity{UUID: named}}
	require.NotContains(t, string(say(t, addr, hello)), string(named[:]), "the session of gpu-0")

	o := core.Options{Master: addr, ListenHost: "127.0.0.1", PortBase: -1, Security: r.peer("gpu-9")}
	_, err = core.Connect(ctx, o)
	require.ErrorContains(t, err, "takes nothing in plaintext")
	sums(t, ctx, all)
	for _, c := range all {
		require.NoError(t, c.Close())
	}
}
