package tlsconn_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/tlsconn"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// Types of what a record holds (RFC 8446, section 5.1).
const (
	isHandshake = 22
	isData      = 23
)

// keyUpdate is the message that asks for new keys in return (section 4.6.3).
var keyUpdate = []byte{24, 0, 0, 1, 1}

// keys are those of one direction, by the secret of its traffic.
type keys struct {
	t      testing.TB
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

// label is HKDF-Expand-Label without a context (section 7.1).
func (k *keys) label(name string, n int) []byte {
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	name = "tls13 " + name
	info = append(append(append(info, byte(len(name))), name...), 0)
	out, err := hkdf.Expand(sha256.New, k.secret, string(info), n)
	require.NoError(k.t, err)
	return out
}

func newKeys(t testing.TB, secret []byte) *keys {
	k := &keys{t: t, secret: secret}
	block, err := aes.NewCipher(k.label("key", 16))
	require.NoError(t, err)
	k.aead, err = cipher.NewGCM(block)
	require.NoError(t, err)
	k.iv = k.label("iv", 12)
	return k
}

func (k *keys) next() *keys { return newKeys(k.t, k.label("traffic upd", sha256.Size)) }

func (k *keys) nonce() []byte {
	n := bytes.Clone(k.iv)
	for i := range 8 {
		n[4+i] ^= byte(k.seq >> (56 - 8*i))
	}
	k.seq++
	return n
}

func (k *keys) seal(kind byte, p []byte) []byte {
	head := []byte{23, 3, 3, 0, 0}
	binary.BigEndian.PutUint16(head[3:], uint16(len(p)+17))
	return k.aead.Seal(head, k.nonce(), append(bytes.Clone(p), kind), head)
}

// open reads one record.
func (k *keys) open(r io.Reader) (kind byte, p []byte, err error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	p = make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(r, p); err != nil {
		return 0, nil, err
	}
	if p, err = k.aead.Open(p[:0], k.nonce(), p, head); err != nil {
		return 0, nil, err
	}
	return p[len(p)-1], p[:len(p)-1], nil
}

// half is a server, and the keys of its client, which a test uses by hand.
func half(t testing.TB, x, y net.Conn) (b *tlsconn.Conn, up, down *keys) {
	client, server := configs()
	var log bytes.Buffer
	client.KeyLogWriter = &log
	b = tlsconn.Server(y, server, pool)
	t.Cleanup(func() { b.Close() })
	over := make(chan error)
	go func() { over <- b.Handshake(context.Background()) }()
	c := tls.Client(x, client)
	require.NoError(t, c.Handshake())
	require.NoError(t, <-over)
	require.Equal(t, tls.TLS_AES_128_GCM_SHA256, c.ConnectionState().CipherSuite)
	secret := func(name string) []byte {
		for line := range strings.Lines(log.String()) {
			if f := strings.Fields(line); f[0] == name {
				b, err := hex.DecodeString(f[2])
				require.NoError(t, err)
				return b
			}
		}
		t.Fatal("no secret")
		return nil
	}
	return b, newKeys(t, secret("CLIENT_TRAFFIC_SECRET_0")), newKeys(t, secret("SERVER_TRAFFIC_SECRET_0"))
}

// Key updates may come all the time, in the middle of writes: the answers have their
// place between the records, and no byte is lost.
func TestKeyUpdatesWhileWriting(t *testing.T) {
	const updates = 500
	for name, pair := range map[string]func() (a, b net.Conn){
		"sockets": func() (a, b net.Conn) { return sockets(t) },
		"memory":  func() (a, b net.Conn) { return transporttest.Pair(transporttest.Options{Buffer: 5000}) },
	} {
		t.Run(name, func(t *testing.T) {
			x, y := pair()
			require.NoError(t, x.SetDeadline(time.Now().Add(time.Minute)))
			b, up, down := half(t, x, y)
			want := fill(3 << 20)
			outcome := make(chan error, 3)
			over := func(err error) {
				if err != nil {
					x.Close() // nothing more will come
				}
				outcome <- err
			}
			unanswered := make(chan struct{}, 64) // more than 100 would end the connection
			go func() {
				for range updates {
					unanswered <- struct{}{}
					if _, err := x.Write(up.seal(isHandshake, keyUpdate)); err != nil {
						over(err)
						return
					}
					up = up.next()
					if _, err := x.Write(up.seal(isData, []byte{1})); err != nil {
						over(err)
						return
					}
				}
				over(nil)
			}()
			read := make(chan struct{})
			go func() {
				defer close(read)
				_, err := io.ReadFull(b, make([]byte, updates))
				over(err)
				_, _ = b.Read(make([]byte, 1)) // as a reader does, which also sends the last answers
			}()
			go func() {
				for i := 0; i < len(want); i += 20_000 {
					if _, err := b.Write(want[i:min(i+20_000, len(want))]); err != nil {
						over(err)
						return
					}
				}
				over(nil)
			}()
			var got []byte
			answers := 0
			for len(got) < len(want) || answers < updates {
				kind, p, err := down.open(x)
				if err != nil {
					require.NoError(t, <-outcome, "after %d bytes and %d answers", len(got), answers)
				}
				require.NoError(t, err)
				if kind == isHandshake {
					require.Equal(t, []byte{24, 0, 0, 1, 0}, p)
					down = down.next()
					answers++
					<-unanswered
					continue
				}
				got = append(got, p...)
			}
			for range 3 {
				require.NoError(t, <-outcome)
			}
			require.True(t, bytes.Equal(want, got))
			require.NoError(t, b.Close())
			<-read
		})
	}
}

// Answers that are read in time are never too many, though some wait all the time.
func TestAnswersNeverRunOut(t *testing.T) {
	const updates, waiting = 2000, 64
	x, y := transporttest.Pair(transporttest.Options{Buffer: 100}) // three answers
	require.NoError(t, x.SetDeadline(time.Now().Add(time.Minute)))
	b, up, down := half(t, x, y)
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(b, make([]byte, updates))
		if err != nil {
			x.Close() // nothing more will come
		}
		read <- err
	}()
	answer := func(n int) {
		kind, _, err := down.open(x)
		if err != nil {
			require.NoError(t, <-read, "after %d answers", n)
		}
		require.EqualValues(t, isHandshake, kind)
		down = down.next()
	}
	for n := range updates {
		_, _ = x.Write(up.seal(isHandshake, keyUpdate))
		up = up.next()
		_, _ = x.Write(up.seal(isData, []byte{1}))
		if n >= waiting {
			answer(n - waiting)
		}
	}
	require.NoError(t, <-read)
}

// A member that asks for new keys and does not read the answers loses its
// connection before they fill the memory.
func TestUnreadKeyUpdates(t *testing.T) {
	x, y := transporttest.Pair(transporttest.Options{Buffer: 2000})
	b, up, _ := half(t, x, y)
	go func() {
		for {
			if _, err := x.Write(up.seal(isHandshake, keyUpdate)); err != nil {
				return
			}
			up = up.next()
			if _, err := x.Write(up.seal(isData, []byte{1})); err != nil {
				return
			}
		}
	}()
	require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err := io.Copy(io.Discard, b)
	require.ErrorContains(t, err, "does not read the answers")
	_, err = b.Write([]byte("x"))
	require.Error(t, err)
	x.Close()
	require.LessOrEqual(t, pool.Stats().InUse, int64(600<<10))
}
