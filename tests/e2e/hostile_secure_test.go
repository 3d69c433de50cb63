package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/wire"
)

// reducing has two peers all-reduce until stop, which says how often they did, and that
// none failed.
func reducing(t testing.TB, ctx context.Context, comms []*core.Communicator) (done *atomic.Int64, stop func() int64) {
	var run sync.WaitGroup
	var over atomic.Bool
	var counts [2]atomic.Int64
	var failed [2]error
	for i, c := range comms {
		run.Go(func() {
			data := make([]float32, 16<<10)
			for last := false; !last && failed[i] == nil; counts[i].Add(1) {
				data[0] = 0 // one of the two says that it is over, and both see it in the sum
				if over.Load() && i == 0 {
					data[0] = 1
				}
				_, failed[i] = core.AllReduceSlice(ctx, c, data, data, core.Sum)
				last = data[0] > 0
			}
		})
	}
	return &counts[0], func() int64 {
		over.Store(true)
		run.Wait()
		require.NoError(t, failed[0])
		require.NoError(t, failed[1])
		require.Equal(t, counts[0].Load(), counts[1].Load())
		return counts[0].Load()
	}
}

// polite is what each port answers to those who belong there.
var polite = map[secure.Purpose][]byte{
	secure.Control: wire.Append(nil, wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 1, BenchmarkPort: 1, Ext: wire.Ext{Native: true}}),
	secure.Data:    wire.Append(nil, wire.P2PHello{Ext: wire.Ext{Native: true, Preflight: true}}),
	secure.State:   wire.Append(nil, wire.C2SRequestSharedState{}),
	secure.Bench:   wire.Append(nil, wire.C2BHello{}),
}

// intruder is somebody who does not belong to a group of a run.
type intruder struct {
	name string
	own  *secure.Credential // that it shows; nil: it speaks plaintext
	as   *secure.Trust      // what it believes, if it asks for this run with another run's certificate
}

// dial opens a connection to a port: the socket, which is to be closed, and what is spoken through.
func (i intruder) dial(t testing.TB, addr string, p secure.Purpose) (raw, conn net.Conn) {
	raw, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	require.NoError(t, raw.SetDeadline(time.Now().Add(patience)))
	conn = raw
	if i.own != nil {
		trust, err := secure.NewTrust(secure.TrustOptions{Credential: i.own})
		require.NoError(t, err)
		cfg := trust.Client(secure.Want{Purpose: p})
		if i.as != nil {
			cfg.ServerName, cfg.VerifyConnection = i.as.Client(secure.Want{Purpose: p}).ServerName, nil
		}
		conn = tls.Client(raw, cfg)
	}
	return raw, conn
}

// says sends bytes to a port, and returns what it hears: in TLS inside of it, in plaintext
// but for alerts of TLS.
func (i intruder) says(t testing.TB, addr string, p secure.Purpose, said []byte) []byte {
	raw, conn := i.dial(t, addr, p)
	defer raw.Close()
	_, _ = conn.Write(said) // it may be closed already
	_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	if i.own != nil {
		_ = raw.(*net.TCPConn).CloseWrite()
	}
	heard, _ := io.ReadAll(conn)
	for i.own == nil && len(heard) >= 7 && heard[0] == 0x15 {
		heard = heard[7:]
	}
	return heard
}

// What strangers send to an open port, sent in plaintext, by an endpoint of another run,
// by a member of another group and by one that is revoked, has no effect on a run that
// goes on, and no byte is answered to them.
func TestIntrudersInTLS(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := newKeys(t)
	loaded := func(name string, groups ...uint32) *secure.Credential {
		text, _, err := k.Issue(secure.Identity{Name: name, Role: secure.Peer, Groups: groups}, 30*24*time.Hour, "test")
		require.NoError(t, err)
		c, err := secure.ParseCredential(text)
		require.NoError(t, err)
		return c
	}
	ours, gone, other := loaded("gpu-2"), loaded("gpu-3"), loaded("gpu-4", 7)
	_, err := k.Revoke("gpu-3")
	require.NoError(t, err)
	insider, err := secure.NewTrust(secure.TrustOptions{Credential: ours})
	require.NoError(t, err)
	with := func(name string, role secure.Role) core.SecurityOptions {
		return core.SecurityOptions{File: k.file(name, role), Revoked: k.list}
	}
	addr, log := newRealm(t).master(func(o *core.MasterOptions) { o.Security = with("head", secure.Master) })
	ports := freePorts(t)[:2]
	comms := world(t, ctx, addr, 2, func(id int, o *core.Options) {
		o.Security, o.ListenHost, o.Ports = with("gpu-"+string(rune('0'+id)), secure.Peer), "127.0.0.1", ports[id:id+1]
	})
	sums(t, ctx, comms)
	done, stop := reducing(t, ctx, comms)
	before := done.Load()
	peer := fmt.Sprintf("127.0.0.1:%d", ports[0])
	for _, who := range []intruder{
		{name: "plaintext"},
		{name: "another run", own: newRealm(t).peer("gpu-0").Credential, as: insider},
		{name: "another group", own: other},
		{name: "revoked", own: gone},
	} {
		for _, at := range []struct {
			addr string
			use  secure.Purpose
		}{{addr, secure.Control}, {peer, secure.Data}, {peer, secure.State}, {peer, secure.Bench}} {
			// A member of another group is a client of the master, and bandwidths are
			// measured across groups.
			known := who.name == "another group" && (at.use == secure.Control || at.use == secure.Bench)
			all := maps.Clone(garbage)
			all["what is answered to members"] = polite[at.use]
			for what, said := range all {
				heard := who.says(t, at.addr, at.use, said)
				require.True(t, known || len(heard) == 0, "%s heard %q for %q at %v", who.name, heard, what, at.use)
			}
		}
	}
	// A member does hear something: the test can fail.
	for _, use := range []secure.Purpose{secure.Control, secure.Data, secure.Bench} {
		at := peer
		if use == secure.Control {
			at = addr
		}
		raw, conn := intruder{own: ours}.dial(t, at, use)
		_, err := conn.Write(polite[use])
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1)) // before it ends: who is gone may not be answered
		require.NoError(t, err, "%v", use)
		require.NoError(t, raw.Close())
	}
	require.Greater(t, stop(), before)
	for _, c := range comms {
		a := c.Attributes()
		require.Equal(t, 2, a.LocalWorldSize)
		require.Equal(t, 2, a.GlobalWorldSize)
	}
	sums(t, ctx, comms)
	log.has(t, "kind=stranger")
}
