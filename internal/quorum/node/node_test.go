package node

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/guard"
	free "github.com/gopccl/gopccl/internal/ports"
	"github.com/gopccl/gopccl/internal/quorum"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// far bounds what has to happen some time.
const far = 30 * time.Second

type trio struct {
	t     *testing.T
	names []string
	dir   string
	nodes []*Node
	sec   []guard.Options
}

// ports reserves addresses on the loopback interface.
func ports(t *testing.T, n int) (names []string) {
	t.Helper()
	for range n {
		at, err := free.Address()
		require.NoError(t, err)
		names = append(names, at)
	}
	return names
}

func begin(t *testing.T, sec ...guard.Options) *trio {
	t.Helper()
	w := &trio{t: t, names: ports(t, 3), dir: t.TempDir(), nodes: make([]*Node, 3), sec: append(sec, make([]guard.Options, 3)...)}
	for i := range w.nodes {
		w.start(i)
	}
	t.Cleanup(func() {
		for i := range w.nodes {
			w.end(i)
		}
	})
	return w
}

func (w *trio) options(i int) Options {
	return Options{Masters: w.names, Self: w.names[i], Dir: filepath.Join(w.dir, fmt.Sprint(i)), Security: w.sec[i], Serves: uint16(1000 + i)}
}

func (w *trio) start(i int) {
	n, err := New(w.options(i))
	require.NoError(w.t, err)
	w.nodes[i] = n
}

func (w *trio) end(i int) {
	if n := w.nodes[i]; n != nil {
		require.NoError(w.t, n.Close())
		w.nodes[i] = nil
	}
}

type led struct {
	at   int
	term uint32
	kept []byte
	lost <-chan error
}

// lead waits until one of the nodes that are up leads.
func (w *trio) lead() led {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), far)
	defer cancel()
	all := make(chan led, len(w.nodes))
	asked := 0
	for i, n := range w.nodes {
		if n == nil {
			continue
		}
		asked++
		go func() {
			if term, kept, lost, err := n.Lead(ctx); err == nil {
				cancel()
				all <- led{i, term, kept, lost}
			} else {
				all <- led{at: -1}
			}
		}()
	}
	out := led{at: -1}
	for range asked {
		if l := <-all; l.at >= 0 && l.term > out.term {
			out = l
		}
	}
	require.GreaterOrEqual(w.t, out.at, 0, "nobody leads")
	return out
}

// commit has one that leads confirm that, and commit kept. A busy machine may take the
// lead away from it meanwhile: then it is the next one's. The one before has left former.
func (w *trio) commit(kept, former string) led {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), far)
	defer cancel()
	found := []string{former}
	for {
		l := w.lead()
		require.Contains(w.t, found, string(l.kept))
		err := w.nodes[l.at].Confirm(ctx)
		if err == nil {
			if err = w.nodes[l.at].Commit(ctx, []byte(kept)); err == nil {
				return l
			}
			found = append(found, kept)
		}
		require.Equal(w.t, errs.NotLeading, errs.CodeOf(err), err)
	}
}

// A leader that ends is followed by another one, with a higher term and what was committed.
func TestOneAfterTheOther(t *testing.T) {
	w := begin(t)
	ctx := context.Background()
	before := led{}
	kept := ""
	for round := range 4 {
		former := kept
		kept = fmt.Sprint("kept ", round)
		l := w.commit(kept, former)
		require.Greater(t, l.term, before.term)
		for i, n := range w.nodes {
			if i != l.at && n != nil {
				require.Equal(t, errs.NotLeading, errs.CodeOf(n.Confirm(ctx)))
				require.Equal(t, errs.NotLeading, errs.CodeOf(n.Commit(ctx, nil)))
			}
		}
		lines := strings.Join(w.nodes[l.at].Describe(), "\n")
		require.Contains(t, lines, w.names[l.at]+", this one")
		if round%2 == 0 {
			require.NoError(t, w.nodes[l.at].Resign())
			require.Error(t, <-l.lost)
		} else {
			w.end(l.at)
			w.start(l.at)
		}
		before = l
	}
}

// Followers know where peers find the leader, and the leader points to nobody.
func TestFollowersKnowTheLeader(t *testing.T) {
	w := begin(t)
	l := w.commit("kept", "")
	end := time.Now().Add(far)
	for i, n := range w.nodes {
		for at := n.Leader(); i != l.at && at.Port() != uint16(1000+l.at); at = n.Leader() {
			require.True(t, time.Now().Before(end), "master %d names %v, and not %d", i, at, l.at)
			if time.Sleep(tick); n.Leader() == (netip.AddrPort{}) || w.nodes[l.at].reign == nil {
				l = w.commit("kept", "kept") // a busy machine took the lead away
			}
		}
	}
	require.Equal(t, netip.AddrPort{}, w.nodes[l.at].Leader())
}

// A leader that is alone loses the lead, and confirms and commits nothing.
func TestAlone(t *testing.T) {
	w := begin(t)
	l := w.lead()
	for i := range w.nodes {
		if i != l.at {
			w.end(i)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), far)
	defer cancel()
	err := w.nodes[l.at].Confirm(ctx)
	require.Equal(t, errs.NotLeading, errs.CodeOf(err))
	require.Equal(t, errs.NotLeading, errs.CodeOf(<-l.lost))
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, _, _, err = w.nodes[l.at].Lead(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	w.start((l.at + 1) % 3)
	require.Greater(t, w.lead().term, l.term)
}

// All end and come back: what was committed is there, and terms go on.
func TestAllComeBack(t *testing.T) {
	w := begin(t)
	l := w.commit("kept", "")
	for i := range w.nodes {
		w.end(i)
	}
	for i := range w.nodes {
		w.start(i)
	}
	again := w.lead()
	require.Greater(t, again.term, l.term)
	require.Equal(t, "kept", string(again.kept))
}

// A directory is one master's, and of one list of masters.
func TestDirectory(t *testing.T) {
	w := begin(t)
	w.lead()
	_, err := New(w.options(0))
	require.Equal(t, errs.InvalidUsage, errs.CodeOf(err))
	require.ErrorContains(t, err, "another master has ")
	w.end(0)
	o := w.options(0)
	o.Masters = append(ports(t, 2), w.names[0])
	_, err = New(o)
	require.Equal(t, errs.CorruptFile, errs.CodeOf(err))
	require.ErrorContains(t, err, "it is of the masters ")
	o.Former = w.names // and a directory that nobody has filled
	dir := o.Dir
	o.Dir = t.TempDir()
	_, err = New(o)
	require.Equal(t, errs.InvalidUsage, errs.CodeOf(err))
	require.ErrorContains(t, err, "is empty, and former masters are named")
	o.Dir = dir
	o.Masters = w.names[:2]
	_, err = New(o)
	require.Equal(t, errs.InvalidConfig, errs.CodeOf(err))
}

// Bytes of strangers change nothing, and a master of another list is not heard.
func TestStrangers(t *testing.T) {
	w := begin(t)
	l := w.lead()
	others, err := quorum.NewMembers(append(ports(t, 2), w.names[l.at]), w.names[l.at])
	require.NoError(t, err)
	members := w.nodes[l.at].members
	for name, b := range map[string][]byte{
		"HTTP":          []byte("GET / HTTP/1.1\r\nHost: master\r\n\r\n"),
		"too long":      binary.BigEndian.AppendUint64(nil, 1<<40),
		"another list":  hello(others, l1(others)),
		"no hello":      appendFrame(nil, idMessage, make([]byte, helloSize)),
		"for another":   hello(members, 12345),
		"itself":        hello(members, members.Self()),
		"nothing":       nil,
		"short message": appendFrame(nil, idHello, nil),
	} {
		nc, err := net.Dial("tcp", w.names[l.at])
		require.NoError(t, err)
		_, err = nc.Write(b)
		require.NoError(t, err)
		nc.(*net.TCPConn).CloseWrite()
		nc.SetReadDeadline(time.Now().Add(far))
		_, err = nc.Read(make([]byte, 1))
		require.Error(t, err, name)
		require.NotErrorIs(t, err, context.DeadlineExceeded, name)
		nc.Close()
	}
	// More of them than there are places.
	var flood []net.Conn
	for range maxStrangers + 50 {
		nc, err := net.Dial("tcp", w.names[l.at])
		require.NoError(t, err)
		flood = append(flood, nc)
	}
	away := (l.at + 1) % 3
	w.end(away)
	w.start(away)
	require.NoError(t, w.nodes[l.at].Resign())
	w.commit("kept", "")
	for _, nc := range flood {
		nc.Close()
	}
}

func l1(m quorum.Members) quorum.ID { return m.Self() }

// A master that takes connections and refuses every hello is tried again after pauses that
// grow.
func TestRefusedHello(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	names := append(ports(t, 2), ln.Addr().String())
	var log bytes.Buffer
	n, err := New(Options{Masters: names, Self: names[0], Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	began := time.Now()
	for range 7 {
		nc, err := ln.Accept()
		require.NoError(t, err)
		_, err = readHello(nc, quorum.Members{})
		require.ErrorContains(t, err, "another list")
		nc.Close()
	}
	// Half of 20, 40, 80, 160, 320 and 500 ms at least.
	require.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond)
	require.NoError(t, n.Close())
	require.Equal(t, 1, strings.Count(log.String(), "its log says why"), log.String())
}

// credentials returns what makes credentials of a run.
func credentials(t *testing.T) func(name string, role secure.Role) *secure.Credential {
	a, err := authority.NewAuthority("trial", "", time.Now())
	require.NoError(t, err)
	return func(name string, role secure.Role) *secure.Credential {
		_, b, err := a.NewCredential(secure.Identity{Role: role, Name: name}, []*x509.Certificate{a.Cert}, time.Hour, time.Now())
		require.NoError(t, err)
		c, err := secure.ParseCredential(b)
		require.NoError(t, err)
		return c
	}
}

// With credentials masters speak TLS with masters of their run alone.
func TestSecured(t *testing.T) {
	credential := credentials(t)
	var sec []guard.Options
	for i := range 3 {
		sec = append(sec, guard.Options{Credential: credential(fmt.Sprint("m", i), secure.Master)})
	}
	w := begin(t, sec...)
	l := w.commit("kept", "")

	peer, err := guard.New(guard.Options{Credential: credential("p", secure.Peer)}, 0)
	require.NoError(t, err)
	nc, err := net.Dial("tcp", w.names[l.at])
	require.NoError(t, err)
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), far)
	defer cancel()
	c, err := peer.Dial(ctx, nc, secure.Want{Purpose: secure.Quorum})
	if err == nil { // the client of TLS 1.3 is done first
		_, err = c.Read(make([]byte, 1))
		c.Close()
	}
	require.Error(t, err)

	plain, err := net.Dial("tcp", w.names[l.at])
	require.NoError(t, err)
	defer plain.Close()
	members := w.nodes[(l.at+1)%3].members
	_, err = plain.Write(hello(members, w.nodes[l.at].members.Self()))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, plain) // an alert, and the end
	require.NoError(t, err)
	require.NoError(t, w.nodes[l.at].Resign())
	w.commit("more", "kept")
}

// While masters get credentials one after another, one that has shown a certificate is not
// believed to be behind a connection in plaintext.
func TestMigratingMasters(t *testing.T) {
	credential := credentials(t)
	names := ports(t, 3)
	n, err := New(Options{Masters: names, Self: names[0], Dir: t.TempDir(), Security: guard.Options{Mode: guard.ModeAllow, Credential: credential("m0", secure.Master)}})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), far)
	defer cancel()
	m1, err := guard.New(guard.Options{Credential: credential("m1", secure.Master)}, secure.Master)
	require.NoError(t, err)
	says := func(as int, g *guard.Guard) error {
		members, err := quorum.NewMembers(names, names[as])
		require.NoError(t, err)
		nc, err := net.Dial("tcp", names[0])
		require.NoError(t, err)
		nc, err = g.Dial(ctx, nc, secure.Want{Purpose: secure.Quorum})
		require.NoError(t, err)
		t.Cleanup(func() { nc.Close() })
		_, err = nc.Write(hello(members, n.members.Self()))
		require.NoError(t, err)
		_, err = readWelcome(nc)
		return err
	}
	require.NoError(t, says(1, nil))
	require.NoError(t, says(1, m1))
	require.ErrorContains(t, says(1, nil), "its log says why")
	require.NoError(t, says(1, m1))
	require.NoError(t, says(2, nil), "another one, which has shown none")
}

// What speaks for a master in plaintext ends when that one is dialled, and shows a certificate.
func TestWhoSpokeForAMasterEnds(t *testing.T) {
	credential := credentials(t)
	names := ports(t, 3)
	n, err := New(Options{Masters: names, Self: names[0], Dir: t.TempDir(), Security: guard.Options{Mode: guard.ModeAllow, Credential: credential("m0", secure.Master)}})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	members, err := quorum.NewMembers(names, names[1])
	require.NoError(t, err)
	speak := func() (net.Conn, error) {
		nc, err := net.Dial("tcp", names[0])
		require.NoError(t, err)
		t.Cleanup(func() { nc.Close() })
		require.NoError(t, nc.SetDeadline(time.Now().Add(far)))
		_, err = nc.Write(hello(members, n.members.Self()))
		require.NoError(t, err)
		_, err = readWelcome(nc)
		return nc, err
	}
	nc, err := speak()
	require.NoError(t, err)

	m1, err := guard.New(guard.Options{Credential: credential("m1", secure.Master)}, secure.Master)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", names[1])
	require.NoError(t, err)
	defer ln.Close()
	go func() { // the master itself
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			in = m1.Wrap(in, secure.Quorum)
			t.Cleanup(func() { in.Close() })
			if _, err := m1.Greet(context.Background(), in, secure.Want{Purpose: secure.Quorum}); err != nil {
				continue
			}
			if _, err := readHello(bufio.NewReader(in), members); err == nil {
				_, _ = in.Write(welcome(0))
			}
		}
	}()
	_, err = nc.Read(make([]byte, 1))
	require.Error(t, err)
	require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "it still speaks for a master that has shown its certificate")
	_, err = speak()
	require.ErrorContains(t, err, "its log says why")
}

// Three masters change to TLS one after the other, and what they keep goes on with each of them.
func TestMigrationOfMasters(t *testing.T) {
	credential := credentials(t)
	w := begin(t)
	l, kept := w.commit("0", ""), "0"
	for _, mode := range []string{guard.ModeAllow, guard.ModeRequire} {
		for i := range w.nodes {
			w.sec[i] = guard.Options{Mode: mode, Credential: credential(fmt.Sprint("m", i), secure.Master)}
			w.end(i)
			w.start(i)
			if l.at != i {
				require.NoError(t, w.nodes[l.at].Resign())
			}
			next := fmt.Sprint(mode, i)
			l, kept = w.commit(next, kept), next
		}
	}
}

func FuzzHello(f *testing.F) {
	m, err := quorum.NewMembers([]string{"a:1", "b:1", "c:1"}, "a:1")
	if err != nil {
		f.Fatal(err)
	}
	o, err := quorum.NewMembers([]string{"a:1", "b:1", "c:1"}, "b:1")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(hello(o, m.Self()))
	f.Add(binary.BigEndian.AppendUint64(nil, 1<<63))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := readHello(bytes.NewReader(b), m); err == nil && (!m.Has(id) || id == m.Self()) {
			t.Fatal(id)
		}
		if _, body, err := readFrame(bytes.NewReader(b), 100); err == nil && len(body) > 98 {
			t.Fatal(len(body))
		} else if errors.Is(err, io.EOF) && len(b) >= 8 {
			t.Fatal("the end came inside a frame, and is told as one between frames")
		}
	})
}
