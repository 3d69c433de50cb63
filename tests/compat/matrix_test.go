package compat

import (
	"slices"
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// cell is one world of the matrix: a master and peers of both kinds. Pools
// differ on purpose, because sender and receiver choose a connection on their
// own (data spec, section 1.2).
type cell struct {
	name   string
	master kind
	peers  []kind
	tls    bool // our endpoints are in TLS, and PCCL's come beside that
}

// The original library alone proves the script; the others prove us.
var cells = []cell{
	{"original master and peers", original, []kind{original, original, original}, false},
	{"gopccl master, original peers", ours, []kind{original, original, original}, false},
	{"original master, gopccl peers", original, []kind{ours, ours, ours}, false},
	{"gopccl master, mixed ring", ours, []kind{original, ours, original, ours}, false},
	{"original master, mixed ring", original, []kind{ours, original, ours, original}, false},
	{"gopccl master and peers in TLS, mixed ring", ours, []kind{ours, original, ours, ours, original}, true},
}

// What a group of PCCL 1.0.0 does, in every mixture of masters and peers.
func TestOneGroup(t *testing.T) {
	t.Parallel()
	for _, c := range cells {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := worldOf(t, c.master, c.tls)
			for i, k := range c.peers {
				w.join(w.newPeer(k, 0, 1+i%3)) // S1-06
			}
			w.lap("join")
			w.syncOutdated(0)
			w.lap("sync")
			w.reduceEverything(0) // S1-29, S2-35
			w.reduceSizes(0)      // S1-30
			w.lap("reduce")
			w.reduceMinMax(0)
			w.reduceZeroPoint(0)
			w.lap("quantized reduce")
			w.retryHelper(0) // S1-33
			if !slices.Equal(c.peers, []kind{original, original, original}) || c.master == ours {
				w.optimize()
				w.lap("optimize, with the wait for a turn")
			}
			// One of each kind dies where there are two kinds.
			for i, r := range []pccl.Reduce{
				{Op: avg, DType: f32, InPlace: true},
				{Op: sum, DType: f32, InPlace: true, Algorithm: pccl.MinMax, QType: dtype.Uint8},
			} {
				victim := w.peers[i*(len(w.peers)-1)]
				w.join(w.killAndRetry(victim, r)) // S2-14, S2-31
				w.syncNewcomer(0)
				w.reduce(w.newOperation(0, pccl.Reduce{Op: sum, DType: f32}, 1000))
				w.lap("kill, retry, rejoin")
				r.InPlace = i == 0
				w.killVoter(w.peers[0], r)
				w.join(w.newPeer(c.peers[i], 0, 1))
				w.syncNewcomer(0)
				w.lap("kill a voter, rejoin")
			}
			w.close()
			w.lap("leave")
		})
	}
}

// Two groups under one master: the same tags at the same time, a shared state
// each, and a death in one of them (control spec, sections 5.1, 9 and 11).
//
// Under our master a death in one group is nothing to the other. Under the
// original one nobody dies: there the round that follows an abort needs the
// same vote from the other group, which has no way to cast it (quirk Q59).
func TestTwoGroups(t *testing.T) {
	t.Parallel()
	for _, c := range []cell{
		{"gopccl master, mixed groups", ours, []kind{original, ours, ours, original, original}, false},
		{"original master, mixed groups", original, []kind{ours, ours, original, original, ours}, false},
		{"gopccl master and peers in TLS, one group mixed", ours, []kind{original, ours, ours, ours, original}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := worldOf(t, c.master, c.tls)
			for i, k := range c.peers {
				w.join(w.newPeer(k, uint32(i%2), 1+i%3))
			}
			for g := range uint32(2) {
				if g == 0 || !c.tls { // what it expects of hashes is what PCCL peers compute
					w.syncOutdated(g)
				}
				w.reduceMinMax(g)
			}
			for _, o := range allOps {
				a := w.newOperation(0, pccl.Reduce{Op: o, DType: f32, InPlace: true}, 700)
				b := w.newOperation(1, pccl.Reduce{Op: o, DType: f64}, 900)
				b.Tag = a.Tag
				w.reduce(a, b)
			}
			w.optimize()
			victim := w.peers[0]
			if c.master == ours {
				w.join(w.killAndRetry(victim, pccl.Reduce{Op: avg, DType: f32, InPlace: true}))
			} else {
				w.leave(victim)
				w.join(w.newPeer(victim.kind, victim.group, 1))
			}
			w.syncNewcomer(victim.group)
			for g := range uint32(2) {
				w.reduce(w.newOperation(g, pccl.Reduce{Op: sum, DType: f32}, 1000))
			}
			w.close()
		})
	}
}
