package compat

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/ports"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// The master dies in the middle of an all-reduce. Every call on every
// peer ends with an error, and our peers have their in-place input back
// (control spec, section 13.5; quirk Q37).
func TestMasterDies(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{original, ours} {
		t.Run(string(k)+" master", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, k)
			for _, k := range []kind{original, ours, ours} {
				w.join(w.newPeer(k, 0, 1))
			}
			o := w.newOperation(0, pccl.Reduce{Op: sum, DType: f32, InPlace: true}, 4<<20)
			require.NoError(t, all(w.peers, func(_ int, p *peer) error { return p.Launch(o.of(p)) }))
			w.master.Kill()

			results := make([]pccl.Reduced, len(w.peers))
			require.NoError(t, all(w.peers, func(i int, p *peer) (err error) {
				results[i], err = p.Await(o.Tag)
				return ended(p, err, errs.RankConnectionLost)
			}))
			for i, p := range w.peers {
				if p.kind == ours {
					require.True(t, bytes.Equal(o.inputs[p], results[i].Data), difference(o.inputs[p], results[i].Data))
				}
			}
			tensor := []pccl.Tensor{{Key: "k", DType: f32, Data: make([]byte, 16)}}
			for name, call := range map[string]func(p *peer) error{
				"update":   func(p *peer) error { return ended(p, p.Update(), errs.UpdateTopologyFailed) },
				"pending":  func(p *peer) error { _, err := p.Pending(); return ended(p, err, errs.InvalidUsage) },
				"optimize": func(p *peer) error { return ended(p, p.Optimize(), errs.TopologyOptimizationFailed) },
				"sync": func(p *peer) error {
					_, err := p.Sync(0, wire.EnforcePopular, tensor)
					return ended(p, err, errs.InvalidUsage)
				},
				"reduce": func(p *peer) error { _, err := p.Reduce(o.of(p)); return ended(p, err, errs.RankConnectionLost) },
			} {
				require.NoError(t, all(w.peers, func(_ int, p *peer) error { return call(p) }), name) // S1-11
			}
			require.NoError(t, all(w.peers, func(_ int, p *peer) error {
				if err := p.Destroy(); err != nil {
					return err
				}
				return p.Quit()
			}))
		})
	}
}

// The master dies in the middle of an all-reduce, and another one is started. The
// original loses its connection, as ever. Our peers keep their sessions, and without
// waiting for the original, which is still there, they go on with each other. It comes
// again as a newcomer.
func TestMasterIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ours)
	w.resumes = true
	w.outlives(func() {
		w.master.Kill()
		w.master = w.start(ours, "next master")
		require.Eventually(t, func() bool { return w.master.Master("127.0.0.1", w.port) == nil }, callLimit, 10*time.Millisecond)
	})
}

// The same with three masters: the leader dies. The original knows one address, and comes again
// at the master that leads then.
func TestLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t, ours)
	w.resumes = true
	free, err := ports.Free(6)
	require.NoError(t, err)
	var masters []*pccl.Process
	var talk, known []string
	for i := range 3 {
		known, talk = append(known, fmt.Sprint("127.0.0.1:", free[i])), append(talk, fmt.Sprint("127.0.0.1:", free[3+i]))
	}
	for i := range 3 {
		w.env = []string{fmt.Sprintf("%s=%s %s %s", mastersEnv, strings.Join(talk, ","), talk[i], t.TempDir())}
		masters = append(masters, w.start(ours, fmt.Sprint("master ", i)))
		require.NoError(t, masters[i].Master("127.0.0.1", free[i]))
	}
	w.env = []string{knownEnv + "=" + strings.Join(known, ",")}
	dead := -1
	elect := func() {
		require.Eventually(t, func() bool {
			for i, m := range masters {
				if i != dead && strings.Contains(m.Log(), "kind=leads") {
					dead, w.master, w.port = i, m, free[i]
					return true
				}
			}
			return false
		}, callLimit, 10*time.Millisecond)
	}
	elect()
	w.outlives(func() {
		w.master.Kill()
		elect()
	})
}

// outlives has our peers go on without the master, which ends amid an all-reduce, and without
// the original. They agree on whether that has passed: its data may have arrived everywhere.
func (w *world) outlives(end func()) {
	t := w.t
	for _, k := range []kind{original, ours, ours} {
		w.join(w.newPeer(k, 0, 1))
	}
	names := func() (us []string) {
		for _, p := range w.peers {
			if p.kind == ours {
				_, self, err := p.Ring()
				require.NoError(t, err)
				us = append(us, fmt.Sprint(self))
			}
		}
		return us
	}
	before := names()
	o := w.newOperation(0, pccl.Reduce{Op: sum, DType: f32, InPlace: true}, 4<<20)
	require.NoError(t, all(w.peers, func(_ int, p *peer) error { return p.Launch(o.of(p)) }))
	end()
	results, passed := map[*peer]pccl.Reduced{}, 0
	var mu sync.Mutex
	require.NoError(t, all(w.peers, func(_ int, p *peer) error {
		r, err := p.Await(o.Tag)
		mu.Lock()
		defer mu.Unlock()
		results[p] = r
		switch {
		case p.kind == ours && err == nil:
			passed++
			return nil
		case p.kind == ours && errs.CodeOf(err) != errs.RankConnectionLost:
			return fmt.Errorf("code %v, error %w", errs.CodeOf(err), err)
		}
		return ended(p, err, errs.RankConnectionLost)
	}))
	require.Contains(t, []int{0, len(before)}, passed, "they do not agree")
	explained := slices.ContainsFunc(w.rings[0], func(r ring) bool {
		var inputs [][]byte
		for _, p := range r {
			inputs = append(inputs, o.inputs[p])
		}
		want := predict(&o.Reduce, inputs)
		for i, p := range r {
			data := want[i].data
			if passed == 0 {
				data = o.inputs[p]
			}
			if p.kind == ours && !bytes.Equal(data, results[p].Data) {
				return false
			}
		}
		return true
	})
	require.True(t, explained, "what is in the buffers is neither the sum nor the input")
	lost := w.peers[0]
	w.gone(lost)
	require.NoError(t, all(w.peers, func(_ int, p *peer) error { return p.Update() }))
	w.roundDone()
	w.checkAttributes(w.peers...)
	require.Equal(t, before, names())
	w.reduce(w.newOperation(0, pccl.Reduce{Op: sum, DType: f32}, 100_000))
	require.NoError(t, lost.Destroy())
	require.NoError(t, lost.Quit())
	w.join(w.newPeer(original, 0, 1))
	require.Equal(t, before, names())
	w.reduce(w.newOperation(0, pccl.Reduce{Op: sum, DType: f32}, 100_000))
	w.close()
}

// ended checks that a call failed: the original with the given result, ours
// with the same or with a code that says that the session is over.
func ended(p *peer, err error, want errs.Code) error {
	over := []errs.Code{errs.MasterLost, errs.Kicked, errs.Closed}
	switch code := errs.CodeOf(err); {
	case code == want:
	case p.kind == ours && slices.Contains(over, code):
	default:
		return fmt.Errorf("code %v, error %w", code, err)
	}
	return nil
}

// Without a word about ports, both sides meet on 48148.
func TestDefaultPort(t *testing.T) {
	w := &world{t: t, original: pccl.Require(t), port: 48148}
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()

	// The port may be the local end of somebody's connection for a moment.
	var m *core.Master
	require.Eventually(t, func() bool {
		var err error
		m, err = core.NewMaster(core.MasterOptions{})
		return err == nil
	}, callLimit, 10*time.Millisecond)
	defer m.Close()
	require.EqualValues(t, 48148, m.Addr().Port()) // S1-05
	served := make(chan error, 1)
	go func() { served <- m.Run(ctx) }()
	p := w.newPeer(original, 0, 1)
	require.NoError(t, p.Connect())
	require.NoError(t, p.Destroy())
	require.NoError(t, m.Close())
	<-served

	// PCCL's master says that it runs before it knows whether it has the port.
	var comm *core.Communicator
	require.Eventually(t, func() bool {
		w.master = w.start(original, "original master")
		if w.master.Master("127.0.0.1", 48148) != nil {
			return false
		}
		soon, stop := context.WithTimeout(ctx, 3*time.Second)
		defer stop()
		var err error
		if comm, err = core.Connect(soon, core.Options{Master: "127.0.0.1:48148"}); err != nil {
			w.master.Kill()
		}
		return err == nil
	}, callLimit, 100*time.Millisecond)
	require.Equal(t, 1, comm.Attributes().GlobalWorldSize)
	require.NoError(t, comm.Close())
}
