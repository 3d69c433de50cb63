package wire

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// traceConn is one captured TCP connection: what each side sent, in order.
type traceConn struct {
	trace, kind string
	id          int
	c2s, s2c    []byte
}

func loadTraces(t testing.TB) (conns []traceConn) {
	paths, err := filepath.Glob("testdata/trace_*.json")
	require.NoError(t, err)
	require.Len(t, paths, 5)
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		var file struct {
			Trace       string
			Connections []struct {
				ID     int
				Kind   string
				Events []struct{ Dir, Hex string }
			}
		}
		require.NoError(t, json.Unmarshal(raw, &file))
		for _, c := range file.Connections {
			tc := traceConn{trace: file.Trace, kind: c.Kind, id: c.ID}
			for _, e := range c.Events {
				b := unhex(t, e.Hex)
				if e.Dir == "c2s" {
					tc.c2s = append(tc.c2s, b...)
				} else {
					tc.s2c = append(tc.s2c, b...)
				}
			}
			conns = append(conns, tc)
		}
	}
	return conns
}

// consume decodes one direction of a connection that arrives in pieces and
// returns the bytes that the decoded values encode to.
type consume interface {
	feed(t require.TestingT, piece []byte)
	encoded() []byte
	// done asserts that nothing is left over.
	done(t require.TestingT)
}

// ltv consumes a stream of nothing but packets.
type ltv struct {
	s   pieces
	out []byte
	n   int
}

func newLTV(p Proto) *ltv { return &ltv{s: pieces{proto: p}} }

func (l *ltv) next(t require.TestingT) bool {
	p, ok, err := l.s.next()
	require.NoError(t, err)
	if ok {
		require.Equal(t, l.s.proto, p.Proto())
		l.out = Append(l.out, p)
		l.n++
	}
	return ok
}

func (l *ltv) feed(t require.TestingT, piece []byte) {
	l.s.feed(piece)
	for l.next(t) {
	}
}
func (l *ltv) encoded() []byte         { return l.out }
func (l *ltv) done(t require.TestingT) { require.Empty(t, l.s.buf) }

// frames consumes a Hello and then multiplexed frames.
type frames struct {
	ltv
	rest                []byte
	hello               bool
	data, metas, frames int
}

func (f *frames) feed(t require.TestingT, piece []byte) {
	if !f.hello {
		f.s.feed(piece)
		if f.hello = f.next(t); !f.hello {
			return
		}
		piece = f.s.buf
	}
	f.rest = append(f.rest, piece...)
	for len(f.rest) >= FrameHeaderSize {
		n, tag, stream, err := ParseFrameHeader((*[FrameHeaderSize]byte)(f.rest))
		require.NoError(t, err)
		if len(f.rest) < FrameHeaderSize+n {
			return
		}
		payload := f.rest[FrameHeaderSize : FrameHeaderSize+n]
		f.rest = f.rest[FrameHeaderSize+n:]
		f.frames++

		var head [FrameHeaderSize]byte
		PutFrameHeader(&head, n, tag, stream)
		f.out = append(f.out, head[:]...)
		if m, err := DecodeMeta(payload); err == nil {
			require.Equal(t, tag, m.Tag)
			f.metas++
			f.out = AppendMeta(f.out, &m)
		} else {
			f.data += n
			f.out = append(f.out, payload...)
		}
	}
}

func (f *frames) done(t require.TestingT) {
	require.True(t, f.hello)
	require.Empty(t, f.rest)
}

// stateAnswer consumes a shared state response and the raw bytes of its entries.
type stateAnswer struct {
	ltv
	raw  []byte
	want int
}

func (s *stateAnswer) feed(t require.TestingT, piece []byte) {
	if s.n == 0 {
		s.s.feed(piece)
		p, ok, err := s.s.next()
		require.NoError(t, err)
		if !ok {
			return
		}
		s.n++
		s.out = Append(s.out, p)
		for _, e := range p.(S2CSharedStateResponse).Entries {
			s.want += int(e.Size)
		}
		piece = s.s.buf
	}
	s.raw = append(s.raw, piece...)
}

func (s *stateAnswer) encoded() []byte { return append(bytes.Clone(s.out), s.raw...) }
func (s *stateAnswer) done(t require.TestingT) {
	require.Equal(t, 1, s.n)
	require.Len(t, s.raw, s.want)
}

func consumers(t testing.TB, kind string) (c2s, s2c consume) {
	switch kind {
	case "master":
		return newLTV(C2M), newLTV(M2C)
	case "p2p":
		return &frames{ltv: *newLTV(P2P)}, newLTV(P2P)
	case "shared_state":
		return newLTV(C2S), &stateAnswer{ltv: *newLTV(S2C)}
	case "benchmark":
		return newLTV(C2B), newLTV(B2C)
	}
	require.Fail(t, "unknown kind of connection", kind)
	return nil, nil
}

// Control spec, sections 1 to 4 and 15; data spec, sections 1, 4.2 and 7:
// every byte of every captured connection is decoded and encodes to itself.
func TestReplayTraces(t *testing.T) {
	kinds := map[string]int{}
	metas, data := 0, 0
	for _, c := range loadTraces(t) {
		kinds[c.kind]++
		c2s, s2c := consumers(t, c.kind)
		for _, side := range []struct {
			consume
			raw []byte
		}{{c2s, c.c2s}, {s2c, c.s2c}} {
			side.feed(t, side.raw)
			side.done(t)
			require.Equal(t, side.raw, side.encoded(), "%s connection %d", c.trace, c.id)
		}
		if f, ok := c2s.(*frames); ok {
			metas, data = metas+f.metas, data+f.data
		}
	}
	require.Equal(t, map[string]int{"master": 15, "p2p": 29, "shared_state": 1, "benchmark": 18}, kinds)
	require.Positive(t, metas)
	require.Positive(t, data)
}

// The same for arbitrary cuts of the streams, as a network makes them
// (control spec, section 2; quirk Q2: PCCL loses connections over it).
func TestReplayTracesInPieces(t *testing.T) {
	conns := loadTraces(t)
	rapid.Check(t, func(rt *rapid.T) {
		c := rapid.SampledFrom(conns).Draw(rt, "connection")
		c2s, s2c := consumers(t, c.kind)
		side, raw := c2s, c.c2s
		if rapid.Bool().Draw(rt, "server side") {
			side, raw = s2c, c.s2c
		}
		longest := rapid.SampledFrom([]int{1, 3, 9, 60, 1500}).Draw(rt, "longest piece")
		for rest := raw; len(rest) > 0; {
			n := min(len(rest), rapid.IntRange(1, longest).Draw(rt, "piece"))
			side.feed(rt, bytes.Clone(rest[:n]))
			rest = rest[n:]
		}
		side.done(rt)
		require.Equal(rt, raw, side.encoded())
	})
}

// Read takes a packet stream apart like Scanner does, and nothing more than
// the packets.
func TestReplayWithRead(t *testing.T) {
	for _, c := range loadTraces(t) {
		if c.kind != "master" {
			continue
		}
		for proto, raw := range map[Proto][]byte{C2M: c.c2s, M2C: c.s2c} {
			r := bytes.NewReader(raw)
			var out []byte
			for r.Len() > 0 {
				p, err := Read(r, proto, MaxPacket)
				require.NoError(t, err)
				out = Append(out, p)
				require.Equal(t, len(raw)-r.Len(), len(out))
			}
			require.Equal(t, raw, out)
		}
	}
}
