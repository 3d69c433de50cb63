package sim

import (
	"slices"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// book keeps what must agree between peers.
type book struct {
	ops   map[uint64]*record // by sequence number of the commence
	votes map[voteKey]int    // last collective packet of an operation at a client
	syncs []*content
	won   map[task]bool      // what a peer has reduced
	sound map[[2]uint64]bool // states that some trainer has had as a whole
	lost  map[task]int       // how often it had to be reduced again

	// Counted in the run.
	successes, failures, fetches int
	ahead                        int // operations that were over before they were commenced
	limited, held                int // data phases with a bound until the commence; frames that it held back
	switches                     int // of one peer each
	tornAgain                    int // peers that came back with a torn state
	connected                    int // PCCL peers that have connected again
	reuses                       int // tags that were used again before the round
	spans                        map[uint64]*span
	offRing
	landings
	shown                   int // reports of rates
	directs, directFailures int // data phases of one peer over the mesh instead of the ring; ... that failed
	drained, renewed        int // peers that left between two collectives; operations that others took back for them
	firstDirect             int // the event with which the first one began

	others    tally
	occasions map[occasion]*gathering
	meshbook
	mail mailbook
}

// meshbook is what must agree about meshes and plans.
type meshbook struct {
	ways     map[uint64]taken // by sequence number
	meshing  map[int]bool     // peers that connect for a mesh
	unmeshed map[int]*op      // what was commenced at such a peer last
}

// offRing counts the data phases of all-reduces that leave the ring, of one peer each.
type offRing struct {
	meshes  int // over a mesh
	jobs    int // for plans beside the machine
	stale   int // ... that nobody asked for any more when they were made
	schemes int // of those, over trees
	small   int // ... and not large
}

// tally is what was seen of collectives other than all-reduces, of one peer each.
type tally struct {
	gathered, broken int                          // that succeeded, and that failed
	flights          [plan.NumKinds]int           // data phases
	mismatches       [numDifferences]int          // that were told as such
	amid             [plan.NumKinds][numKinds]int // faults that struck while one was under way
}

func (t *tally) add(o *tally) {
	t.gathered, t.broken = t.gathered+o.gathered, t.broken+o.broken
	for d, n := range o.mismatches {
		t.mismatches[d] += n
	}
	for k := range o.flights {
		t.flights[k] += o.flights[k]
		for f, n := range o.amid[k] {
			t.amid[k][f] += n
		}
	}
}

// task is one vector that a trainer has to reduce.
type task struct {
	peer     int
	revision uint64
	tag      uint64
}

type voteKey struct {
	peer int
	tag  uint64
}

// record is one collective as its members saw it.
type record struct {
	inputs    map[wire.UUID][]int64
	verdict   int // 0 unknown, 1 success, 2 failure
	by        int
	landed    []*peer // have returned the result before the verdict
	successes int
}

// content is the shared state that members held when a synchronisation ended.
type content struct {
	known    bool
	revision uint64
	state    [2]uint64
}

func newBook() book {
	return book{
		ops: map[uint64]*record{}, votes: map[voteKey]int{}, won: map[task]bool{}, sound: map[[2]uint64]bool{}, lost: map[task]int{},
		occasions: map[occasion]*gathering{}, meshbook: meshbook{ways: map[uint64]taken{}, meshing: map[int]bool{}, unmeshed: map[int]*op{}},
	}
}

// sent checks that every member gets one M2C 9, one M2C 11 and one M2C 10 per
// operation, in this order (control spec, section 11).
func (b *book) sent(w *world, p *peer, pkt wire.Packet) {
	next := func(tag uint64, after, now int) {
		k := voteKey{p.id, tag}
		if b.votes[k] != after {
			w.failf("the master sends %T of tag %d to peer %d after packet %d", pkt, tag, p.id, b.votes[k])
		}
		b.votes[k] = now
	}
	switch pkt := pkt.(type) {
	case wire.M2CCollectiveCommsCommence:
		next(pkt.Tag, 0, 9)
	case wire.M2CCollectiveCommsAbort:
		next(pkt.Tag, 9, 11)
	case wire.M2CCollectiveCommsComplete:
		next(pkt.Tag, 11, 0)
	}
}

// started records what a member brings into an operation.
func (b *book) started(w *world, op *op) {
	r := b.ops[op.seq]
	if r == nil {
		r = &record{inputs: map[wire.UUID][]int64{}}
		b.ops[op.seq] = r
	}
	if r.inputs[op.p.uuid] != nil {
		w.failf("peer %d starts operation %d twice", op.p.id, op.seq)
	}
	r.inputs[op.p.uuid] = op.orig
}

// finished checks the buffer: as before if the operation failed, the sum over
// the ring if it succeeded; and that all members see the same verdict.
func (b *book) finished(w *world, op *op, early bool) {
	if op.restored {
		b.failures++
		if !w.leaving {
			b.lost[task{op.p.id, op.p.memory.revision, op.tag}]++
		}
		if !slices.Equal(op.buf, op.orig) {
			w.failf("peer %d: buffer of failed operation %d (tag %d) is %v, was %v", op.p.id, op.seq, op.tag, op.buf, op.orig)
		}
	} else {
		b.successes++
		b.checkSum(w, op)
		// Retries repeat what failed and nothing else.
		k := task{op.p.id, op.p.memory.revision, op.tag}
		if b.won[k] {
			w.failf("peer %d reduces tag %d of revision %d twice", k.peer, k.tag, k.revision)
		}
		b.won[k] = true
	}
	if !op.started || op.canceled || !op.p.m.View().Connected {
		return
	}
	r := b.ops[op.seq]
	verdict := 1
	if op.restored {
		verdict = 2
	}
	if early {
		b.returned(op)
	}
	if verdict == 1 {
		r.successes++
	} else if r.verdict == 1 && !b.contradicts(w, r, op.p) {
		r.verdict = verdict
	}
	if r.verdict != 0 && r.verdict != verdict && !w.forgotten(r.by) && !w.forgotten(op.p.id) {
		w.failf("operation %d: peer %d says %d, peer %d said %d (1 success, 2 failure)", op.seq, op.p.id, verdict, r.by, r.verdict)
	}
	r.verdict, r.by = verdict, op.p.id
}

func (b *book) checkSum(w *world, op *op) {
	if !op.started {
		w.failf("peer %d: operation with tag %d succeeded without a data phase", op.p.id, op.tag)
		return
	}
	want := make([]int64, len(op.orig))
	for _, u := range op.ring {
		in := b.ops[op.seq].inputs[u]
		if in == nil {
			in = w.byUUID(u).brings(op)
		}
		if in == nil {
			w.failf("operation %d succeeded at peer %d without the part of %s", op.seq, op.p.id, u.Short())
			return
		}
		for i := range want {
			want[i] += in[i]
		}
	}
	if !slices.Equal(op.buf, want) {
		w.failf("operation %d at peer %d: %v instead of %v", op.seq, op.p.id, op.buf, want)
	}
}

// judged checks that the answer of an await fits what happened to the buffer.
func (b *book) judged(w *world, op *op, err error) {
	switch {
	case !op.finished:
		w.failf("peer %d: operation %d is answered before it is finished", op.p.id, op.id)
	case err == nil && op.restored, err != nil && !op.restored && !op.p.over:
		w.failf("peer %d: operation %d: restored %v, answered %v", op.p.id, op.id, op.restored, err)
	}
}

func (b *book) newSync() int {
	b.syncs = append(b.syncs, &content{})
	return len(b.syncs)
}

// synced checks that the members of a synchronisation hold the same state.
// A synchronisation never ends with a mixture of two states.
func (b *book) synced(w *world, p *peer) {
	p.goesOn()
	if !b.sound[p.memory.state] {
		w.failf("peer %d: the state %v of revision %d that was elected is a mixture", p.id, p.memory.state, p.memory.revision)
	}
	c := b.syncs[p.memory.sync-1]
	if !c.known {
		*c = content{true, p.memory.revision, p.memory.state}
		return
	}
	if c.revision != p.memory.revision || c.state != p.memory.state {
		w.failf("peer %d holds revision %d %v after a synchronisation to revision %d %v", p.id, p.memory.revision, p.memory.state, c.revision, c.state)
	}
}

// reduced checks that a trainer that goes on has reduced everything.
func (b *book) reduced(w *world, p *peer, tags int) {
	for tag := range uint64(tags) {
		if !b.won[task{p.id, p.memory.revision, tag}] {
			w.failf("peer %d goes on without tag %d of revision %d", p.id, tag, p.memory.revision)
		}
	}
}

// settle checks what must hold when everybody has left.
func (b *book) settle(w *world) {
	for _, p := range w.peers {
		if p.suspect || p.lostPower {
			continue
		}
		for _, op := range p.ops {
			if !op.finished && p.over {
				w.failf("peer %d: operation %d was never finished", p.id, op.id)
			}
		}
	}
}
