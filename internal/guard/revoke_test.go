package guard

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/durable"
	"github.com/gopccl/gopccl/internal/tlsconn"
)

// run is an authority with a revocation list in a file.
type run struct {
	t *testing.T
	*authority.Signer
	path string
}

func newRun(t *testing.T) run {
	s, err := authority.NewAuthority("trial", "", time.Now().Add(-100*24*time.Hour))
	require.NoError(t, err)
	r := run{t, s, filepath.Join(t.TempDir(), "revoked.crl")}
	r.revoke(1)
	return r
}

// revoke writes a list of some credentials.
func (r run) revoke(number int64, gone ...*secure.Credential) {
	var entries []x509.RevocationListEntry
	for _, c := range gone {
		entries = append(entries, x509.RevocationListEntry{SerialNumber: c.Leaf().SerialNumber, RevocationTime: time.Now()})
	}
	der, err := r.List(number, entries, nil, time.Now())
	require.NoError(r.t, err)
	require.NoError(r.t, durable.Replace(r.path, der, 0o600))
}

func (r run) issue(name string, at time.Time) *secure.Credential {
	_, text, err := r.NewCredential(secure.Identity{Role: secure.Peer, Name: name}, []*x509.Certificate{r.Cert}, 48*time.Hour, at)
	require.NoError(r.t, err)
	c, err := secure.ParseCredential(text)
	require.NoError(r.t, err)
	return c
}

// guard returns one that reads the list.
func (r run) guard(c *secure.Credential) *Guard {
	g, err := New(Options{Credential: c, Revoked: r.path}, secure.Peer)
	require.NoError(r.t, err)
	return g
}

var data = secure.Want{Purpose: secure.Data}

// connect returns both ends of a connection, or what each of them says.
func (r run) connect(dials, takes *Guard) (a, b net.Conn, dialled, taken error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	defer ln.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	raw, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(r.t, err)
	b, err = ln.Accept()
	require.NoError(r.t, err)
	b = takes.Wrap(b, secure.Data)
	over := make(chan error, 1)
	go func() {
		_, err := takes.Greet(ctx, b, data)
		if err != nil {
			b.Close()
		}
		over <- err
	}()
	a, dialled = dials.Dial(ctx, raw, data)
	taken = <-over
	r.t.Cleanup(func() {
		b.Close()
		if a != nil {
			a.Close()
		}
	})
	return a, b, dialled, taken
}

func (r run) connected(dials, takes *Guard) (a, b net.Conn) {
	a, b, dialled, taken := r.connect(dials, takes)
	require.NoError(r.t, dialled)
	require.NoError(r.t, taken)
	_, err := b.Write([]byte(".")) // as all do that are dialled
	require.NoError(r.t, err)
	_, err = io.ReadFull(a, make([]byte, 1))
	require.NoError(r.t, err)
	return a, b
}

// Connections with a member that a newer list revokes are found, in both directions, and
// their ends say why; others stay, and nobody connects with it any more.
func TestRevokedWhileConnected(t *testing.T) {
	r := newRun(t)
	gone := r.issue("gpu-2", time.Now())
	one, two, three := r.guard(r.issue("gpu-1", time.Now())), of(t, gone), of(t, r.issue("gpu-3", time.Now()))
	a, b := r.connected(one, two)
	c, d := r.connected(two, one)
	e, f := r.connected(three, one)

	news, err := one.Reload()
	require.NoError(t, err)
	require.Nil(t, news, "it is the same list")
	r.revoke(2, r.issue("gpu-2", time.Now()))
	news, err = one.Reload()
	require.NoError(t, err)
	require.Equal(t, &News{Listed: true, Number: 2}, news, "another certificate of the name")

	r.revoke(3, gone)
	news, err = one.Reload()
	require.NoError(t, err)
	require.EqualValues(t, 3, news.Number)
	require.Len(t, news.Revoked, 2)
	lines := news.End()
	require.Len(t, lines, 1)
	require.Equal(t, 2, lines[0].Connections)
	require.Contains(t, lines[0].Why, "certificate revoked of peer gpu-2")
	for _, here := range []net.Conn{a, d} {
		_, err = here.Read(make([]byte, 1))
		require.ErrorIs(t, err, secure.Revoked)
		_, err = here.Write(make([]byte, 1))
		require.ErrorIs(t, err, secure.Revoked)
	}
	for _, there := range []net.Conn{b, c} {
		_, err = there.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err, "the end was said")
	}
	_, err = e.Write([]byte{7})
	require.NoError(t, err)
	_, err = f.Read(make([]byte, 1))
	require.NoError(t, err)
	_, _, dialled, _ := r.connect(one, two)
	require.ErrorIs(t, dialled, secure.Revoked)
	_, _, _, taken := r.connect(two, one)
	require.ErrorIs(t, taken, secure.Revoked)

	f.Close()
	require.Empty(t, one.open, "closed connections are forgotten")
}

// A list that the master has told is in force beside that of the file. One that is older
// than the one before, damaged or of a stranger is not taken over.
func TestListOfTheMaster(t *testing.T) {
	r := newRun(t)
	gone, other := r.issue("gpu-2", time.Now()), r.issue("gpu-3", time.Now())
	two, three := of(t, gone), of(t, other)
	list := func(r run, number int64, gone ...*secure.Credential) []byte {
		r.path = filepath.Join(t.TempDir(), "list")
		r.revoke(number, gone...)
		l, err := secure.LoadList(r.path)
		require.NoError(t, err)
		return l.DER()
	}
	for name, one := range map[string]*Guard{"beside a file": r.guard(r.issue("gpu-1", time.Now())), "alone": of(t, r.issue("gpu-1", time.Now()))} {
		a, _ := r.connected(one, two)
		news, err := one.Take(list(r, 4, gone))
		require.NoError(t, err)
		require.EqualValues(t, 4, news.Number)
		require.Len(t, news.Revoked, 1, name)
		news.End()
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, secure.Revoked)
		for why, der := range map[string][]byte{
			"list 3 is older than list 4": list(r, 3), "not a revocation list": []byte("rubbish"),
			"not signed by a trusted authority": list(newRun(t), 9),
		} {
			news, err := one.Take(der)
			require.Nil(t, news)
			require.ErrorIs(t, err, errs.CorruptFile)
			require.ErrorContains(t, err, why)
		}
		news, err = one.Take(list(r, 5, gone))
		require.NoError(t, err)
		require.EqualValues(t, 5, news.Number)
		_, _, _, taken := r.connect(two, one)
		require.ErrorIs(t, taken, secure.Revoked)
		if one.Listed() == nil {
			continue
		}
		r.revoke(2, other)
		news, err = one.Reload()
		require.NoError(t, err, "each has its own number")
		require.EqualValues(t, 2, news.Number)
		for _, g := range []*Guard{two, three} {
			_, _, _, taken = r.connect(g, one)
			require.ErrorIs(t, taken, secure.Revoked, "both are in force")
		}
	}
	news, err := (*Guard)(nil).Take([]byte("rubbish"))
	require.NoError(t, err)
	require.Nil(t, news)
}

// A list of an issuer does not take the place of that of the authority, whatever its number,
// and a second list with the same number is not taken.
func TestListsOfTwoSigners(t *testing.T) {
	r := newRun(t)
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	cert, err := r.Sign(secure.Identity{Role: secure.Issuer, Name: "desk"}, pub, 48*time.Hour, time.Now())
	require.NoError(t, err)
	desk := r.Below(cert, key)
	_, text, err := desk.NewCredential(secure.Identity{Role: secure.Peer, Name: "gpu-1"}, []*x509.Certificate{r.Cert}, 48*time.Hour, time.Now())
	require.NoError(t, err)
	mine, err := secure.ParseCredential(text)
	require.NoError(t, err)
	gone := r.issue("gpu-2", time.Now())
	one, two := of(t, mine), of(t, gone)
	list := func(s *authority.Signer, number int64, gone ...*secure.Credential) []byte {
		var entries []x509.RevocationListEntry
		for _, c := range gone {
			entries = append(entries, x509.RevocationListEntry{SerialNumber: c.Leaf().SerialNumber, RevocationTime: time.Now()})
		}
		der, err := s.List(number, entries, nil, time.Now())
		require.NoError(t, err)
		return der
	}
	take := func(der []byte) {
		_, err := one.Take(der)
		require.NoError(t, err)
		_, _, _, taken := r.connect(two, one)
		require.ErrorIs(t, taken, secure.Revoked)
	}
	take(list(r.Signer, 2, gone))
	take(list(desk, math.MaxInt64))
	take(list(r.Signer, 3, gone, mine))
	_, err = one.Take(list(r.Signer, 3))
	require.ErrorContains(t, err, "list 3 is another one than list 3")

	// One that trusts the authority alone does not know the issuer.
	_, err = of(t, r.issue("gpu-3", time.Now())).Take(list(desk, 4))
	require.ErrorContains(t, err, "not signed by a trusted authority")
	// The list of a signer that is no longer trusted holds no credential up.
	_, err = one.Renewed(r.issue("gpu-1", time.Now()))
	require.NoError(t, err)
	_, _, _, taken := r.connect(two, one)
	require.ErrorIs(t, taken, secure.Revoked)
}

// Lists of signers that are trusted no more take nobody's place. As long as there is room they
// are kept: what they say counts again should their signer be trusted again.
func TestListsWhoseSignersAreGone(t *testing.T) {
	r := newRun(t)
	mine, gone := r.issue("gpu-1", time.Now()), r.issue("gpu-2", time.Now())
	one := of(t, mine)
	list := func(s *authority.Signer, gone ...*secure.Credential) []byte {
		var entries []x509.RevocationListEntry
		for _, c := range gone {
			entries = append(entries, x509.RevocationListEntry{SerialNumber: c.Leaf().SerialNumber, RevocationTime: time.Now()})
		}
		der, err := s.List(1, entries, nil, time.Now())
		require.NoError(t, err)
		return der
	}
	issue := func(s *authority.Signer, name string) *secure.Credential {
		_, text, err := s.NewCredential(secure.Identity{Role: secure.Peer, Name: name}, []*x509.Certificate{r.Cert}, 48*time.Hour, time.Now())
		require.NoError(t, err)
		c, err := secure.ParseCredential(text)
		require.NoError(t, err)
		return c
	}
	below := func(name string) (*authority.Signer, *secure.Credential) {
		pub, key, err := ed25519.GenerateKey(rand.Reader)
		require.NoError(t, err)
		cert, err := r.Sign(secure.Identity{Role: secure.Issuer, Name: name}, pub, 48*time.Hour, time.Now())
		require.NoError(t, err)
		desk := r.Below(cert, key)
		return desk, issue(desk, "gpu-1")
	}
	connects := func(c *secure.Credential, g *Guard) error {
		_, _, _, taken := r.connect(of(t, c), g)
		return taken
	}
	_, err := one.Take(list(r.Signer, gone))
	require.NoError(t, err)
	first, back := below("desk-0")
	_, err = one.Renewed(back)
	require.NoError(t, err)
	_, err = one.Take(list(first))
	require.NoError(t, err)
	for i := 1; i < 3*MostHeld; i++ { // each in the place of the one before
		desk, c := below(fmt.Sprintf("desk-%d", i))
		_, err = one.Renewed(c)
		require.NoError(t, err)
		_, err = one.Take(list(desk, gone))
		require.NoError(t, err)
		require.LessOrEqual(t, len(one.list.told), MostHeld)
		require.ErrorIs(t, connects(gone, one), secure.Revoked)
	}
	// The list of the authority, which is the oldest one, is in force all the time.
	_, err = one.Renewed(mine)
	require.NoError(t, err)
	require.ErrorIs(t, connects(gone, one), secure.Revoked)

	// With room for it, a list waits for its signer.
	other, of0 := of(t, back), issue(first, "gpu-3")
	_, err = other.Take(list(first, of0))
	require.NoError(t, err)
	_, err = other.Renewed(mine)
	require.NoError(t, err)
	_, err = other.Take(list(r.Signer))
	require.NoError(t, err)
	require.NoError(t, connects(of0, other), "its signer does not count")
	_, err = other.Renewed(back)
	require.NoError(t, err)
	require.ErrorIs(t, connects(of0, other), secure.Revoked)
}

// A list that is older, damaged or gone is not taken over.
func TestListsThatAreNotTakenOver(t *testing.T) {
	r := newRun(t)
	gone := r.issue("gpu-2", time.Now())
	one, two := r.guard(r.issue("gpu-1", time.Now())), of(t, gone)
	r.revoke(2, gone)
	_, err := one.Reload()
	require.NoError(t, err)
	refused := func(why string) {
		news, err := one.Reload()
		require.Nil(t, news)
		require.ErrorIs(t, err, errs.CorruptFile)
		require.ErrorContains(t, err, why)
		_, _, _, taken := r.connect(two, one)
		require.ErrorIs(t, taken, secure.Revoked, "the list before is in force")
	}
	r.revoke(1)
	refused("list 1 is older than list 2")
	require.NoError(t, durable.Replace(r.path, []byte("rubbish"), 0o600))
	refused("not a revocation list")
	require.NoError(t, os.Remove(r.path))
	refused(r.path)
	other := newRun(t)
	other.path = r.path
	other.revoke(9)
	refused("not signed by a trusted authority")
	r.revoke(3, gone)
	news, err := one.Reload()
	require.NoError(t, err)
	require.Equal(t, &News{Listed: true, Number: 3}, news)

	none := of(t, gone)
	news, err = none.Reload()
	require.NoError(t, err)
	require.Nil(t, news)
	news, err = (*Guard)(nil).Reload()
	require.NoError(t, err)
	require.Nil(t, news)
}

// Lists of an authority that was restored from a copy have forgotten who was revoked since.
// Nobody is valid again by that, whatever their numbers, and who they revoke is revoked.
func TestListsOfARestoredAuthority(t *testing.T) {
	r := newRun(t)
	gone, other := r.issue("gpu-2", time.Now()), r.issue("gpu-3", time.Now())
	all := []*secure.Credential{gone, other}
	one := r.guard(r.issue("gpu-1", time.Now()))
	reload := func(number int64, kept string) {
		news, err := one.Reload()
		require.NoError(t, err)
		require.Equal(t, number, news.Number)
		require.Equal(t, kept, news.Kept)
	}
	refused := func(gone ...*secure.Credential) {
		for _, c := range gone {
			_, _, _, taken := r.connect(of(t, c), one)
			require.ErrorIs(t, taken, secure.Revoked)
		}
	}
	r.revoke(3, gone)
	reload(3, "")
	serial := fmt.Sprintf("%032x", gone.Leaf().SerialNumber)
	r.revoke(2)
	_, err := one.Reload()
	require.ErrorContains(t, err, "list 2 is older than list 3, which is in force, and has no "+serial)
	r.revoke(3, other) // the same number once more
	reload(3, serial)
	refused(all...)
	r.revoke(4, other)
	reload(4, serial)
	refused(all...)
	require.Len(t, one.Listed(), 2, "both are told")

	// A newcomer hears of them in whatever order.
	late := of(t, r.issue("gpu-4", time.Now()))
	for i := range one.Listed() {
		_, err := late.Take([]byte(one.Listed()[len(one.Listed())-1-i]))
		require.NoError(t, err)
	}
	for _, c := range all {
		_, _, _, taken := r.connect(of(t, c), late)
		require.ErrorIs(t, taken, secure.Revoked)
	}

	// The authority has taken up what it had forgotten.
	r.revoke(5, all...)
	reload(5, "")
	refused(all...)
	require.Len(t, one.Listed(), 1)

	// As many as the authority loses are not kept for ever.
	for n := int64(6); n < 6+MostHeld-1; n++ {
		r.revoke(n, r.issue("gpu-5", time.Now()))
		_, err = one.Reload()
		require.NoError(t, err)
	}
	r.revoke(100, r.issue("gpu-5", time.Now()))
	_, err = one.Reload()
	require.ErrorContains(t, err, "lacks entries of 8 others")
	refused(all...)
}

// A connection that has outlived its certificate is ended, too.
func TestRevokedAfterExpiry(t *testing.T) {
	r := newRun(t)
	then := time.Now().Add(-50 * 24 * time.Hour)
	back := func(g *Guard, c *secure.Credential) {
		trust, err := secure.NewTrust(secure.TrustOptions{Credential: c, Now: func() time.Time { return then.Add(time.Hour) }})
		require.NoError(t, err)
		g.keeper.Replace(trust)
	}
	mine, gone := r.issue("gpu-1", then), r.issue("gpu-2", then)
	one, two := r.guard(r.issue("gpu-1", time.Now())), of(t, r.issue("gpu-2", time.Now()))
	back(one, mine)
	back(two, gone)
	a, _ := r.connected(one, two)
	one.mu.Lock()
	for c, o := range one.open {
		o.since = then.Add(time.Hour)
		one.open[c] = o
	}
	one.mu.Unlock()
	r.revoke(2, gone)
	news, err := one.Reload()
	require.NoError(t, err)
	require.Len(t, news.Revoked, 1)
	news.End()
	_, err = a.Read(make([]byte, 1))
	require.ErrorIs(t, err, secure.Revoked)
}

// Watch tells of each newer list, and once of an error that lasts.
func TestWatch(t *testing.T) {
	r := newRun(t)
	one := r.guard(r.issue("gpu-1", time.Now()))
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	type told struct {
		news *News
		err  error
	}
	heard := make(chan told, 16)
	go func() {
		defer close(over)
		one.Watch(ctx, time.Millisecond, func(n *News, err error) { heard <- told{n, err} })
	}()
	r.revoke(2)
	require.EqualValues(t, 2, (<-heard).news.Number)
	require.NoError(t, durable.Replace(r.path, []byte("rubbish"), 0o600))
	require.ErrorContains(t, (<-heard).err, "not a revocation list")
	r.revoke(3)
	require.EqualValues(t, 3, (<-heard).news.Number, "an error is told once")
	cancel()
	<-over
	(*Guard)(nil).Watch(context.Background(), 0, nil) // in plaintext it ends
}

// On a plain network both ends prove who they are and go on in plaintext, if both have it
// so; a name that is revoked then loses those connections, too.
func TestPlainNetworks(t *testing.T) {
	r := newRun(t)
	loop := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	other := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	ours, theirs := r.issue("gpu-1", time.Now()), r.issue("gpu-2", time.Now())
	guarded := func(c *secure.Credential, nets []netip.Prefix) *Guard {
		g, err := New(Options{Credential: c, Revoked: r.path, PlainNetworks: nets}, secure.Peer)
		require.NoError(t, err)
		return g
	}
	for _, c := range []struct{ dials, takes []netip.Prefix }{{loop, loop}, {loop, nil}, {nil, loop}, {loop, other}, {other, loop}} {
		takes := guarded(theirs, c.takes)
		a, b, dialled, taken := r.connect(guarded(ours, c.dials), takes)
		require.NoError(t, dialled)
		require.NoError(t, taken)
		clear := len(c.dials) > 0 && len(c.takes) > 0 && c.dials[0] == c.takes[0] && c.dials[0] == loop[0]
		require.Equal(t, clear, a.(*tlsconn.Conn).InClear(), "%+v", c)
		require.Equal(t, clear, b.(*tlsconn.Conn).InClear(), "%+v", c)
		_, err := a.Write([]byte("a tensor"))
		require.NoError(t, err)
		got := make([]byte, 8)
		_, err = io.ReadFull(b, got)
		require.NoError(t, err)
		require.Equal(t, "a tensor", string(got))
		require.Equal(t, "gpu-1", takes.Identity(b).Name)
		a.Close()
		b.Close()
	}
	takes := guarded(theirs, loop)
	_, b, dialled, taken := r.connect(guarded(ours, loop), takes)
	require.NoError(t, dialled)
	require.NoError(t, taken)
	r.revoke(2, ours)
	news, err := takes.Reload()
	require.NoError(t, err)
	require.Len(t, news.End(), 1)
	_, err = b.Read(make([]byte, 1))
	require.ErrorIs(t, err, secure.Revoked)
	_, _, _, taken = r.connect(guarded(ours, loop), takes)
	require.ErrorIs(t, taken, secure.Revoked)
}
