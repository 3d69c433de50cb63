package sockets

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// said is a connection on which somebody has said something, and hung up. What comes in one
// read is as long as part.
type said struct {
	net.Conn
	rest []byte
	part int
	took int
}

func (s *said) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.rest[:min(len(s.rest), s.part)])
	s.rest, s.took = s.rest[n:], s.took+n
	return n, nil
}

func (s *said) SetDeadline(time.Time) error { return nil }
func (s *said) Close() error                { return nil }

// FuzzFirstBytes gives the port whatever strangers may begin with: it takes no more of it than
// it needs to tell what it is, loses none of what it hands on, and says in a few words what it
// refuses.
func FuzzFirstBytes(f *testing.F) {
	for _, begin := range [][]byte{
		nil,
		{0},
		{0x16},
		{0x16, 3, 1, 0, 5},
		[]byte("GET / HTTP/1.1\r\n"), []byte("SSH-2.0-x"), bytes.Repeat([]byte{0xff}, 64),
		wire.Append(nil, wire.P2PHello{}), wire.Append(nil, wire.C2SRequestSharedState{Keys: []string{"a"}}), wire.Append(nil, wire.C2BHello{}),
	} {
		f.Add(begin, byte(1))
		f.Add(begin, byte(255))
	}
	f.Fuzz(func(t *testing.T, begin []byte, part byte) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		all := func(conn net.Conn) {
			got, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Equal(t, len(begin), len(got))
			require.True(t, bytes.Equal(begin, got))
		}
		s := &said{rest: begin, part: 1 + int(part)}
		conn, proto, err := first(ctx, s)
		require.LessOrEqual(t, s.took, wire.FirstSize)
		if err != nil {
			require.Less(t, len(err.Error()), 300)
		} else {
			require.Contains(t, []wire.Proto{wire.P2P, wire.C2S, wire.C2B}, proto)
			all(conn)
		}
		s = &said{rest: begin, part: 1 + int(part)}
		conn, tls, err := peek(ctx, s)
		if require.LessOrEqual(t, s.took, 1); err == nil {
			require.Equal(t, begin[0] == 0x16, tls)
			all(conn)
		}
	})
}
