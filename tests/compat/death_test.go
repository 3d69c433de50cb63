package compat

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// killAndRetry kills the victim in the middle of an in-place all-reduce. The
// survivors must all see it fail, ours hold their input again, bit by bit, and
// all succeed when they try again (control spec, section 12; data spec, sections
// 2.5 and 6). It returns a newcomer of the victim's kind that has not joined.
func (w *world) killAndRetry(victim *peer, r pccl.Reduce) *peer {
	w.t.Helper()
	size := 1 << 20
	if !slices.ContainsFunc(w.members(victim.group), func(p *peer) bool { return p.kind == ours }) {
		size = 16 << 20 // originals among themselves are done sooner than they are killed
	}
	for ; size <= 64<<20; size *= 2 {
		o := w.newOperation(victim.group, r, size)
		killed, over := w.killInside(victim, o)
		if !killed {
			continue
		}
		w.gone(victim)
		if over {
			require.NoError(w.t, all(w.peers, func(_ int, p *peer) error { return p.Update() }))
			victim = w.newPeer(victim.kind, victim.group, 1)
			w.join(victim)
			continue
		}
		delete(o.inputs, victim)
		for p := range o.inputs {
			o.inputs[p] = o.inputs[p][:100_000*o.DType.Size()] // enough for a retry
		}
		w.roundDone()
		w.checkAttributes(w.members(o.group)...)                                  // other groups took no part in the round
		w.reduce(w.newOperation(o.group, pccl.Reduce{Op: sum, DType: f32}, 1000)) // tells the ring
		w.reduce(o)
		return w.newPeer(victim.kind, victim.group, 1)
	}
	w.t.Fatal("no operation lasted long enough to kill somebody in it")
	return nil
}

// killInside runs o and kills the victim as soon as its data moves. Both may
// come too late: killed is false, and the victim lives, if nothing was seen to
// move; over is true if the operation was over for the survivors all the same.
func (w *world) killInside(victim *peer, o *operation) (killed, over bool) {
	w.t.Helper()
	members := w.members(victim.group)
	results := map[*peer]pccl.Reduced{}
	require.NoError(w.t, all(members, func(_ int, p *peer) error { return p.Launch(o.of(p)) }))

	type end struct {
		p   *peer
		res pccl.Reduced
		err error
	}
	ends := make(chan end, len(members))
	for _, p := range members {
		go func() {
			res, err := p.Await(o.Tag)
			ends <- end{p, res, err}
		}()
	}
	left := len(members)
	failed := map[*peer]error{}
	take := func(e end) {
		results[e.p], failed[e.p] = e.res, e.err
		left--
	}
	for left > 0 && !killed {
		select {
		case e := <-ends:
			take(e)
		default:
			if left == len(members) && queued(victim.PID()) > 4<<10 {
				victim.Kill()
				killed = true
			}
		}
	}
	// The round that follows an abort needs nothing of other groups: they do not call anything.
	for left > 0 {
		take(<-ends)
	}
	if killed {
		victim.Close()
		members = slices.DeleteFunc(members, func(p *peer) bool { return p == victim })
		delete(results, victim)
	}
	// Whatever the verdict is, it is the same for everybody.
	over = failed[members[0]] == nil
	for _, p := range members {
		if over {
			require.NoError(w.t, failed[p], "others were successful")
			continue
		}
		require.True(w.t, killed, "%v", failed[p])
		require.Equal(w.t, errs.RankConnectionLost, errs.CodeOf(failed[p]), "await at %s: %v", p.Name, failed[p])
		if p.kind == original {
			continue // an abort that comes late leaves reduced data there (quirk Q22)
		}
		require.True(w.t, bytes.Equal(o.inputs[p], results[p].Data), "%s did not get its input back: %s",
			p.Name, difference(o.inputs[p], results[p].Data))
	}
	return killed, over
}

// killVoter kills a peer whose vote all others wait for. The operation commences
// without it and is aborted at once, so that some of the others have not sent a
// single frame when they hear of it. Originals do not look for an abort before
// their first frame has come (control spec, section 12; quirk Q23).
func (w *world) killVoter(victim *peer, r pccl.Reduce) {
	w.t.Helper()
	o := w.newOperation(victim.group, r, 5000)
	w.gone(victim)
	members := w.members(o.group)
	require.NoError(w.t, all(members, func(_ int, p *peer) error { return p.Launch(o.of(p)) }))
	victim.Kill()
	require.NoError(w.t, all(members, func(_ int, p *peer) error {
		res, err := p.Await(o.Tag)
		switch {
		case errs.CodeOf(err) != errs.RankConnectionLost:
			return fmt.Errorf("await: %w", err)
		case o.InPlace && !bytes.Equal(o.inputs[p], res.Data):
			return errors.New("did not get its input back: " + difference(o.inputs[p], res.Data))
		}
		return nil
	}))
	delete(o.inputs, victim)
	w.roundDone()
	w.checkAttributes(members...)
	w.reduce(o)
}

// queued returns how many bytes wait in the socket buffers of a process. It is
// large only while tensors move.
func queued(pid int) (bytes int) {
	mine := map[string]bool{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "socket:[") {
			mine[strings.Trim(to, "socket:[]")] = true
		}
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) < 10 || !mine[f[9]] {
			continue
		}
		var tx, rx int
		if _, err := fmt.Sscanf(f[4], "%x:%x", &tx, &rx); err == nil {
			bytes += tx + rx
		}
	}
	return bytes
}
