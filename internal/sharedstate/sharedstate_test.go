package sharedstate

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server on loopback that ends with the test.
func serve(t testing.TB, cfg ServerConfig) (*Server, netip.AddrPort) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	s := NewServer(cfg)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Serve(ln)
	}()
	t.Cleanup(func() {
		s.Close()
		<-ended
	})
	return s, ln.Addr().(*net.TCPAddr).AddrPort()
}

// state returns tensors of the given sizes with random content.
func state(seed uint64, sizes ...int) []Tensor {
	rng := rand.New(rand.NewPCG(seed, 1))
	ts := make([]Tensor, len(sizes))
	for i, n := range sizes {
		b := make([]byte, n, n+8)
		for j := 0; j < n; j += 8 {
			binary.LittleEndian.PutUint64(b[j:j+8:j+8], rng.Uint64())
		}
		ts[i] = Tensor{Key: fmt.Sprintf("t%d", i), Data: b, DType: dtype.Uint8}
	}
	return ts
}

// wants returns all tensors of ts with their true hashes.
func wants(ts []Tensor, legacy bool) []Want {
	var ws []Want
	es, err := Entries(context.Background(), ts, legacy, nil, 2)
	if err != nil {
		panic(err) // host tensors cannot fail
	}
	for _, e := range es {
		ws = append(ws, Want{Key: e.Key, Hash: e.Hash, HashType: e.HashType})
	}
	return ws
}

// impatient runs a fetch that waits for nothing between its attempts.
func impatient(cfg FetchConfig) (Result, error) {
	f := &fetch{cfg: cfg.withDefaults(), pauseAt: func(ctx context.Context, _ time.Duration) error { return ctx.Err() }}
	return f.run(context.Background())
}

func requireSame(t testing.TB, want, got []Tensor) {
	t.Helper()
	for i := range want {
		require.True(t, bytes.Equal(want[i].Data, got[i].Data), "tensor %s differs", want[i].Key)
	}
}

// Control spec, section 9 (entries of C2M 8); quirks Q20 and Q33.
func TestEntries(t *testing.T) {
	ts := state(1, 70, 0, 4096*3+1, 12)
	ts[2].DType, ts[3].DType = dtype.BFloat16, dtype.Float32
	ts[3].AllowInequality = true
	for _, legacy := range []bool{false, true} {
		es, err := Entries(context.Background(), ts, legacy, nil, 0)
		require.NoError(t, err)
		require.Len(t, es, 4)
		for i, e := range es {
			require.Equal(t, ts[i].Key, e.Key)
			require.Equal(t, ts[i].DType, e.DType)
			require.Equal(t, wire.HashSimple, e.HashType)
			require.Zero(t, e.NumElements)
			require.Equal(t, ts[i].AllowInequality, e.AllowInequality)
		}
		require.EqualValues(t, digest.SimpleHash(ts[0].Data), es[0].Hash)
		require.Zero(t, es[1].Hash, "empty")
		if legacy {
			require.Zero(t, es[2].Hash, "PCCL gives bfloat16 entries no content")
		} else {
			require.EqualValues(t, digest.SimpleHash(ts[2].Data), es[2].Hash)
		}
		require.Zero(t, es[3].Hash, "allowed to differ")
	}
	es, err := Entries(context.Background(), nil, false, nil, 1)
	require.NoError(t, err)
	require.Empty(t, es)
}

func TestFetchAll(t *testing.T) {
	src := state(1, 5<<20+3, 0, 1, 17, 64<<10, 300<<10, 4)
	s, addr := serve(t, ServerConfig{})
	w := s.Open(41, src, false)
	dst := state(2, 5<<20+3, 0, 1, 17, 64<<10, 300<<10, 4)
	var last uint64
	res, err := Fetch(context.Background(), FetchConfig{
		Distributors: []netip.AddrPort{addr}, Want: wants(src, false), Tensors: dst,
		Progress: func(done, total uint64, key string) {
			require.LessOrEqual(t, done, total)
			require.NotEmpty(t, key)
			last = done
		},
	})
	require.NoError(t, err)
	requireSame(t, src, dst)
	var total uint64
	for _, x := range src {
		total += uint64(len(x.Data))
	}
	require.Equal(t, Result{Revision: 41, RxBytes: total}, res)
	require.Equal(t, total, last)
	require.Equal(t, total, w.TxBytes())
	require.Zero(t, s.Open(42, src, false).TxBytes(), "each window counts for itself")
}

// Only outdated tensors travel, in the order of the request; a key may come twice (quirk Q53).
func TestFetchDirtyKeysOnly(t *testing.T) {
	src, dst := state(1, 100, 200, 300), state(2, 100, 200, 300)
	old := bytes.Clone(dst[1].Data)
	s, addr := serve(t, ServerConfig{})
	s.Open(1, src, false)
	w := wants(src, false)
	bogus := w[2]
	bogus.Hash++
	res, err := Fetch(context.Background(), FetchConfig{
		Distributors: []netip.AddrPort{addr}, Want: []Want{bogus, w[0], w[2], w[0]}, Tensors: dst,
	})
	require.NoError(t, err)
	require.EqualValues(t, 400, res.RxBytes)
	requireSame(t, []Tensor{src[0], {Data: old}, src[2]}, dst)
}

// Control spec, section 9.2: a peer without dirty keys still fetches the revision.
func TestFetchRevisionOnly(t *testing.T) {
	s, addr := serve(t, ServerConfig{})
	s.Open(7, state(1, 10), false)
	res, err := Fetch(context.Background(), FetchConfig{Distributors: []netip.AddrPort{addr}})
	require.NoError(t, err)
	require.Equal(t, Result{Revision: 7}, res)
}

// Quirk Q33: towards PCCL peers 16 bit types (but uint16) have no content.
func TestFetchLegacyTypes(t *testing.T) {
	src, dst := state(1, 64, 64, 64, 64), state(2, 64, 64, 64, 64)
	for i, d := range []dtype.Type{dtype.Int16, dtype.Float16, dtype.BFloat16, dtype.Uint16} {
		src[i].DType, dst[i].DType = d, d
	}
	old := bytes.Clone(dst[0].Data)
	s, addr := serve(t, ServerConfig{})
	s.Open(3, src, true)
	res, err := Fetch(context.Background(), FetchConfig{
		Distributors: []netip.AddrPort{addr}, Want: wants(src, true), Tensors: dst, Legacy: true,
	})
	require.NoError(t, err)
	require.EqualValues(t, 64, res.RxBytes)
	require.Equal(t, old, dst[0].Data)
	require.Equal(t, src[3].Data, dst[3].Data)
}

// An entry that may differ is taken as it is.
func TestFetchUncheckedEntry(t *testing.T) {
	src, dst := state(1, 64), state(2, 64)
	dst[0].AllowInequality = true
	s, addr := serve(t, ServerConfig{})
	s.Open(3, src, false)
	_, err := Fetch(context.Background(), FetchConfig{
		Distributors: []netip.AddrPort{addr}, Want: []Want{{Key: "t0", Hash: 1}}, Tensors: dst,
	})
	require.NoError(t, err)
	requireSame(t, src, dst)
}

// Hashing spec, section 2: a requester checks CRC32 if the master asks for it.
func TestFetchCRC32(t *testing.T) {
	src, dst := state(1, 64), state(2, 64)
	s, addr := serve(t, ServerConfig{})
	s.Open(3, src, false)
	w := Want{Key: "t0", Hash: uint64(digest.CRC32C(src[0].Data)), HashType: wire.HashCRC32}
	cfg := FetchConfig{Distributors: []netip.AddrPort{addr}, Want: []Want{w}, Tensors: dst}
	_, err := Fetch(context.Background(), cfg)
	require.NoError(t, err)
	cfg.Want[0].Hash ^= 1
	_, err = impatient(cfg)
	require.ErrorIs(t, err, errs.HashMismatch)
	cfg.Want[0].HashType = 9
	_, err = impatient(cfg)
	require.ErrorIs(t, err, errs.HashMismatch, "a hash that cannot be computed is not accepted")
}

func TestFetchRefusesBadRequests(t *testing.T) {
	addr := netip.MustParseAddrPort("127.0.0.1:1")
	never := func(context.Context, netip.AddrPort) (net.Conn, error) { panic("dialed") }
	_, err := Fetch(context.Background(), FetchConfig{
		Distributors: []netip.AddrPort{addr}, Want: []Want{{Key: "x"}}, Tensors: state(1, 3), Dial: never,
	})
	require.ErrorIs(t, err, errs.InvalidArgument)
	for _, ds := range [][]netip.AddrPort{nil, {{}}, {netip.MustParseAddrPort("0.0.0.0:0")}} {
		_, err = Fetch(context.Background(), FetchConfig{Distributors: ds, Dial: never})
		require.ErrorIs(t, err, errs.NoSharedStateAvailable)
	}
}

// relay forwards connections to target; every byte from the target passes mangle.
func relay(t *testing.T, target netip.AddrPort, mangle func(conn int, offset int, b []byte) bool) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for n := 0; ; n++ {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp4", target.String())
			if err != nil {
				in.Close()
				continue
			}
			wg.Add(2)
			go func() {
				defer wg.Done()
				_, _ = io.Copy(out, in)
				out.Close()
			}()
			go func() {
				defer wg.Done()
				defer in.Close()
				defer out.Close()
				buf := make([]byte, 8<<10)
				for at := 0; ; {
					k, err := out.Read(buf)
					if err != nil || !mangle(n, at, buf[:k]) {
						return
					}
					if _, err := in.Write(buf[:k]); err != nil {
						return
					}
					at += k
				}
			}()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// A byte that changes on the way is noticed; another holder, or the
// same one once more, gives the right content, else it is an error.
func TestCorruptionInTransit(t *testing.T) {
	src := state(1, 40<<10, 50<<10, 60<<10)
	s, addr := serve(t, ServerConfig{})
	s.Open(5, src, false)
	flip := func(_, at int, b []byte) bool {
		if off := 60 << 10; at <= off && off < at+len(b) {
			b[off-at] ^= 0x10
		}
		return true
	}
	always := relay(t, addr, flip)
	once := relay(t, addr, func(conn, at int, b []byte) bool { return conn > 0 || flip(conn, at, b) })

	t.Run("another holder", func(t *testing.T) {
		dst := state(2, 40<<10, 50<<10, 60<<10)
		res, err := impatient(FetchConfig{Distributors: []netip.AddrPort{always, addr}, Want: wants(src, false), Tensors: dst})
		require.NoError(t, err)
		require.Equal(t, 1, res.Retries)
		require.EqualValues(t, (40+50+60+50)<<10, res.RxBytes, "only the damaged tensor is fetched again") // S1-27
		requireSame(t, src, dst)
	})
	t.Run("the same holder again", func(t *testing.T) {
		dst := state(2, 40<<10, 50<<10, 60<<10)
		res, err := impatient(FetchConfig{Distributors: []netip.AddrPort{once}, Want: wants(src, false), Tensors: dst})
		require.NoError(t, err)
		require.Equal(t, 1, res.Retries)
		requireSame(t, src, dst)
	})
	t.Run("never accepted", func(t *testing.T) {
		dst := state(2, 40<<10, 50<<10, 60<<10)
		// This holder has other content altogether.
		liar, laddr := serve(t, ServerConfig{})
		liar.Open(5, state(3, 40<<10, 50<<10, 60<<10), false)
		w := wants(src, false)
		_, err := impatient(FetchConfig{Distributors: []netip.AddrPort{laddr}, Want: w, Tensors: dst})
		require.ErrorIs(t, err, errs.HashMismatch) // S1-27
		require.Equal(t, errs.HashMismatch, errs.CodeOf(err))
		var inc *errs.Incomplete
		require.ErrorAs(t, err, &inc)
		require.Equal(t, []string{"t0", "t1", "t2"}, inc.Torn)
	})
}

// A holder that dies while it serves: what it gave is kept, the rest comes from the next.
func TestHolderDiesMidway(t *testing.T) {
	sizes := []int{40 << 10, 50 << 10, 60 << 10}
	src := state(1, sizes...)
	s, addr := serve(t, ServerConfig{})
	s.Open(5, src, false)
	for _, cut := range []int{0, 10, 30 << 10, 70 << 10, 100 << 10, 149 << 10} {
		dying := relay(t, addr, func(_, at int, b []byte) bool { return at+len(b) <= cut })
		dst := state(2, sizes...)
		res, err := impatient(FetchConfig{Distributors: []netip.AddrPort{dying, addr}, Want: wants(src, false), Tensors: dst})
		require.NoError(t, err, "cut at %d", cut)
		require.Equal(t, 1, res.Retries)
		require.Less(t, res.RxBytes, uint64(150<<10+60<<10), "cut at %d", cut)
		requireSame(t, src, dst)
	}
	t.Run("nobody left", func(t *testing.T) {
		dying := relay(t, addr, func(_, at int, b []byte) bool { return at+len(b) <= 30<<10 })
		dst := state(2, sizes...)
		old := bytes.Clone(dst[2].Data)
		res, err := impatient(FetchConfig{Distributors: []netip.AddrPort{dying}, Want: wants(src, false), Tensors: dst})
		require.Equal(t, errs.TransferFailed, errs.CodeOf(err), "%v", err)
		require.Equal(t, attemptsPerHolder-1, res.Retries)
		var inc *errs.Incomplete
		require.ErrorAs(t, err, &inc)
		require.Empty(t, inc.Done)
		require.Equal(t, []string{"t0"}, inc.Torn)
		require.Equal(t, []string{"t1", "t2"}, inc.Untouched)
		require.Equal(t, old, dst[2].Data)
		require.Contains(t, err.Error(), `"t0"`)
	})
}

// A holder that never gives anything is asked twice, one that gives a little
// each time as often as it takes.
func TestProgressCounts(t *testing.T) {
	sizes := []int{40 << 10, 40 << 10, 40 << 10, 40 << 10, 40 << 10}
	src, dst := state(1, sizes...), state(2, sizes...)
	s, addr := serve(t, ServerConfig{})
	s.Open(5, src, false)
	slow := relay(t, addr, func(_, at int, b []byte) bool { return at+len(b) <= 60<<10 })
	useless := netip.MustParseAddrPort("127.0.0.1:1")
	asked := 0
	res, err := impatient(FetchConfig{
		Distributors: []netip.AddrPort{useless, slow}, Want: wants(src, false), Tensors: dst,
		Dial: func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			if a == useless {
				asked++
				return nil, io.ErrClosedPipe
			}
			return dial(ctx, a)
		},
	})
	require.NoError(t, err)
	require.Equal(t, attemptsPerHolder, asked)
	require.Equal(t, attemptsPerHolder+len(sizes)-1, res.Retries)
	requireSame(t, src, dst)
}

// Nobody listens at the first holder, the second refuses, the third gives.
func TestNextHolder(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	dead := ln.Addr().(*net.TCPAddr).AddrPort()
	require.NoError(t, ln.Close())
	_, shut := serve(t, ServerConfig{})
	other, otherAddr := serve(t, ServerConfig{})
	other.Open(5, []Tensor{{Key: "strange"}}, false)
	src, dst := state(1, 100), state(2, 100)
	s, addr := serve(t, ServerConfig{})
	s.Open(5, src, false)
	res, err := impatient(FetchConfig{
		Distributors: []netip.AddrPort{dead, {}, shut, otherAddr, addr}, Want: wants(src, false), Tensors: dst,
	})
	require.NoError(t, err)
	require.Equal(t, 3, res.Retries)
	requireSame(t, src, dst)
}

// Control spec, section 13.3: outside the window the answer is status 2 with no entries.
func TestWindow(t *testing.T) {
	src := state(1, 100)
	s, addr := serve(t, ServerConfig{})
	ask := func() wire.S2CSharedStateResponse {
		c, err := net.Dial("tcp4", addr.String())
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write(wire.Append(nil, wire.C2SRequestSharedState{Keys: []string{"t0", "t0"}}))
		require.NoError(t, err)
		p, err := wire.Read(c, wire.S2C, 1<<20)
		require.NoError(t, err)
		return p.(wire.S2CSharedStateResponse)
	}
	closed := wire.S2CSharedStateResponse{Status: wire.StateNotDistributed}
	require.Equal(t, wire.Append(nil, closed), wire.Append(nil, ask()))
	s.Open(9, src, false)
	require.Equal(t, wire.S2CSharedStateResponse{
		Status: wire.StateSuccess, Revision: 9, Entries: []wire.StateSize{{Key: "t0", Size: 100}, {Key: "t0", Size: 100}},
	}, ask())
	first := s.Open(9, src, false)
	second := s.Open(10, nil, false)
	require.Equal(t, wire.StateUnknownKey, ask().Status)
	s.Shut(first) // which is not the one that is open
	s.Shut(nil)
	require.Equal(t, wire.StateUnknownKey, ask().Status)
	s.Shut(second)
	s.Shut(second)
	require.Equal(t, wire.Append(nil, closed), wire.Append(nil, ask()))
}

// A holder that opens its window a moment later is asked again.
func TestWindowOpensLater(t *testing.T) {
	src, dst := state(1, 100), state(2, 100)
	s, addr := serve(t, ServerConfig{})
	pauses := 0
	f := &fetch{
		cfg: FetchConfig{Distributors: []netip.AddrPort{addr}, Want: wants(src, false), Tensors: dst}.withDefaults(),
		pauseAt: func(context.Context, time.Duration) error {
			if pauses++; pauses == 3 {
				s.Open(1, src, false)
			}
			return nil
		},
	}
	res, err := f.run(context.Background())
	require.NoError(t, err)
	require.Zero(t, res.Retries)
	require.Equal(t, 3, pauses)
	requireSame(t, src, dst)
}

func TestManyBatches(t *testing.T) {
	sizes := make([]int, 2*batchKeys+5)
	for i := range sizes {
		sizes[i] = i % 9
	}
	src, dst := state(1, sizes...), state(2, sizes...)
	s, addr := serve(t, ServerConfig{})
	s.Open(2, src, false)
	res, err := Fetch(context.Background(), FetchConfig{Distributors: []netip.AddrPort{addr}, Want: wants(src, false), Tensors: dst})
	require.NoError(t, err)
	require.EqualValues(t, 2, res.Revision)
	requireSame(t, src, dst)
}

func TestLongKeys(t *testing.T) {
	src, dst := state(1, 10, 20, 30), state(2, 10, 20, 30)
	for i := range src {
		src[i].Key = strings.Repeat("k", 700<<10) + src[i].Key
		dst[i].Key = src[i].Key
	}
	s, addr := serve(t, ServerConfig{})
	s.Open(2, src, false)
	_, err := Fetch(context.Background(), FetchConfig{Distributors: []netip.AddrPort{addr}, Want: wants(src, false), Tensors: dst})
	require.NoError(t, err)
	requireSame(t, src, dst)
}

func TestFetchCanceled(t *testing.T) {
	src, dst := state(1, 10<<10, 1<<20), state(2, 10<<10, 1<<20)
	s, addr := serve(t, ServerConfig{})
	s.Open(5, src, false)
	ctx, cancel := context.WithCancel(context.Background())
	// The relay holds its breath after some bytes; only the cancel ends the read.
	hold := make(chan struct{})
	defer close(hold)
	slow := relay(t, addr, func(_, at int, _ []byte) bool {
		if at > 100<<10 {
			<-hold
		}
		return true
	})
	_, err := Fetch(ctx, FetchConfig{
		Distributors: []netip.AddrPort{slow}, Want: wants(src, false), Tensors: dst,
		Progress: func(uint64, uint64, string) { cancel() },
	})
	require.Equal(t, errs.Canceled, errs.CodeOf(err))
	require.ErrorIs(t, err, context.Canceled)
	var inc *errs.Incomplete
	require.ErrorAs(t, err, &inc)
	require.Contains(t, append(inc.Done, inc.Torn...), "t0", "it may not have been hashed any more")
}

// A holder that goes silent is given up after the stall timeout.
func TestStalledHolder(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	src, dst := state(1, 10), state(2, 10)
	_, err = impatient(FetchConfig{
		Distributors: []netip.AddrPort{ln.Addr().(*net.TCPAddr).AddrPort()},
		Want:         wants(src, false), Tensors: dst, StallTimeout: 20 * time.Millisecond,
	})
	require.Equal(t, errs.TransferFailed, errs.CodeOf(err))
	require.ErrorIs(t, err, errs.Timeout)
}

// What a holder may answer wrongly, and that it is never accepted.
func TestHostileAnswers(t *testing.T) {
	dst := state(2, 10, 20)
	full := []wire.StateSize{{Key: "t0", Size: 10}, {Key: "t1", Size: 20}}
	ok := wire.S2CSharedStateResponse{Status: wire.StateSuccess, Revision: 1, Entries: full}
	answers := map[string][]byte{
		"wrong key":     wire.Append(nil, wire.S2CSharedStateResponse{Status: 1, Entries: []wire.StateSize{{Key: "t0", Size: 10}, {Key: "t2", Size: 20}}}),
		"wrong order":   wire.Append(nil, wire.S2CSharedStateResponse{Status: 1, Entries: []wire.StateSize{full[1], full[0]}}),
		"too few":       wire.Append(nil, wire.S2CSharedStateResponse{Status: 1, Entries: full[:1]}),
		"wrong size":    wire.Append(nil, wire.S2CSharedStateResponse{Status: 1, Entries: []wire.StateSize{{Key: "t0", Size: 1 << 62}, full[1]}}),
		"status 0":      wire.Append(nil, wire.S2CSharedStateResponse{}),
		"status 3":      wire.Append(nil, wire.S2CSharedStateResponse{Status: 3}),
		"status 4":      wire.Append(nil, wire.S2CSharedStateResponse{Status: 4, Revision: 1}),
		"huge length":   {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 1},
		"length 1":      {0, 0, 0, 0, 0, 0, 0, 1, 0, 1},
		"huge count":    {0, 0, 0, 0, 0, 0, 0, 19, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0},
		"unknown id":    {0, 0, 0, 0, 0, 0, 0, 2, 0, 99},
		"http":          []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"nothing":       {},
		"cut answer":    wire.Append(nil, ok)[:20],
		"cut content":   append(wire.Append(nil, ok), make([]byte, 29)...),
		"wrong content": append(wire.Append(nil, ok), make([]byte, 30)...),
	}
	w := wants(state(1, 10, 20), false)
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			dial := func(context.Context, netip.AddrPort) (net.Conn, error) {
				here, there := net.Pipe()
				go func() {
					defer there.Close()
					if _, err := wire.Read(there, wire.C2S, 1<<20); err == nil {
						_, _ = there.Write(answer)
					}
				}()
				return here, nil
			}
			_, err := impatient(FetchConfig{
				Distributors: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}, Want: w, Tensors: dst, Dial: dial,
			})
			switch name {
			case "wrong content", "cut content":
				require.Equal(t, errs.HashMismatch, errs.CodeOf(err), "%v", err)
			case "nothing", "cut answer", "status 3":
				require.Equal(t, errs.TransferFailed, errs.CodeOf(err), "%v", err)
			default:
				require.Equal(t, errs.TransferFailed, errs.CodeOf(err), "%v", err)
				require.ErrorIs(t, err, errs.Protocol)
			}
		})
	}
}

// A holder with another revision than the first one is not mixed in.
func TestRevisionsAreNotMixed(t *testing.T) {
	sizes := []int{40 << 10, 50 << 10}
	src, dst := state(1, sizes...), state(2, sizes...)
	a, aaddr := serve(t, ServerConfig{})
	a.Open(5, src, false)
	dying := relay(t, aaddr, func(_, at int, b []byte) bool { return at+len(b) <= 60<<10 })
	b, baddr := serve(t, ServerConfig{})
	b.Open(6, src, false)
	res, err := impatient(FetchConfig{Distributors: []netip.AddrPort{dying, baddr, aaddr}, Want: wants(src, false), Tensors: dst})
	require.NoError(t, err)
	require.EqualValues(t, 5, res.Revision)
	require.Equal(t, 2, res.Retries)
	requireSame(t, src, dst)
}

// The shared state connection of a captured session of PCCL 1.0.0, byte for byte, both ends.
func TestReplayPCCL(t *testing.T) {
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	}
	request := unhex("000000000000001300010000000000000001000000000000000177")
	answer := unhex("0000000000000024000101000000000000000100000000000000010000000000000001770000000000000028")
	content := unhex("0000803f0000004000004040000080400000a0400000c0400000e040000000410000104100002041")
	const elected = 0xd2e420e9 // the hash in the M2C 7 of the same session

	t.Run("holder", func(t *testing.T) {
		s, addr := serve(t, ServerConfig{})
		s.Open(1, []Tensor{{Key: "w", Data: content, DType: dtype.Float32}}, true)
		c, err := net.Dial("tcp4", addr.String())
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write(request)
		require.NoError(t, err)
		got := make([]byte, len(answer)+len(content))
		_, err = io.ReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, append(bytes.Clone(answer), content...), got)
	})
	t.Run("requester", func(t *testing.T) {
		sent := make(chan []byte, 1)
		dial := func(context.Context, netip.AddrPort) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				b := make([]byte, len(request))
				_, _ = io.ReadFull(there, b)
				sent <- b
				_, _ = there.Write(answer)
				_, _ = there.Write(content)
				// PCCL leaves the connection open; the requester has to close it (quirk Q29).
				n, _ := io.Copy(io.Discard, there)
				sent <- make([]byte, n)
				there.Close()
			}()
			return here, nil
		}
		w := Tensor{Key: "w", Data: make([]byte, 40), DType: dtype.Float32}
		res, err := Fetch(context.Background(), FetchConfig{
			Distributors: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:48153")},
			Want:         []Want{{Key: "w", Hash: elected}}, Tensors: []Tensor{w}, Legacy: true, Dial: dial,
		})
		require.NoError(t, err)
		require.Equal(t, Result{Revision: 1, RxBytes: 40}, res)
		require.Equal(t, request, <-sent)
		require.Empty(t, <-sent)
		require.Equal(t, content, w.Data)
	})
}

func BenchmarkFetch(b *testing.B) {
	const size = 256 << 20
	src, dst := state(1, size/2, size/2), state(2, size/2, size/2)
	s, addr := serve(b, ServerConfig{})
	s.Open(1, src, false)
	want := wants(src, false)
	b.SetBytes(size)
	b.ResetTimer()
	for range b.N {
		_, err := Fetch(context.Background(), FetchConfig{Distributors: []netip.AddrPort{addr}, Want: want, Tensors: dst})
		require.NoError(b, err)
	}
}
