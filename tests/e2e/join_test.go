package e2e

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
)

// enrolling runs a master that lets newcomers in.
func (k keys) enrolling() (addr string, log *lockedLog) {
	return newRealm(k.t).master(func(o *core.MasterOptions) {
		o.Security, o.Enroll = core.SecurityOptions{File: k.file("head", secure.Master)}, k.path()
	})
}

func (k keys) path() string { return filepath.Dir(k.list) }

// token makes one for some peers of group 0.
func (k keys) token(uses int) secure.Token {
	t, _, err := k.NewToken(authority.TokenOptions{Uses: uses, Life: time.Hour, Member: 24 * time.Hour, Role: secure.Peer, Groups: []uint32{0}, Name: "join-*"})
	require.NoError(k.t, err)
	return t
}

func text(t testing.TB, token secure.Token) secure.Join {
	s, err := token.Text()
	require.NoError(t, err)
	return secure.Join(s)
}

// Peers that have a token and nothing else make a run; credentials are written, and
// used the next time. Nothing that is secret is in a log, an error or a file that is
// not private.
func TestRunWithTokens(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := newKeys(t)
	addr, log := k.enrolling()
	token := k.token(3)
	join := text(t, token)
	there := &lockedLog{}
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(string(join)+"\n"), 0o600))
	security := func(id int) core.SecurityOptions {
		s := core.SecurityOptions{Join: join, File: filepath.Join(dir, fmt.Sprint("gpu-", id, ".pem"))}
		if id == 1 {
			s.Join = secure.Join("@" + file)
		}
		return s
	}
	change := func(id int, o *core.Options) {
		o.Security, o.Logger = security(id), slog.New(slog.NewTextHandler(there, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	comms := world(t, ctx, addr, 3, change)
	sums(t, ctx, comms)
	log.has(t, "peer join-", "was let in by join token "+fmt.Sprintf("%x", token.ID))
	var secrets []string
	for i, c := range comms {
		require.NoError(t, c.Close())
		c, err := secure.LoadCredential(security(i).File, secure.LoadOptions{})
		require.NoError(t, err)
		id, err := c.Identity()
		require.NoError(t, err)
		require.Equal(t, []uint32{0}, id.Groups)
		secrets = append(secrets, shown(c.Signer().(ed25519.PrivateKey).Seed())...)
	}
	// The token is used up, and is not needed.
	sums(t, ctx, world(t, ctx, addr, 3, change))
	log.times(t, 3, "was let in")
	require.Equal(t, 3, log.count("was let in"))
	err := tryConnect(ctx, addr, core.SecurityOptions{Join: join}, 0)
	require.ErrorIs(t, err, errs.TurnedAway)
	require.ErrorContains(t, err, "the join token is not valid")
	require.NotContains(t, err.Error(), "used up")
	log.has(t, "it is used up")

	secrets = append(secrets, shown(token.Secret.Reveal())...)
	key, err2 := token.VerifyKey()
	require.NoError(t, err2)
	secrets = append(append(secrets, shown(key)...), string(join)[len("gopccl1."):])
	var all bytes.Buffer
	for _, l := range []*lockedLog{log, there} {
		l.mu.Lock()
		all.Write(l.buf.Bytes())
		l.mu.Unlock()
	}
	fmt.Fprintf(&all, "%v %+v", err, security(0))
	core.DumpState(&all)
	for _, s := range secrets {
		require.NotContains(t, all.String(), s)
	}
}

// shown returns how bytes may be shown.
func shown(b []byte) []string {
	return []string{string(b), fmt.Sprintf("%x", b), base64.StdEncoding.EncodeToString(b), strings.Trim(fmt.Sprint(b), "[]")}
}

// A hundred at once with one use left: one is let in.
func TestTokenAtOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := newKeys(t)
	addr, log := k.enrolling()
	join := text(t, k.token(1))
	var mu sync.Mutex
	in, refused := 0, 0
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			c, err := core.Connect(ctx, core.Options{Master: addr, PortBase: -1, Security: core.SecurityOptions{Join: join}})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				in++
				c.Close()
			} else if errors.Is(err, errs.TurnedAway) {
				refused++
			}
		})
	}
	all.Wait()
	require.Equal(t, []int{1, 99}, []int{in, refused})
	log.times(t, 1, "was let in")
	require.Equal(t, 1, log.count("was let in"))
}

// A token is worth nothing at a master of another run, nor at one that lets nobody in,
// and is not sent there.
func TestTokenElsewhere(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k, other := newKeys(t), newKeys(t)
	token := k.token(1)
	there, log := other.enrolling()
	err := tryConnect(ctx, there, core.SecurityOptions{Join: text(t, token)}, 0)
	require.ErrorIs(t, err, errs.MasterConnectionFailed)
	require.ErrorContains(t, err, "is of another run")
	log.has(t, "it asks for another run")
	closed, _ := k.master("")
	require.ErrorContains(t, tryConnect(ctx, closed, core.SecurityOptions{Join: text(t, token)}, 0), "lets nobody in by join tokens")
	plain, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	go plain.Run(ctx)
	defer plain.Close()
	require.ErrorIs(t, tryConnect(ctx, plain.Addr().String(), core.SecurityOptions{Join: text(t, token)}, 0), errs.MasterConnectionFailed)
	_, err = core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0", Security: core.SecurityOptions{Join: text(t, token)}})
	require.ErrorContains(t, err, "a master needs a credential")
	_, err = core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0", Enroll: k.path()})
	require.ErrorContains(t, err, "no use without a credential")
	require.ErrorContains(t, core.Options{Security: core.SecurityOptions{Join: "gopccl1.x"}}.Check(), "damaged or cut off")

	// One who stands between shows a certificate of its own.
	mallory := newRealm(t)
	cert := mallory.issue(secure.Identity{Name: "head", Role: secure.Master}, 0)
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Leaf().Raw, mallory.Cert.Raw}, PrivateKey: cert.Signer()}},
		NextProtos:   []string{secure.Enrolment.String()},
	})
	require.NoError(t, err)
	defer ln.Close()
	got := make(chan int, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		n, _ := io.Copy(io.Discard, c)
		c.Close()
		got <- int(n)
	}()
	err = tryConnect(ctx, ln.Addr().String(), core.SecurityOptions{Join: text(t, token)}, 0)
	require.ErrorContains(t, err, "does not show the authority that the join token names")
	require.Zero(t, <-got, "bytes of the protocol")
	tokens, err := k.Tokens()
	require.NoError(t, err)
	require.Equal(t, 1, tokens[0].Left)
}

// pinned dials a master as a newcomer does.
func pinned(t *testing.T, addr string, token secure.Token) *tls.Conn {
	c, err := tls.Dial("tcp", addr, token.Client(time.Now))
	require.NoError(t, err)
	return c
}

// asked returns a request, as the documentation of enrolment says, that is made for the
// session of at.
func asked(t *testing.T, at *tls.Conn, token secure.Token) []byte {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	cs := at.ConnectionState()
	session, err := cs.ExportKeyingMaterial("EXPORTER-gopccl-enroll", nil, 32)
	require.NoError(t, err)
	secret, err := token.VerifyKey()
	require.NoError(t, err)
	sum := sha256.Sum256(csr)
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("gopccl-enroll/1"))
	m.Write(session)
	m.Write(sum[:])
	b := append([]byte{1}, token.ID[:]...)
	b = append(b, m.Sum(nil)...)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(csr))), csr...)
}

// code sends a request and returns the first byte of the answer.
func code(t *testing.T, at *tls.Conn, request []byte) int {
	defer at.Close()
	_, err := at.Write(request)
	require.NoError(t, err)
	b, err := io.ReadAll(at)
	if len(b) == 0 {
		require.True(t, err == nil || !errors.Is(err, os.ErrDeadlineExceeded))
		return -1
	}
	return int(b[0])
}

// What was seen of an enrolment is worth nothing in another session, wrong proofs shut a
// token, and nothing but enrolment can be done on such a connection.
func TestHostileEnrolments(t *testing.T) {
	k := newKeys(t)
	addr, log := k.enrolling()
	token := k.token(10)
	first, second := pinned(t, addr, token), pinned(t, addr, token)
	request := asked(t, first, token)
	require.Equal(t, 1, code(t, second, request), "replayed")
	require.Equal(t, 0, code(t, first, request))
	log.has(t, "its secret was not proved")
	for what, b := range map[string][]byte{
		"another version":      append([]byte{9}, request[1:]...),
		"a size too large":     append(bytes.Clone(request[:41]), 0xff, 0xff),
		"the control protocol": make([]byte, 64),
	} {
		require.Equal(t, -1, code(t, pinned(t, addr, token), b), what)
	}
	var none secure.Token
	none.Pin = token.Pin
	none.Secret = secure.NewSecret(make([]byte, 16))
	c := pinned(t, addr, none)
	require.Equal(t, 1, code(t, c, asked(t, c, none)), "a token that is not known")
	for range 5 {
		c := pinned(t, addr, token)
		b := asked(t, c, token)
		b[20] ^= 1
		require.Equal(t, 1, code(t, c, b))
	}
	c = pinned(t, addr, token)
	require.Equal(t, 1, code(t, c, asked(t, c, token)), "shut after wrong proofs")
	tokens, err := k.Tokens()
	require.NoError(t, err)
	require.Equal(t, 9, tokens[0].Left)
}

// An answer that was lost is given again to the same key, and takes no second use; a
// master that ended between the count and the answer gives no use away.
func TestAnswerIsLost(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := newKeys(t)
	addr, log := k.enrolling()
	token := k.token(1)
	cut := make(chan struct{}, 1)
	cut <- struct{}{}
	dial := func(ctx context.Context, network, to string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, to)
		if err != nil {
			return nil, err
		}
		select {
		case <-cut:
			return &deaf{Conn: c, answered: func() { log.has(t, "was let in") }}, nil
		default:
			return c, nil
		}
	}
	c, err := core.Connect(ctx, core.Options{Master: addr, PortBase: -1, Dial: dial, Security: core.SecurityOptions{Join: text(t, token)}})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	log.times(t, 2, "was let in")
	require.Equal(t, 2, log.count("was let in"))
	tokens, err := k.Tokens()
	require.NoError(t, err)
	require.Equal(t, 0, tokens[0].Left)
	require.Len(t, tokens[0].Given, 1)
	require.ErrorIs(t, tryConnect(ctx, addr, core.SecurityOptions{Join: text(t, token)}, 0), errs.TurnedAway)
}

// deaf is a connection that is cut in place of the answer: a newcomer writes its hello,
// the end of the handshake and the request.
type deaf struct {
	net.Conn
	answered func()
	writes   int
}

func (c *deaf) Write(b []byte) (int, error) {
	c.writes++
	return c.Conn.Write(b)
}

func (c *deaf) Read(b []byte) (int, error) {
	if c.writes < 3 {
		return c.Conn.Read(b)
	}
	c.answered()
	c.Conn.Close()
	return 0, io.ErrUnexpectedEOF
}
