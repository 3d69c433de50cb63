package e2e

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/wire"
)

// inBlocks sends values of 4 bits with a scale for each block of 32.
var inBlocks = core.Quantize{Algorithm: "blocks", Type: dtype.Int4}

// Three peers reduce with 4 bits on the wire: all have the same bits, and every block
// is as exact as its own magnitude allows, however large its neighbours are.
func TestFourBits(t *testing.T) {
	const n, block, count = 3, 32, 3 * 32 * 50 // blocks begin at the same places on all peers
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), n, nil)
	size := func(k int) float64 { return math.Pow(10, float64(k/block%7-3)) }
	value := func(i, k int) float32 { return float32(size(k) * math.Sin(float64(i+1)*float64(k+1))) }
	for op, share := range map[dtype.Op]float64{core.Sum: 1, core.Avg: n} {
		var results [n][]float32
		var sent [n]uint64
		for i, err := range each(comms, func(i int, c *core.Communicator) error {
			src := make([]float32, count)
			for k := range src {
				src[k] = value(i, k)
			}
			results[i] = make([]float32, count)
			r := core.ReduceOf(results[i], src, op)
			r.Quantize = inBlocks
			info, err := c.AllReduce(ctx, r)
			sent[i] = info.TxBytes
			return err
		}) {
			require.NoError(t, err, "peer %d", i)
		}
		for i := range results {
			require.True(t, slices.Equal(results[0], results[i]), "%v: peer %d has other bits", op, i)
			require.Less(t, sent[i], uint64(4*count/5), "%v: peer %d sends what 4 bits need not", op, i)
		}
		for k, got := range results[0] {
			want := 0.0
			for i := range n {
				want += float64(value(i, k))
			}
			// Sums of one, two and three peers are encoded, each to half of a 7th of its magnitude.
			require.InDelta(t, want/share, float64(got), 0.45*size(k)/share, "%v: element %d", op, k)
		}
	}
}

// What PCCL peers do not have is refused beside one, before anything is launched.
func TestFourBitsBesidePCCL(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := besidePCCL(t, ctx, localMaster(t))
	require.False(t, c.Attributes().Native)
	v := []float32{1, 2, 3, 4, 5, 6, 7, 8}
	r := core.ReduceOf(v, v, core.Sum)
	r.Quantize = inBlocks
	_, err := c.AllReduceAsync(ctx, r)
	var e *core.Error
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, errs.InvalidArgument)
	require.ErrorIs(t, err, quant.ErrNative)
	require.ErrorContains(t, err, "blocks")
	require.Equal(t, []float32{1, 2, 3, 4, 5, 6, 7, 8}, v)
}

// besidePCCL connects a peer to a group with a peer that announces nothing, as PCCL
// does, and lives until the end of the test.
func besidePCCL(t *testing.T, ctx context.Context, master string) *core.Communicator {
	return besidePCCLAt(t, ctx, master, core.Options{Master: master, PortBase: -1})
}

// besidePCCLAt is besidePCCL for a peer with o, which may have another port of the master.
func besidePCCLAt(t *testing.T, ctx context.Context, master string, o core.Options) *core.Communicator {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	nc, err := net.Dial("tcp", master)
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(patience))
	port := uint16(ln.Addr().(*net.TCPAddr).Port)

	joined := make(chan error, 1)
	var c *core.Communicator
	say := func(p wire.Packet) error { _, err := nc.Write(wire.Append(nil, p)); return err }
	hear := func() (wire.Packet, error) { return wire.Read(nc, wire.M2C, wire.MaxPacket) }
	require.NoError(t, say(wire.C2MRequestSessionRegistration{P2PPort: port, SharedStatePort: port, BenchmarkPort: port}))
	p, err := hear()
	require.NoError(t, err)
	self := p.(wire.M2CSessionRegistrationResponse).UUID
	_, err = hear() // it is alone
	require.NoError(t, err)
	require.NoError(t, say(wire.C2MP2PConnectionsEstablished{Success: true}))
	_, err = hear()
	require.NoError(t, err)

	go func() {
		var err error
		c, err = connect(ctx, o)
		joined <- err
	}()
	for waiting := false; !waiting; { // until it is registered
		require.NoError(t, say(wire.C2MCheckPeersPending{}))
		p, err := hear()
		require.NoError(t, err)
		waiting = p.(wire.M2CPeersPendingResponse).PeersPending
	}
	require.NoError(t, say(wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true}))
	require.NoError(t, letIn(t, ln, self, say, hear))
	require.NoError(t, <-joined)
	t.Cleanup(func() { c.Close() })
	return c
}

// letIn is a PCCL peer's part in the round that lets a newcomer in.
func letIn(t *testing.T, ln net.Listener, self wire.UUID, say func(wire.Packet) error, hear func() (wire.Packet, error)) error {
	p, err := hear()
	if err != nil {
		return err
	}
	round, ok := p.(wire.M2CP2PConnectionInfo)
	if !ok {
		return fmt.Errorf("a round began with %T", p)
	}
	accepted := make(chan error, 1)
	go func() {
		in, err := ln.Accept()
		if err == nil {
			t.Cleanup(func() { in.Close() })
			if _, err = wire.Read(in, wire.P2P, 1<<10); err == nil {
				_, err = in.Write(wire.Append(nil, wire.P2PHelloAck{}))
			}
		}
		accepted <- err
	}()
	for _, peer := range round.Peers {
		if peer.UUID == self {
			continue
		}
		out, err := net.Dial("tcp", peer.Addr.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { out.Close() })
		if _, err := out.Write(wire.Append(nil, wire.P2PHello{UUID: self})); err != nil {
			return err
		}
		if _, err := wire.Read(out, wire.P2P, 1<<10); err != nil {
			return err
		}
	}
	if err := <-accepted; err != nil {
		return err
	}
	if err := say(wire.C2MP2PConnectionsEstablished{Success: true}); err != nil {
		return err
	}
	_, err = hear()
	return err
}
