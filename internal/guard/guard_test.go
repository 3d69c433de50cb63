package guard

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/bounds"
	"github.com/gopccl/gopccl/internal/sockets"
)

// made returns an authority, and what makes credentials of it.
func made(t *testing.T) (issue func(secure.Role, string, ...uint32) *secure.Credential) {
	s, err := authority.NewAuthority("trial", "", time.Now())
	require.NoError(t, err)
	return func(role secure.Role, name string, groups ...uint32) *secure.Credential {
		_, text, err := s.NewCredential(secure.Identity{Role: role, Name: name, Groups: groups}, []*x509.Certificate{s.Cert}, 48*time.Hour, time.Now())
		require.NoError(t, err)
		c, err := secure.ParseCredential(text)
		require.NoError(t, err)
		return c
	}
}

func of(t *testing.T, c *secure.Credential) *Guard {
	g, err := New(Options{Credential: c}, 0)
	require.NoError(t, err)
	return g
}

// meet connects two guards, and returns what each says of the other.
func meet(t *testing.T, dials, takes *Guard, want, wanted secure.Want) (who secure.Identity, dialled, taken error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			taken = err
			return
		}
		w := takes.Wrap(c, wanted.Purpose)
		defer w.Close()
		who, taken = takes.Greet(ctx, w, wanted)
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	c, dialled = dials.Dial(ctx, c, want)
	<-done
	if c != nil {
		c.Close()
	}
	return who, dialled, taken
}

// The certificate of a neighbour carries the name that was wanted, and a member cannot
// stand in for another one.
func TestWhoIsThere(t *testing.T) {
	issue, other := made(t), made(t)
	one, two := of(t, issue(secure.Peer, "gpu-1", 3)), of(t, issue(secure.Peer, "gpu-2", 3, 4))
	three, four := uint32(3), uint32(4)
	data := secure.Want{Purpose: secure.Data, Group: &three}
	named := func(name string) secure.Want { return secure.Want{Purpose: secure.Data, Group: &three, Name: name} }

	who, dialled, taken := meet(t, one, two, named("gpu-2"), data)
	require.NoError(t, dialled)
	require.NoError(t, taken)
	require.Equal(t, "gpu-1", who.Name)

	_, dialled, _ = meet(t, one, two, named("gpu-3"), data)
	require.ErrorIs(t, dialled, secure.WrongName)
	_, _, taken = meet(t, one, two, named("gpu-2"), secure.Want{Purpose: secure.Data, Group: &four})
	require.ErrorIs(t, taken, secure.WrongGroup)
	_, dialled, taken = meet(t, one, two, secure.Want{Purpose: secure.State}, data)
	require.Error(t, dialled)
	require.ErrorIs(t, taken, secure.WrongProtocol)
	_, dialled, _ = meet(t, one, two, secure.Want{Purpose: secure.Control}, secure.Want{Purpose: secure.Control})
	require.ErrorIs(t, dialled, secure.WrongRole)
	_, dialled, taken = meet(t, of(t, other(secure.Peer, "gpu-1", 3)), two, named("gpu-2"), data)
	require.Error(t, dialled)
	require.ErrorIs(t, taken, secure.Unknown)
}

// Options that can never work are refused by name; those of plaintext make no guard.
func TestOptions(t *testing.T) {
	c := made(t)(secure.Peer, "gpu-1")
	for text, o := range map[string]Options{
		"is not auto, off, allow or":     {Mode: "prefer"},
		"require, and there is no cred":  {Mode: ModeRequire},
		"allow, and there is no credent": {Mode: ModeAllow},
		"is a second credential":         {File: "x", Credential: c},
		"is of no use without a cred":    {Revoked: "x"},
		"is of no use without a credent": {Mode: ModeOff, File: "y", Revoked: "x"},
	} {
		var e bounds.Errors
		o.Check(&e)
		require.ErrorContains(t, e.Err(), text)
	}
	for _, o := range []Options{{}, {Mode: ModeOff, Credential: c}, {Mode: ModeAuto}} {
		var e bounds.Errors
		o.Check(&e)
		require.NoError(t, e.Err())
		g, err := New(o, secure.Peer)
		require.NoError(t, err)
		require.Nil(t, g)
	}
	_, err := New(Options{File: t.TempDir() + "/none"}, secure.Peer)
	require.ErrorIs(t, err, errs.InvalidConfig)
	_, err = New(Options{Credential: c}, secure.Master)
	require.ErrorContains(t, err, "does not allow to be a master")
	_, err = New(Options{Credential: c, Revoked: t.TempDir() + "/none"}, secure.Peer)
	require.ErrorIs(t, err, errs.CorruptFile)
}

// With allow, what comes in plaintext has no name and goes on as it is, and what comes in TLS
// is checked as ever. What is dialled is in TLS. One that says nothing has a place among the
// handshakes.
func TestAllow(t *testing.T) {
	issue, other := made(t), made(t)
	g, err := New(Options{Mode: ModeAllow, Credential: issue(secure.Peer, "gpu-1", 3)}, secure.Peer)
	require.NoError(t, err)
	require.True(t, g.Allows())
	three := uint32(3)
	want := secure.Want{Purpose: secure.Data, Group: &three}
	who, dialled, taken := meet(t, of(t, issue(secure.Peer, "gpu-2", 3)), g, want, want)
	require.NoError(t, dialled)
	require.NoError(t, taken)
	require.Equal(t, "gpu-2", who.Name)
	_, _, taken = meet(t, of(t, other(secure.Peer, "gpu-2", 3)), g, want, want)
	require.ErrorIs(t, taken, secure.Unknown)
	_, dialled, _ = meet(t, g, nil, want, want)
	require.Error(t, dialled)

	near, far := net.Pipe()
	defer far.Close()
	go func() { _, _ = far.Write([]byte("plain")) }()
	w := g.Wrap(near, secure.Data)
	for range 2 {
		p, id, err := g.Meet(context.Background(), w, func(secure.Purpose) secure.Want { return want })
		require.NoError(t, err)
		require.Zero(t, p)
		require.Zero(t, id)
	}
	require.True(t, Plain(w))
	got := make([]byte, 5)
	_, err = io.ReadFull(w, got)
	require.NoError(t, err)
	require.Equal(t, "plain", string(got))
	w.Close()

	ended := make(chan error, maxShaking+1)
	for range maxShaking + 1 { // that say nothing
		near, far := net.Pipe()
		defer far.Close()
		go func() {
			_, err := g.Greet(context.Background(), g.Wrap(placed{near, 2}, secure.Data), want)
			ended <- err
		}()
	}
	require.ErrorContains(t, <-ended, "made room for another one")
}

// The reminder comes at once and every minute, as long as plaintext is accepted.
func TestRemind(t *testing.T) {
	c := made(t)(secure.Peer, "gpu-1")
	for mode, often := range map[string]int{ModeAllow: 3, ModeRequire: 0} {
		g, err := New(Options{Mode: mode, Credential: c}, secure.Peer)
		require.NoError(t, err)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 150*time.Second)
			defer cancel()
			said := 0
			g.Remind(ctx, func() { said++ })
			require.Equal(t, often, said)
		})
	}
}

// A handshake that makes room ends, and says so. One that computes has leave to, and gives
// it up whenever it waits for the other end.
func TestHandshakesAreBounded(t *testing.T) {
	g := of(t, made(t)(secure.Peer, "gpu-1"))
	g.turns.free = 1
	type end struct{ err error }
	begin := func(from byte) (far net.Conn, ended chan end) {
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		ended = make(chan end, 1)
		go func() {
			_, err := g.Greet(context.Background(), g.Wrap(placed{near, from}, secure.Data), secure.Want{Purpose: secure.Data})
			ended <- end{err}
		}()
		_, err := far.Write([]byte{0x16, 3, 1}) // of a record that does not come
		require.NoError(t, err)
		return far, ended
	}
	_, first := begin(1)
	var flood []chan end
	for range maxShaking - 1 {
		_, ended := begin(2)
		flood = append(flood, ended)
	}
	_, _ = begin(3)
	require.ErrorContains(t, (<-flood[0]).err, "made room for another one")
	_, _ = begin(3)
	require.ErrorContains(t, (<-flood[1]).err, "made room for another one")
	require.Empty(t, first)
	// All of them wait for bytes, so there is leave for one that has come with some.
	near, far := net.Pipe()
	defer near.Close()
	done := make(chan error, 1)
	go func() {
		_, err := g.Dial(context.Background(), far, secure.Want{Purpose: secure.Data})
		done <- err
	}()
	conn := g.Wrap(placed{near, 4}, secure.Data)
	who, err := g.Greet(context.Background(), conn, secure.Want{Purpose: secure.Data})
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.Equal(t, "gpu-1", who.Name)
	// Its network has a member until it is closed.
	home := sockets.Network(placed{near, 4}.RemoteAddr())
	require.True(t, g.Home(home))
	conn.Close()
	require.False(t, g.Home(home))
}

// placed is a connection that comes from an address.
type placed struct {
	net.Conn
	last byte
}

func (p placed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, p.last)} }

// A stranger's certificate cannot fill the log.
func TestReasonsAreShort(t *testing.T) {
	g := of(t, made(t)(secure.Peer, "gpu-1"))
	key := func() ed25519.PrivateKey {
		_, k, err := ed25519.GenerateKey(nil)
		require.NoError(t, err)
		return k
	}
	own, another, end := key(), key(), key()
	above := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: strings.Repeat("\x01", 2000)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: above.NotBefore, NotAfter: above.NotAfter}
	root, err := x509.CreateCertificate(rand.Reader, above, above, own.Public(), own)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, leaf, above, end.Public(), another)
	require.NoError(t, err)

	near, far := net.Pipe()
	defer far.Close()
	want := secure.Want{Purpose: secure.Data}
	stranger := g.keeper.Trust().Client(want)
	stranger.GetClientCertificate, stranger.Certificates = nil, []tls.Certificate{{Certificate: [][]byte{der, root}, PrivateKey: end}}
	stranger.VerifyConnection = nil
	go func() {
		_ = tls.Client(far, stranger).Handshake()
		_, _ = io.Copy(io.Discard, far)
	}()
	w := g.Wrap(near, secure.Data)
	defer w.Close()
	_, err = g.Greet(context.Background(), w, want)
	require.ErrorIs(t, err, secure.Unknown)
	require.Contains(t, err.Error(), "unknown authority")
	require.LessOrEqual(t, len(err.Error()), maxReason+4)
}

// One line for an address, a kind and a minute, and one for all of a crowd.
func TestComplaints(t *testing.T) {
	var c Complaints
	at := func(n int) net.Addr { return &net.TCPAddr{IP: net.ParseIP(fmt.Sprintf("10.%d.%d.1", n/256, n%256))} }
	now := time.Unix(1000, 0)
	due := func(n int, now time.Time) int {
		ok, more := c.Due(at(n), "stranger", now)
		if !ok {
			return -1
		}
		return more
	}
	require.Equal(t, 0, due(0, now))
	require.Equal(t, -1, due(0, now.Add(time.Second)))
	require.Equal(t, -1, due(0, now.Add(2*time.Second)))
	require.Equal(t, 2, due(0, now.Add(time.Minute)))
	six := func(addr, kind string) bool {
		ok, _ := c.Due(&net.TCPAddr{IP: net.ParseIP(addr)}, kind, now)
		return ok
	}
	require.True(t, six("2001:db8:0:1::1", "stranger"))
	require.False(t, six("2001:db8:0:1:ffff::2", "stranger"), "its network has been named")
	require.True(t, six("2001:db8:0:2::1", "stranger"))
	require.True(t, six("2001:db8:0:1::1", "hello"), "another kind")
	require.True(t, six("10.0.0.1", "hello"))
	c.seen = map[subject]complaint{{netip.MustParsePrefix("10.0.0.1/32"), "stranger"}: {said: now.Add(time.Minute)}}
	said := 0
	for n := range 3 * maxComplaints {
		if due(n+1, now.Add(time.Minute)) >= 0 {
			said++
		}
	}
	require.Equal(t, maxComplaints, said)
	require.LessOrEqual(t, len(c.seen), maxComplaints+1)
	require.Equal(t, 0, due(9999, now.Add(2*time.Minute)), "old ones are forgotten")
}
