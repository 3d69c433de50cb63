package transport_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/platform"
)

func framed(h transport.Header, payload []byte) []byte {
	h.Payload = len(payload)
	b := make([]byte, transport.HeaderSize)
	h.Put((*[transport.HeaderSize]byte)(b))
	return append(b, payload...)
}

// Data spec, section 1.3: length = payload + 16, tag, stream, big-endian.
func TestHeaderBytes(t *testing.T) {
	b := framed(transport.Header{Tag: 0x0102, Stream: 7}, []byte{9})
	require.Equal(t, []byte{0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 7, 9}, b)
}

// Any stream of frames comes out as it went in, however it is cut on the way,
// whatever the sizes of the buffer and of the reads.
func TestReaderCutsAnyStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		var want [][]byte
		for i := range rapid.IntRange(1, 12).Draw(t, "frames") {
			p := bytes.Repeat([]byte{byte(i + 1)}, rapid.IntRange(1, 300).Draw(t, "payload"))
			want = append(want, p)
			stream = append(stream, framed(transport.Header{Tag: uint64(i), Stream: uint64(i * i)}, p)...)
		}
		reads := 0
		rd := transport.NewReader(&pieces{t: t, b: stream}, rapid.IntRange(1, 100).Draw(t, "buffer"))
		rd.BeforeRead = func() { reads++ }
		for i, p := range want {
			h, err := rd.Next()
			require.NoError(t, err)
			require.Equal(t, transport.Header{Payload: len(p), Tag: uint64(i), Stream: uint64(i * i)}, h)
			var got []byte
			for rd.Left() > 0 {
				b := make([]byte, rapid.IntRange(1, rd.Left()).Draw(t, "read"))
				n, err := rd.Payload(b)
				require.NoError(t, err)
				require.Positive(t, n)
				got = append(got, b[:n]...)
			}
			require.Equal(t, p, got)
		}
		_, err := rd.Next()
		require.Equal(t, io.EOF, err)
		require.Positive(t, reads)
	})
}

type pieces struct {
	t *rapid.T
	b []byte
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.b[:rapid.IntRange(1, len(p.b)).Draw(p.t, "piece")])
	p.b = p.b[n:]
	return n, nil
}

// A stream that ends inside a frame or a header is unexpectedly over; headers
// that the protocol forbids are protocol errors (quirk Q24).
func TestReaderErrors(t *testing.T) {
	whole := framed(transport.Header{}, make([]byte, 50))
	for cut := 1; cut < len(whole); cut++ {
		rd := transport.NewReader(bytes.NewReader(whole[:cut]), 30)
		_, err := rd.Next()
		if cut >= transport.HeaderSize {
			require.NoError(t, err)
			_, err = io.ReadFull(readFunc(rd.Payload), make([]byte, 50))
		}
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
	for _, length := range []uint64{0, 15, 16, 1<<30 + 1, 1 << 63, ^uint64(0)} {
		b := binary.BigEndian.AppendUint64(nil, length)
		_, err := transport.NewReader(bytes.NewReader(append(b, make([]byte, 16)...)), 64).Next()
		require.ErrorIs(t, err, errs.Protocol)
	}
	rd := transport.NewReader(bytes.NewReader(whole), 30)
	_, err := rd.Next()
	require.NoError(t, err)
	_, err = rd.Payload(make([]byte, 51))
	require.Error(t, err)
	broken := errors.New("broken")
	_, err = transport.NewReader(iotest.ErrReader(broken), 30).Next()
	require.Equal(t, broken, err)
	_, err = transport.NewReader(readFunc(func([]byte) (int, error) { return 0, nil }), 30).Next()
	require.Equal(t, io.ErrNoProgress, err)
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// A network in memory writes without waiting, too; what only looks like it does not.
func TestTryWriteNeverWaits(t *testing.T) {
	transporttest.Suite{Pair: func(testing.TB) (a, b net.Conn) {
		return transporttest.Pair(transporttest.Options{Buffer: 1000})
	}}.NeverWaits(t)
	memA, _ := transporttest.Pair(transporttest.Options{})
	require.Nil(t, transport.NonBlocking(struct{ net.Conn }{memA}))
}

// What was read of a connection is read again, and nothing else of it changes.
func TestReplay(t *testing.T) {
	a, b := sockets(t)
	b = transport.Quiet(b)
	require.Same(t, b, transport.Replay(b, nil), "there is nothing to be read again")
	_, err := a.Write([]byte("said later"))
	require.NoError(t, err)
	r := transport.Replay(b, []byte("first "))
	p := make([]byte, 4)
	_, err = io.ReadFull(transport.Source(r), p)
	require.NoError(t, err)
	require.Equal(t, "firs", string(p))
	p = make([]byte, 12)
	_, err = io.ReadFull(r, p)
	require.NoError(t, err)
	require.Equal(t, "t said later", string(p))
	require.IsType(t, transport.Source(b), transport.Source(r), "it costs nothing afterwards")
	require.Equal(t, transport.NonBlocking(b) == nil, transport.NonBlocking(r) == nil)
	require.Equal(t, transport.Resumable(b), transport.Resumable(r))
	require.NoError(t, platform.TuneP2P(r, platform.Options{}), "it can be tuned as before")
	require.NoError(t, r.(interface{ CloseWrite() error }).CloseWrite())
	_, err = a.Read(p)
	require.ErrorIs(t, err, io.EOF)
	a, _ = transporttest.Pair(transporttest.Options{})
	half, _ := transport.Replay(struct{ net.Conn }{a}, p).(interface{ CloseWrite() error })
	require.ErrorIs(t, half.CloseWrite(), errors.ErrUnsupported)
}
