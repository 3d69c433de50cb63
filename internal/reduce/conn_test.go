package reduce

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// The loss of the connection from the previous or to the next peer, at every
// byte position of an operation, ends the phase at once and names the peer;
// in-place buffers come back.
// Quirk Q56.
func TestConnectionLoss(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1), uuid(2)}
	for cut := int64(1); cut < 300; cut += 7 {
		for _, sending := range []bool{false, true} {
			r := newRing(t, shape{n: 3, cfg: Config{Link: link.Config{FrameBytes: 64}}})
			victim := 0
			r.out[victim][0].(*transporttest.Conn).CutAfter(cut)
			specs, _ := r.specs(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 200, true)
			before := keep(specs)
			s := r.start(specs)
			who, lost := 0, ids[1] // rank 0 loses its sender to 1
			if !sending {
				who, lost = 1, ids[0] // rank 1 loses its receiver from 0
			}
			err := verdict(t, s.errs[who])
			require.ErrorIs(t, err, errs.RankConnectionLost)
			require.ErrorContains(t, err, lost.String())
			for i, op := range s.ops {
				op.Abort(errTest)
				if i != who {
					verdict(t, s.errs[i])
				}
				op.Finish(true)
				require.Equal(t, before[i], specs[i].Src) // S2-31
			}
			require.Zero(t, r.eng[0].hub.LiveSenders(ids[1]))
			require.Equal(t, 1, r.eng[1].hub.LiveSenders(ids[2]))
			// A new pool repairs it (quirk Q17).
			r.connect(0)
			require.Equal(t, 1, r.eng[0].hub.LiveSenders(ids[1]))
			r.run(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 50, true)
			r.close()
		}
	}
}

// A neighbour that closes while nothing runs is noticed: the sender is no
// longer live, the next operation fails at once.
func TestIdleLoss(t *testing.T) {
	r := newRing(t, shape{n: 2, pool: 2})
	require.Equal(t, 2, r.eng[0].hub.LiveSenders(uuid(1)))
	r.in[0][1].Close()
	require.Eventually(t, func() bool { return r.eng[0].hub.LiveSenders(uuid(1)) == 1 }, patience, time.Millisecond)
	r.in[0][0].Close()
	require.Eventually(t, func() bool { return r.eng[0].hub.LiveSenders(uuid(1)) == 0 }, patience, time.Millisecond)
	for _, in := range r.eng[1].hub.Receivers(uuid(0)) {
		require.Eventually(t, in.Closed, patience, time.Millisecond)
	}
	specs, _ := r.specs(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 200, true)
	for i, err := range r.start(specs).wait(t) {
		require.ErrorIs(t, err, errs.RankConnectionLost)
		require.Regexp(t, []string{`\(connection \d to it: the peer closed the connection\)`, `\(connection \d from it: `}[i], err.Error())
	}
	require.Zero(t, r.eng[0].hub.LiveSenders(uuid(9)))
}

// A neighbour that finished and closed does no harm to those who have all they need.
func TestCloseAfterTheLastFrame(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	for range 50 {
		a := newAlone(t, Config{}, ids[1], ids[1], false)
		op, done := a.start(5, Spec{Tag: 2, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1, 2}, Dst: make([]byte, 2)}, ids, ids[0])
		a.recv()
		a.send(2, 5, []byte{10})
		a.recv()
		a.send(2, 5, []byte{11})
		a.prev.Close()
		require.NoError(t, verdict(t, done))
		op.Finish(false)
		a.e.Close()
	}
}

// Retain fails what runs over the dropped connections and leaves the others.
func TestRetain(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1), uuid(2)}
	a := newAlone(t, Config{}, ids[2], ids[1], true)
	src := []byte{1, 2, 3}
	op, done := a.start(1, Spec{Count: 3, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src}, ids, ids[0])
	keep := func(u wire.UUID) bool { return u != ids[2] }
	a.e.hub.Retain(keep, keep)
	require.ErrorIs(t, verdict(t, done), errs.RankConnectionLost)
	op.Finish(true)
	require.Equal(t, 1, a.e.hub.LiveSenders(ids[1]))
}

// The previous peer's connection may come after the start; if it never comes,
// the operation ends with an error that names the peer.
func TestConnectionComesLate(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	for _, late := range []bool{true, false} {
		e := newEngine(Config{Backend: generic(t), ConnectWait: map[bool]time.Duration{true: patience, false: time.Millisecond}[late]})
		prev, in := transporttest.Pair(transporttest.Options{})
		tx, _ := transporttest.Pair(transporttest.Options{})
		e.hub.AddSender(ids[1], 0, tx, link.Features{Native: true})
		a := &alone{t: t, e: e, prev: prev}
		op, done := a.start(5, Spec{Tag: 2, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1, 2}, Dst: make([]byte, 2)}, ids, ids[0])
		if late {
			e.hub.AddReceiver(ids[1], 0, in)
			a.send(2, 5, []byte{10})
			a.send(2, 5, []byte{11})
			require.NoError(t, verdict(t, done))
		} else {
			err := verdict(t, done)
			require.ErrorIs(t, err, errs.RankConnectionLost)
			require.ErrorContains(t, err, ids[1].String())
			in.Close()
		}
		op.Finish(true)
		e.Close()
	}
}

// Close ends everything that runs, also what waits for a frame, a write or a
// start, and comes back.
// Quirk Q62.
func TestCloseWithOperationsInFlight(t *testing.T) {
	r := newRing(t, shape{n: 2, link: memory(transporttest.Options{Buffer: 10})})
	r.out[0][0].(*transporttest.Conn).Stall(true)
	r.out[1][0].(*transporttest.Conn).Stall(true)
	var all []*started
	for range 5 {
		specs, _ := r.specs(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 200, true)
		all = append(all, r.start(specs))
	}
	r.close()
	for _, s := range all {
		for i, err := range s.wait(t) {
			require.Error(t, err, "rank %d", i)
			s.ops[i].Finish(true)
		}
	}
	specs, _ := r.specs(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 200, true)
	for _, err := range r.start(specs).wait(t) {
		require.ErrorIs(t, err, errs.Closed)
	}
}

// Memory stays bounded whatever a length field says: a frame of nearly 1 GiB
// that belongs to nothing is skipped through the scratch buffer.
func TestMemoryIsBounded(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], false)
	op, done := a.start(5, Spec{Tag: 2, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1, 2}, Dst: make([]byte, 2)}, ids, ids[0])
	b := binary.BigEndian.AppendUint64(nil, 1<<30)
	b = binary.BigEndian.AppendUint64(b, 2)
	b = binary.BigEndian.AppendUint64(b, 4)
	_, err := a.prev.Write(append(b, make([]byte, 3<<20)...))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return a.e.Stats().StaleFrames == 1 }, patience, time.Millisecond)
	require.LessOrEqual(t, a.e.Buffers().PeakUsed, int64(4*link.DefaultFrameBytes))
	a.prev.Close()
	require.ErrorIs(t, verdict(t, done), errs.RankConnectionLost)
	op.Finish(true)
}

// A frame in an operation's name that comes from somebody else is not for it.
func TestForeignFramesAreNotTaken(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1), uuid(2)}
	a := newAlone(t, Config{}, ids[2], ids[1], true)
	foreign, in := transporttest.Pair(transporttest.Options{})
	a.e.hub.AddReceiver(ids[1], 0, in)
	src := []byte{1, 2, 3}
	op, done := a.start(1, Spec{Tag: 1, Count: 3, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src}, ids, ids[0])
	b := &alone{t: t, prev: foreign}
	b.send(1, 1, []byte{99})
	require.Eventually(t, func() bool { return a.e.Stats().StaleFrames == 1 }, patience, time.Millisecond)
	for range 4 {
		a.recv()
		a.send(1, 1, []byte{5})
	}
	require.NoError(t, verdict(t, done))
	op.Finish(false)
	require.Equal(t, []byte{5, 7, 5}, src)
}
