package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/wire"
)

// realm is the authority of a run.
type realm struct {
	t testing.TB
	*authority.Signer
}

func newRealm(t testing.TB) realm {
	s, err := authority.NewAuthority("trial", "", time.Now().Add(-100*24*time.Hour))
	require.NoError(t, err)
	return realm{t, s}
}

// issue makes a credential that was issued some time ago, for 30 days.
func (r realm) issue(id secure.Identity, ago time.Duration) *secure.Credential {
	_, text, err := r.NewCredential(id, []*x509.Certificate{r.Cert}, 30*24*time.Hour, time.Now().Add(-ago))
	require.NoError(r.t, err)
	c, err := secure.ParseCredential(text)
	require.NoError(r.t, err)
	return c
}

func (r realm) peer(name string, groups ...uint32) core.SecurityOptions {
	return core.SecurityOptions{Credential: r.issue(secure.Identity{Name: name, Role: secure.Peer, Groups: groups}, 0)}
}

// master runs a master in TLS until the test ends, and returns what it has logged.
func (r realm) master(change func(*core.MasterOptions)) (addr string, log *lockedLog) {
	log = &lockedLog{}
	o := core.MasterOptions{Listen: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(log, nil))}
	o.Security.Credential = r.issue(secure.Identity{Name: "head", Role: secure.Master}, 0)
	if change != nil {
		change(&o)
	}
	m, err := core.NewMaster(o)
	require.NoError(r.t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	r.t.Cleanup(func() {
		stop()
		<-ended
		m.Close()
	})
	return m.Addr().String(), log
}

type lockedLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedLog) has(t testing.TB, texts ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, text := range texts {
			if !strings.Contains(l.buf.String(), text) {
				return false
			}
		}
		return true
	}, patience, time.Millisecond, "%q in %s", texts, &l.buf)
}

// tapped is a connection whose writes are noted.
type tapped struct {
	net.Conn
	note func([]byte)
}

// Write writes a copy. The race detector takes what the system call has read for read when that is over: by
// then the answer of the other end may be in the same place.
func (c tapped) Write(b []byte) (int, error) {
	c.note(b)
	return c.Conn.Write(bytes.Clone(b))
}

// A run with credentials: all-reduces over pools, bandwidth tests, a shared state and a
// barrier; names are in the log. What is dialled begins with TLS, and the tensors are
// not on the wire.
func TestRunInTLS(t *testing.T) {
	for _, tap := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r := newRealm(t)
		addr, log := r.master(nil)
		var mu sync.Mutex
		dialled, plain, seen := 0, 0, 0
		secret := bytes.Repeat([]byte("not for others; "), 8)
		comms := world(t, ctx, addr, 3, func(id int, o *core.Options) {
			o.Security, o.PoolSize, o.ListenHost = r.peer("gpu-"+string(rune('0'+id))), 2, "127.0.0.1"
			o.Probe.Duration = 300 * time.Millisecond
			if tap {
				o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
					first := true
					return tapped{c, func(b []byte) {
						mu.Lock()
						defer mu.Unlock()
						if first {
							dialled++
							if !bytes.HasPrefix(b, []byte{0x16, 3}) {
								plain++
							}
						}
						if first = false; bytes.Contains(b, secret[:32]) {
							seen++
						}
					}}, err
				}
			}
		})
		sums(t, ctx, comms)
		small := make([][]float32, 3)
		for _, err := range each(comms, func(i int, c *core.Communicator) error {
			for range 20 {
				small[i] = []float32{1, 2, 3}
				if _, err := core.AllReduceSlice(ctx, c, small[i], small[i], core.Sum); err != nil {
					return err
				}
			}
			if err := c.OptimizeTopology(ctx); err != nil {
				return err
			}
			st := &core.SharedState{Revision: 1, Tensors: []core.Tensor{core.TensorOf("w", bytes.Clone(secret))}}
			if i > 0 {
				st.Revision, st.Tensors[0] = 0, core.TensorOf("w", make([]byte, len(secret)))
			}
			if _, err := c.SyncSharedState(ctx, st, core.SyncOptions{}); err != nil {
				return err
			}
			return c.Barrier(ctx)
		}) {
			require.NoError(t, err)
		}
		require.Equal(t, []float32{3, 6, 9}, small[2])
		log.has(t, "gpu-0/", "gpu-2/")
		if tap {
			mu.Lock()
			require.Greater(t, dialled, 10)
			require.Zero(t, plain)
			require.Zero(t, seen)
			mu.Unlock()
		}
		for _, c := range comms {
			require.NoError(t, c.Close())
		}
	}
}

// On a trusted network tensors travel as they are, and nothing else does: with peers that
// have it so and one that does not. Connections with the master stay in TLS.
func TestPlainNetworksInTLS(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := newRealm(t)
	addr, _ := r.master(func(o *core.MasterOptions) {
		o.Security.PlainNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	var mu sync.Mutex
	plain, hellos, control := [3]int{}, 0, 0
	secret := bytes.Repeat([]byte("not for others; "), 1<<12)
	comms := world(t, ctx, addr, 3, func(id int, o *core.Options) {
		o.Security, o.PoolSize, o.ListenHost = r.peer("gpu-"+string(rune('0'+id))), 2, "127.0.0.1"
		o.Probe.Duration = 50 * time.Millisecond
		if id < 2 {
			o.Security.PlainNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		}
		o.Dial = func(ctx context.Context, network, to string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, to)
			first := true
			return tapped{c, func(b []byte) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case first && !bytes.HasPrefix(b, []byte{0x16, 3}):
					t.Errorf("a connection with %s began with % x", to, b[:8])
				case to == addr && !bytes.Contains([]byte{0x14, 0x15, 0x16, 0x17}, b[:1]):
					control++
				case bytes.Contains(b, secret[:32]):
					plain[id]++
				}
				if bytes.HasPrefix(b, make([]byte, 7)) {
					hellos++
				}
				first = false
			}}, err
		}
	})
	for _, err := range each(comms, func(_ int, c *core.Communicator) error {
		if _, err := core.AllReduceSlice(ctx, c, make([]byte, len(secret)), bytes.Clone(secret), core.Max); err != nil {
			return err
		}
		if err := c.OptimizeTopology(ctx); err != nil {
			return err
		}
		st := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("w", bytes.Clone(secret[:1<<12]))}}
		_, err := c.SyncSharedState(ctx, st, core.SyncOptions{})
		return err
	}) {
		require.NoError(t, err)
	}
	for _, c := range comms {
		require.NoError(t, c.Close())
	}
	mu.Lock()
	defer mu.Unlock()
	require.Zero(t, plain[2], "it trusts no network")
	require.Positive(t, plain[0]+plain[1], "one of them has the other behind it in the ring")
	require.Positive(t, hellos)
	require.Zero(t, control)
}

// dialTLS dials with a credential, and says hello in TLS; the caller says the rest.
func dialTLS(t testing.TB, addr string, c *secure.Credential, p secure.Purpose) (net.Conn, error) {
	tr, err := secure.NewTrust(secure.TrustOptions{Credential: c})
	require.NoError(t, err)
	conn, err := tls.Dial("tcp", addr, tr.Client(secure.Want{Purpose: p}))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn, nil
}

// tryConnect connects, and leaves at once.
func tryConnect(ctx context.Context, addr string, s core.SecurityOptions, group uint32) error {
	c, err := core.Connect(ctx, core.Options{Master: addr, PortBase: -1, Security: s, Group: group})
	if err == nil {
		c.Close()
	}
	return err
}

// The role in a certificate says what an endpoint may be.
func TestRolesInTLS(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := newRealm(t)
	addr, _ := r.master(nil)
	observer := r.issue(secure.Identity{Name: "eye", Role: secure.Observer}, 0)
	require.ErrorContains(t, tryConnect(ctx, addr, core.SecurityOptions{Credential: observer}, 0), "does not allow to be a peer")
	_, err := core.NewMaster(core.MasterOptions{Security: r.peer("gpu-0")})
	require.ErrorContains(t, err, "does not allow to be a master")
	// It may ask, and not register.
	conn, err := dialTLS(t, addr, observer, secure.Control)
	require.NoError(t, err)
	_, err = conn.Write(wire.Append(nil, wire.C2MRequestSessionRegistration{P2PPort: 1, Ext: wire.Ext{Native: true}}))
	require.NoError(t, err)
	p, err := wire.Read(conn, wire.M2C, wire.MaxPacket)
	require.NoError(t, err)
	require.False(t, p.(wire.M2CSessionRegistrationResponse).Accepted)
	require.Contains(t, p.(wire.M2CSessionRegistrationResponse).Ext.Reason, "observer")
	_, err = conn.Write(wire.Append(nil, wire.C2MAskTopology{}))
	require.NoError(t, err)
	p, err = wire.Read(conn, wire.M2C, wire.MaxPacket)
	require.NoError(t, err)
	require.IsType(t, wire.M2CTopology{}, p)
	// A peer is not a master, whatever its address.
	ln, err := tls.Listen("tcp", "127.0.0.1:0", serverOf(t, r.peer("gpu-1").Credential))
	require.NoError(t, err)
	defer ln.Close()
	go func() {
		if c, err := ln.Accept(); err == nil {
			_ = c.(*tls.Conn).HandshakeContext(ctx)
			c.Close()
		}
	}()
	require.ErrorIs(t, tryConnect(ctx, ln.Addr().String(), r.peer("gpu-0"), 0), secure.WrongRole)
}

// A peer or program that does not belong to the run gets nothing but an alert of TLS, and is named in
// the log with the reason.
func TestStrangersInTLS(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, other := newRealm(t), newRealm(t)
	t.Run("plaintext", func(t *testing.T) {
		addr, log := r.master(nil)
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write(wire.Append(nil, wire.C2MRequestSessionRegistration{P2PPort: 1}))
		require.NoError(t, err)
		said, _ := io.ReadAll(conn)
		require.Empty(t, said)
		log.has(t, "does not speak TLS")
		require.ErrorIs(t, tryConnect(ctx, addr, core.SecurityOptions{}, 0), errs.MasterConnectionFailed)
	})
	t.Run("another authority", func(t *testing.T) {
		addr, log := r.master(nil)
		err := tryConnect(ctx, addr, other.peer("gpu-0"), 0)
		require.ErrorIs(t, err, errs.MasterConnectionFailed)
		_, err = dialTLS(t, addr, other.peer("gpu-0").Credential, secure.Control)
		require.ErrorContains(t, err, "tls:")
		log.has(t, "another run")
	})
	t.Run("expired", func(t *testing.T) {
		addr, log := r.master(nil)
		old := r.issue(secure.Identity{Name: "gpu-0", Role: secure.Peer}, 40*24*time.Hour)
		require.ErrorContains(t, tryConnect(ctx, addr, core.SecurityOptions{Credential: old}, 0), "the clock of this machine says")
		conn, err := dialTLS(t, addr, old, secure.Control)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		require.ErrorContains(t, err, "tls:")
		log.has(t, "certificate expired of peer gpu-0", "the clock of this machine says")
	})
	t.Run("wrong group", func(t *testing.T) {
		addr, log := r.master(nil)
		require.ErrorContains(t, tryConnect(ctx, addr, r.peer("gpu-0", 1, 2), 3), "does not allow group 3")
		log.has(t, "does not allow group 3")
		require.NoError(t, tryConnect(ctx, addr, r.peer("gpu-0", 1, 2), 2))
	})
	t.Run("one at a time", func(t *testing.T) {
		addr, _ := r.master(nil)
		s := core.SecurityOptions{Credential: r.issue(secure.Identity{Name: "gpu-0", Role: secure.Peer, Single: true}, 0)}
		c, err := core.Connect(ctx, core.Options{Master: addr, PortBase: -1, Security: s})
		require.NoError(t, err)
		defer c.Close()
		require.ErrorContains(t, tryConnect(ctx, addr, s, 0), "one at a time")
	})
	t.Run("revoked", func(t *testing.T) {
		k := newKeys(t)
		gone := k.file("gpu-0", secure.Peer)
		_, err := k.Revoke("gpu-0")
		require.NoError(t, err)
		addr, log := r.master(func(o *core.MasterOptions) {
			o.Security = core.SecurityOptions{File: k.file("head", secure.Master), Revoked: k.list}
		})
		require.ErrorContains(t, tryConnect(ctx, addr, core.SecurityOptions{File: gone}, 0), "its log says why")
		log.has(t, "certificate revoked of peer gpu-0")
		require.NoError(t, tryConnect(ctx, addr, core.SecurityOptions{File: k.file("gpu-1", secure.Peer)}, 0))
	})
	t.Run("a master in plaintext", func(t *testing.T) {
		addr, _ := r.master(func(o *core.MasterOptions) { o.Security = core.SecurityOptions{Mode: "off"} })
		require.ErrorContains(t, tryConnect(ctx, addr, r.peer("gpu-0"), 0), "it may have no credential")
	})
}

func serverOf(t testing.TB, c *secure.Credential) *tls.Config {
	tr, err := secure.NewTrust(secure.TrustOptions{Credential: c})
	require.NoError(t, err)
	return secure.NewKeeper(tr).Server(secure.Control)
}

// At a peer's port nobody gets further who is not of its group, or says that he is
// another member.
func TestSplicingInTLS(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := newRealm(t)
	addr, _ := r.master(nil)
	ports := freePorts(t)[:1]
	log := &lockedLog{}
	comms := world(t, ctx, addr, 3, func(id int, o *core.Options) {
		o.Security = r.peer("gpu-" + string(rune('0'+id)))
		if id == 0 {
			o.ListenHost, o.Ports, o.Logger = "127.0.0.1", ports, slog.New(slog.NewTextHandler(log, nil))
		}
	})
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(ports[0])).String()
	hello := func(c *secure.Credential, p secure.Purpose, say wire.Packet) error {
		conn, err := dialTLS(t, at, c, p)
		if err == nil {
			_, err = conn.Write(wire.Append(nil, say))
		}
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		return err
	}
	who := comms[1].Attributes().UUID
	as := wire.P2PHello{UUID: wire.UUID(who), Ext: wire.Ext{Native: true}}
	require.Error(t, hello(r.peer("gpu-2").Credential, secure.Data, as))
	log.has(t, "gpu-2 says that it is peer")
	require.Error(t, hello(r.peer("gpu-1", 7).Credential, secure.Data, as), "another group")
	require.Error(t, hello(r.peer("gpu-1").Credential, secure.State, as), "another purpose")
	require.Error(t, hello(newRealm(t).peer("gpu-1").Credential, secure.Data, as))
	require.NoError(t, hello(r.peer("gpu-1").Credential, secure.Bench, wire.C2BHello{UUID: as.UUID}))
	require.Error(t, hello(r.peer("gpu-2").Credential, secure.Bench, wire.C2BHello{UUID: as.UUID}), "a measurement in the name of another")
	require.Error(t, hello(r.peer("gpu-1", 7).Credential, secure.State, wire.C2SRequestSharedState{}))
	require.Error(t, hello(newRealm(t).peer("gpu-1").Credential, secure.Bench, wire.C2BHello{}))
	require.NoError(t, hello(r.peer("gpu-1").Credential, secure.State, wire.C2SRequestSharedState{}))
	require.Error(t, hello(r.peer("gpu-9").Credential, secure.State, wire.C2SRequestSharedState{}), "not a member")
	log.has(t, "it gets no shared state")
	for _, plain := range []wire.Packet{as, wire.C2SRequestSharedState{}, wire.C2BHello{UUID: as.UUID}} {
		conn, err := net.Dial("tcp", at)
		require.NoError(t, err)
		_, err = conn.Write(wire.Append(nil, plain))
		require.NoError(t, err)
		said, _ := io.ReadAll(conn)
		require.Empty(t, said)
		conn.Close()
	}
	sums(t, ctx, comms)
}
