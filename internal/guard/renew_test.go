package guard

import (
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/tlsconn"
)

// watch is a clock that stands still unless a test moves it.
type watch struct{ ahead atomic.Int64 }

func (w *watch) now() time.Time { return began.Add(time.Duration(w.ahead.Load())) }

func (w *watch) set(d time.Duration) { w.ahead.Store(int64(d)) }

var began = time.Now()

// by returns a guard with a clock of its own.
func (r run) by(w *watch, name string) *Guard {
	g, err := at(Options{Credential: r.issue(name, began), Revoked: r.path}, secure.Peer, w.now)
	require.NoError(r.t, err)
	return g
}

// drained reads a connection to its end, and returns why it ended.
func drained(conn net.Conn) <-chan error {
	why := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn)
		why <- err
	}()
	return why
}

// serial returns that of the certificate at the other end of a connection.
func serial(g *Guard, conn net.Conn) string { return g.Identity(conn).Serial }

// shows waits until the other end of a connection has shown another certificate.
func shows(t *testing.T, g *Guard, conn net.Conn, before string) {
	require.Eventually(t, func() bool { return serial(g, conn) != before }, time.Minute, time.Millisecond)
}

// A connection ends when the certificate of either end has expired, by the clock of either.
func TestExpiry(t *testing.T) {
	r, clock := newRun(t), &watch{}
	one, two := r.by(clock, "gpu-1"), r.by(clock, "gpu-2")
	a, b := r.connected(one, two)
	ended := drained(a)
	clock.set(47 * time.Hour)
	require.Nil(t, two.age())
	clock.set(49 * time.Hour)
	news := two.age()
	require.Len(t, news.Revoked, 1)
	require.ErrorIs(t, news.Revoked[0].Err, secure.Expired)
	require.ErrorContains(t, news.Revoked[0].Err, "it is that of this end")
	news.End()
	_, err := b.Read(make([]byte, 1))
	require.ErrorIs(t, err, secure.Expired)
	<-ended

	// The other end's, by a clock that is an hour ahead: it says until when it was valid.
	clock.set(0)
	ahead := &watch{}
	three := r.by(ahead, "gpu-3")
	a, b = r.connected(one, three)
	ahead.set(2*24*time.Hour - time.Minute)
	_, err = three.Renewed(r.issue("gpu-3", began.Add(24*time.Hour))) // its own lasts
	require.NoError(t, err)
	require.Nil(t, three.age())
	ahead.set(2*24*time.Hour + time.Minute)
	news = three.age()
	require.Len(t, news.Revoked, 1)
	require.ErrorIs(t, news.Revoked[0].Err, secure.Expired)
	require.ErrorContains(t, news.Revoked[0].Err, "peer gpu-1: valid from")
	require.ErrorContains(t, news.Revoked[0].Err, "the clock of this machine says "+stamp(ahead.now()))
	news.End()
	_, err = b.Write([]byte("x"))
	require.ErrorIs(t, err, secure.Expired)
	require.Nil(t, one.age(), "by its clock all is well")
	_ = a.Close()
}

// Where a clock is wrong, the refusal names both, in both directions, and nothing hangs.
func TestSkewedClock(t *testing.T) {
	r, right, wrong := newRun(t), &watch{}, &watch{}
	one, two := r.by(right, "gpu-1"), r.by(wrong, "gpu-2")
	for _, c := range []struct {
		by     time.Duration
		reason secure.Reason
	}{{49 * time.Hour, secure.Expired}, {-time.Hour, secure.NotYet}} {
		wrong.set(c.by)
		_, _, dialled, taken := r.connect(one, two)
		require.ErrorIs(t, taken, c.reason)
		require.ErrorContains(t, taken, "the clock of this machine says "+stamp(wrong.now())+", and that of the other end "+stamp(right.now()))
		if dialled != nil { // the refusal may come behind the handshake
			require.ErrorContains(t, dialled, "its log says why")
		}
		_, _, dialled, _ = r.connect(two, one)
		require.ErrorIs(t, dialled, c.reason)
		require.ErrorContains(t, dialled, "the clock of this machine says "+stamp(wrong.now())+", and that of the other end "+stamp(right.now()))
	}
}

// Ends that have newer certificates show them in connections that are open, with new keys,
// so these outlive the certificates with which they were made. What is under way goes on.
func TestConnectionsOutliveCertificates(t *testing.T) {
	r, clock := newRun(t), &watch{}
	one, two := r.by(clock, "gpu-1"), r.by(clock, "gpu-2")
	a, b := r.connected(one, two)
	first, second := serial(one, a), serial(two, b)
	ended := drained(a)
	var got atomic.Int64
	go func() {
		for p := make([]byte, 100); ; {
			n, err := b.Read(p)
			if got.Add(int64(n)); err != nil {
				return
			}
		}
	}()
	var sent int64
	say := func(text string) { // and wait until it is heard
		sent += int64(len(text))
		_, err := a.Write([]byte(text))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return got.Load() == sent }, time.Minute, time.Millisecond)
	}
	say("one ")

	clock.set(32 * time.Hour)
	_, err := one.Renewed(r.issue("gpu-1", clock.now()))
	require.NoError(t, err)
	require.Nil(t, one.age())
	shows(t, two, b, second)
	require.Equal(t, first, serial(one, a), "the other end has no other certificate yet")
	say("two ")

	// The one that was dialled cannot begin: it is asked when the end is near.
	_, err = two.Renewed(r.issue("gpu-2", clock.now()))
	require.NoError(t, err)
	require.Nil(t, two.age())
	clock.set(45 * time.Hour)
	require.Nil(t, one.age())
	shows(t, one, a, first)
	say("three")

	clock.set(60 * time.Hour)
	require.Nil(t, one.age())
	require.Nil(t, two.age())
	clock.set(81 * time.Hour)
	require.NotNil(t, two.age(), "nothing is for ever")
	_ = a.Close()
	<-ended
}

// keys tells the keys of a connection from those before and behind.
func keys(conn net.Conn) string {
	cs := conn.(*tlsconn.Conn).ConnectionState()
	k, err := cs.ExportKeyingMaterial("test", nil, 32)
	return fmt.Sprintf("%x %v", k, err)
}

// The other end, whose certificate is old and who has no newer one, is asked again when the
// time since is a quarter of what is left by then, and not whenever somebody looks.
func TestOldCertificatesAreAskedForRarely(t *testing.T) {
	r, clock := newRun(t), &watch{}
	one, two := r.by(clock, "gpu-1"), r.by(clock, "gpu-2")
	a, b := r.connected(one, two)
	drained(a)
	drained(b)
	look := func() opened {
		one.mu.Lock()
		defer one.mu.Unlock()
		return one.open[a.(*tlsconn.Conn)]
	}
	asked := 0
	for at := 40 * time.Hour; at < 48*time.Hour; at += time.Minute {
		clock.set(at)
		o, before := look(), keys(a)
		due := o.stale(one.Credential(), clock.now(), 0, 0)
		require.Nil(t, one.age())
		if !due {
			continue
		}
		asked++
		require.Eventually(t, func() bool { return look().since.Equal(clock.now()) }, time.Minute, time.Millisecond)
		require.NotEqual(t, before, keys(a))
		require.Eventually(t, func() bool { return keys(b) == keys(a) }, time.Minute, time.Millisecond)
	}
	require.Greater(t, asked, 2)
	require.Less(t, asked, 40, "in eight hours, of which 480 minutes were looked at")
	_ = a.Close()
}

// Those who are somebody else by then, or were revoked, do not go on.
func TestOtherEndsDoNotGoOn(t *testing.T) {
	r, clock := newRun(t), &watch{}
	one, two := r.by(clock, "gpu-1"), r.by(clock, "gpu-2")
	a, b := r.connected(one, two)
	ended := drained(a)
	one.list.opt.Credential = r.issue("gpu-3", began) // as nothing lets it be
	trust, err := secure.NewTrust(one.list.opt)
	require.NoError(t, err)
	one.keeper.Replace(trust)
	require.NoError(t, a.(*tlsconn.Conn).Renew())
	_, err = b.Read(make([]byte, 1))
	require.ErrorIs(t, err, secure.WrongName)
	<-ended

	one = r.by(clock, "gpu-1")
	a, b = r.connected(one, two)
	ended = drained(a)
	why := drained(b)
	newer := r.issue("gpu-1", began)
	_, err = one.Renewed(newer)
	require.NoError(t, err)
	before := serial(two, b)
	require.Nil(t, one.age())
	shows(t, two, b, before)
	r.revoke(2, newer)
	news, err := two.Reload()
	require.NoError(t, err)
	require.Len(t, news.Revoked, 1, "it is the certificate that was shown last")
	news.End()
	require.ErrorIs(t, <-why, secure.Revoked)
	<-ended
}

// Many connections show another certificate one after another.
func TestRenewalsAreSpread(t *testing.T) {
	r, clock := newRun(t), &watch{}
	one, two := r.by(clock, "gpu-1"), r.by(clock, "gpu-2")
	const many = 41
	var ends []net.Conn
	for i := range many {
		a, b := r.connected(one, two)
		drained(a)
		drained(b)
		ends = append(ends, b)
		one.note(a.(*tlsconn.Conn), func(o *opened) { o.place = float64(i) / many })
	}
	require.Nil(t, one.age())
	before := serial(two, ends[0])
	clock.set(32 * time.Hour)
	_, err := one.Renewed(r.issue("gpu-1", clock.now()))
	require.NoError(t, err)
	begun := func() (n int) {
		one.mu.Lock()
		defer one.mu.Unlock()
		for _, o := range one.open {
			if !o.tried.IsZero() || o.shown == one.Credential() {
				n++
			}
		}
		return n
	}
	last := 0
	for i := range 5 {
		clock.set(32*time.Hour + time.Duration(i)*shownEvery*many/4)
		require.Nil(t, one.age())
		now := begun()
		require.LessOrEqual(t, now-last, many/4+1, "at once")
		last = now
	}
	require.Equal(t, many, last)
	for _, b := range ends {
		shows(t, two, b, before)
	}

	// The old one ends soon: nobody waits for its place so long.
	late := opened{shown: one.Credential(), place: 1}
	turned := late.shown.Leaf().NotAfter.Add(-3 * time.Second)
	require.False(t, late.stale(nil, turned.Add(time.Second), time.Second, time.Minute))
	require.True(t, late.stale(nil, turned.Add(1600*time.Millisecond), 1600*time.Millisecond, time.Minute))

	// That of the other end gets old for all at once.
	o := opened{shown: one.Credential(), until: began.Add(24 * time.Hour)}
	o.id.NotBefore = began
	due := map[bool]int{}
	for i := range 100 {
		o.place = float64(i) / 100
		due[o.stale(o.shown, began.Add(20*time.Hour+30*time.Minute), 0, 0)]++
	}
	require.Equal(t, map[bool]int{true: 50, false: 50}, due)
}
