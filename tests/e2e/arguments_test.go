package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// Options that can never work are refused before anything is dialled, with an
// error that names the option.
func TestOptionsThatMakeNoSense(t *testing.T) {
	master := localMaster(t)
	for name, change := range map[string]func(o *core.Options){
		`Master ""`:              func(o *core.Options) { o.Master = "" },
		"not HOST:PORT":          func(o *core.Options) { o.Master = "127.0.0.1" },
		"unknown backend":        func(o *core.Options) { o.Backend = "abacus" },
		"PoolSize 5000":          func(o *core.Options) { o.PoolSize = 5000 },
		"PortBase 65534":         func(o *core.Options) { o.PortBase = 65534 },
		"FrameBytes -1":          func(o *core.Options) { o.FrameBytes = -1 },
		"Probe.Connections 1000": func(o *core.Options) { o.Probe.Connections = 100_000 },
		"HeartbeatInterval -1s":  func(o *core.Options) { o.HeartbeatInterval = -time.Second },
		"below two times":        func(o *core.Options) { o.HeartbeatInterval = 20 * time.Second },
		"HeartbeatTimeout 1281":  func(o *core.Options) { o.HeartbeatTimeout = 1 << 62 },
		"DialTimeout -1ns":       func(o *core.Options) { o.DialTimeout = -1 },
		"HandshakeTimeout -1ns":  func(o *core.Options) { o.HandshakeTimeout = -1 },
		"UserTimeout -1ns":       func(o *core.Options) { o.UserTimeout = -1 },
		"Probe.Duration -1ns":    func(o *core.Options) { o.Probe.Duration = -1 },
		`ListenHost "localho`:    func(o *core.Options) { o.ListenHost = "localhost" },
		"cannot assign":          func(o *core.Options) { o.ListenHost = "203.0.113.7" },
		"no suitable address":    func(o *core.Options) { o.ListenHost = "::1" }, // the master is reached by IPv4
		"unknown backend \"\\n":  func(o *core.Options) { o.Backend = "\n" },
	} {
		o := core.Options{Master: master, PortBase: -1}
		change(&o)
		c, err := connect(context.Background(), o)
		require.Nil(t, c, name)
		var e *core.Error
		require.ErrorAs(t, err, &e, name)
		require.ErrorIs(t, err, errs.InvalidArgument, name)
		require.Equal(t, "connect", e.Op)
		require.Contains(t, err.Error(), name)
	}
}

// Peers that quantize differently, be it to types of one size, get an error that
// says how each of them does, at once and on all, and buffers are as before.
func TestPeersQuantizeDifferently(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 2, nil)
	zeropoint := func(t dtype.Type) core.Quantize { return core.Quantize{Algorithm: "zeropoint", Type: t} }
	for _, how := range [][2]core.Quantize{
		{zeropoint(dtype.Uint8), zeropoint(dtype.Int8)},
		{zeropoint(dtype.Uint8), {Algorithm: "minmax", Type: dtype.Uint8}},
		{{}, zeropoint(dtype.Int32)},
	} {
		for i, err := range each(comms, func(i int, c *core.Communicator) error {
			v := []float32{1, 2, 3, 4, 5, 6, 7, 8}
			r := core.ReduceOf(v, v, core.Sum)
			r.Quantize = how[i]
			_, err := c.AllReduceMultipleWithRetry(ctx, []core.Reduce{r}, 1)
			require.Equal(t, []float32{1, 2, 3, 4, 5, 6, 7, 8}, v)
			return err
		}) {
			require.ErrorIs(t, err, errs.Mismatch, "peer %d", i)
			require.ErrorContains(t, err, "quantization")
			for _, h := range how {
				if h.Algorithm != "" {
					require.ErrorContains(t, err, fmt.Sprintf("sent as %v by %s", h.Type, h.Algorithm))
				}
			}
		}
	}
	for _, err := range each(comms, func(_ int, c *core.Communicator) error {
		_, err := c.AllReduce(ctx, core.ReduceOf([]int8{1}, []int8{1}, core.Sum))
		return err
	}) {
		require.NoError(t, err, "the session goes on")
	}
}

// fastidious is a quantizer that takes no metadata.
type fastidious struct{ quant.Quantizer }

func (fastidious) Name() string { return "fastidious" }

func (fastidious) CheckMeta(dtype.Type, dtype.Type, *quant.Meta) error {
	return errors.New("not good enough")
}

// What fails again and again although nobody comes or leaves the retry helper
// does not try for ever: it gives up on all peers with the same error, and
// buffers are as before.
func TestRetryInVainEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	minmax, err := quant.Lookup("minmax")
	require.NoError(t, err)
	if q, _ := quant.Lookup("fastidious"); q == nil {
		quant.Register(fastidious{minmax})
	}
	comms := world(t, ctx, localMaster(t), 3, nil)
	for i, err := range each(comms, func(i int, c *core.Communicator) error {
		v := []float32{1, 2, 3, 4, 5, 6, 7, 8}
		r := core.ReduceOf(v, v, core.Sum)
		r.Quantize = core.Quantize{Algorithm: "fastidious", Type: dtype.Uint8}
		_, err := c.AllReduceMultipleWithRetry(ctx, []core.Reduce{r}, 1)
		require.Equal(t, []float32{1, 2, 3, 4, 5, 6, 7, 8}, v)
		return err
	}) {
		require.ErrorIs(t, err, errs.RankConnectionLost, "peer %d", i)
		require.Contains(t, err.Error(), "in a row")
	}
	for _, err := range each(comms, func(_ int, c *core.Communicator) error {
		// Without retry: the round has found the connections that a neighbour
		// closed over the mismatch, and made new ones.
		_, err := c.AllReduce(ctx, core.ReduceOf([]int8{1}, []int8{1}, core.Sum))
		return err
	}) {
		require.NoError(t, err, "the session goes on")
	}
}

// A peer that accepts connections and never says hello: a peer that waits for it can
// give up at once, however long the bound of the exchange is.
func TestGiveUpWhileANeighbourIsSilent(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	master := localMaster(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer mute.Close()
	nc, err := issued.Dial(master, secure.Control)
	require.NoError(t, err)
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	say := func(p wire.Packet) {
		_, err := nc.Write(wire.Append(nil, p))
		require.NoError(t, err)
	}
	hear := func() wire.Packet {
		for {
			p, err := wire.Read(nc, wire.M2C, wire.MaxPacket)
			require.NoError(t, err)
			if _, names := p.(wire.M2CNames); !names { // of a run in TLS, in front of each round
				return p
			}
		}
	}
	port := uint16(mute.Addr().(*net.TCPAddr).Port)
	say(wire.C2MRequestSessionRegistration{P2PPort: port, SharedStatePort: port, BenchmarkPort: port})
	require.IsType(t, wire.M2CSessionRegistrationResponse{}, hear())
	require.IsType(t, wire.M2CP2PConnectionInfo{}, hear())
	say(wire.C2MP2PConnectionsEstablished{Success: true})
	require.IsType(t, wire.M2CP2PConnectionsEstablished{}, hear())

	give, up := context.WithCancel(ctx)
	out := make(chan error, 1)
	go func() {
		_, err := connect(give, core.Options{Master: master, PortBase: -1, HandshakeTimeout: time.Hour})
		out <- err
	}()
	for waiting := false; !waiting; { // until it is registered
		say(wire.C2MCheckPeersPending{})
		p := hear().(wire.M2CPeersPendingResponse)
		waiting = p.PeersPending
	}
	say(wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true})
	c, err := mute.Accept()
	require.NoError(t, err)
	defer c.Close()
	if issued.On() {
		_, err = c.Read(make([]byte, 1)) // now it waits for the answer of TLS
		require.NoError(t, err)
	} else {
		p, err := wire.Read(c, wire.P2P, 1<<10)
		require.NoError(t, err)
		require.IsType(t, wire.P2PHello{}, p) // now it waits for the answer
	}
	up()
	select {
	case err := <-out:
		require.ErrorIs(t, err, errs.Canceled)
		require.True(t, errors.Is(err, context.Canceled), "%v", err)
		require.True(t, strings.HasPrefix(err.Error(), "gopccl: connect"), "%v", err)
	case <-ctx.Done():
		t.Fatal("Connect goes on")
	}
}

// A list of operations that cannot be finished says which of them are.
func TestWhatOfAListIsDone(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cs := world(t, ctx, localMaster(t), 2, nil)
	for i, err := range each(cs, func(i int, c *core.Communicator) error {
		var bufs [4][]float32
		var rs []core.Reduce
		for tag := range bufs {
			bufs[tag] = []float32{float32(i), 1}
			r := core.ReduceOf(bufs[tag], bufs[tag], core.Sum)
			r.Tag = uint64(tag)
			rs = append(rs, r)
		}
		if i == 1 {
			info, err := c.AllReduceMultipleWithRetry(ctx, rs[:2], 1)
			if err == nil && !slices.Equal(info.Done, []bool{true, true}) {
				err = fmt.Errorf("done: %v", info.Done)
			}
			return errors.Join(err, c.Close())
		}
		info, err := c.AllReduceMultipleWithRetry(ctx, rs, 1)
		require.ErrorIs(t, err, errs.TooFewPeers)
		require.ErrorContains(t, err, "2 of 4 operations are done")
		require.Equal(t, []bool{true, true, false, false}, info.Done)
		require.Equal(t, [4][]float32{{1, 2}, {1, 2}, {0, 1}, {0, 1}}, bufs)
		return nil
	}) {
		require.NoError(t, err, i)
	}
}
