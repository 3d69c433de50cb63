// Package sim runs the real state machines of master and peers in virtual
// time: packets travel with random delays in order, connections are cut,
// processes killed and stopped at every step. Every run is the function of
// its seed.
package sim

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// rng is splitmix64: small, fast and the same everywhere.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// n returns a number in [0, k).
func (r *rng) n(k int) int { return int(r.next() % uint64(k)) }

// chance is true once in k.
func (r *rng) chance(k int) bool { return r.n(k) == 0 }

// between returns a duration in [a, b).
func (r *rng) between(a, b time.Duration) time.Duration {
	return a + time.Duration(r.next()%uint64(b-a))
}

// event is something that happens at a peer (p set) or in the world. Events
// at a stopped peer wait until it goes on.
type event struct {
	at  time.Duration
	seq uint64
	p   *peer
	do  func()
}

// queue is a binary heap by time, then by order of scheduling.
type queue []event

func (q queue) less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}

func (q *queue) push(e event) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *queue) pop() event {
	h := *q
	e := h[0]
	last := len(h) - 1
	h[0] = h[last]
	h[last] = event{}
	h = h[:last]
	*q = h
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && h.less(c+1, c) {
			c++
		}
		if !h.less(c, i) {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	return e
}

// Bounds of the simulated system; virtual time is free.
const (
	beat           = 2 * time.Second
	silence        = 8 * time.Second
	connectBound   = 10 * time.Second // of a P2P connect or a fetch to a stopped peer
	preflightBound = 4 * time.Second
	roundBound     = 30 * time.Second
	voteBound      = 60 * time.Second
	keepalive      = 20 * time.Second
	hangAfter      = 200 * time.Second
	afterAll       = 40 * time.Second // ... when several masters have no more faults
	maxEvents      = 200000
	registerBound  = 12 * time.Second
	patience       = 20 * time.Millisecond // with a ring, before a better one replaces it
)

// mutation is a bug put in on purpose.
type mutation int

const (
	noBug              mutation = iota
	abortForgotten              // the master does not forward an abort to one member
	voteForgotten               // the master does not re-check votes on a disconnect
	restoreSkipped              // a peer does not restore the buffer of a failed operation
	verdictFlipped              // one member is told that an aborted operation succeeded
	chunkLost                   // a chunk is copied where it should be added
	switchForgotten             // one member is not told that the ring has changed
	releasedEarly               // connections of the ring before go while operations use them
	epochForgotten              // frames of eager operations do not tell rounds apart
	spoilForgotten              // a failure that is the first news of its epoch spoils nothing
	fetchSkipped                // a fetch reports success without the content
	tornVotes                   // a state that a transfer has left torn votes as any other
	meshOfLaunch                // an operation takes the mesh as it was at its launch
	meshNewsLate                // some members hear of the mesh after what uses it
	membersByUUID               // some members count in another order
	choiceOfLaunch              // an all-reduce goes as it was chosen at its launch
	planForgotten               // some take the ring for what is to go over trees
	staleTaken                  // plans for members, a mesh or a ring that are no more are taken for those asked for
	waysForgotten               // a peer says that it is connected for plans, and is not
	waysReleased                // connections that plans need go with those that nothing needs
	choiceAhead                 // some go directly as soon as the mesh stands, before they are told to
	numbersForgotten            // a master begins with the numbers of the first one
	verdictsForgotten           // peers do not report the verdicts that they have heard
	answersForgotten            // ... whether newcomers waited
	electionsForgotten          // ... what was elected
	roundsForgotten             // ... that they wait to hear whether a ring stands
	endsForgotten               // ... which synchronisation has ended
	dropUnconfirmed             // a master drops peers that it may not drop
	switchedLate                // ... tells of a ring behind the commences of operations in it
	oldVerdicts                 // newcomers take verdicts of operations before their time
	endsUnsaid                  // peers do not say which neighbours they have lost
	blocksByRing                // blocks lie in the order of the ring and not of the members
	rootUnsaid                  // votes do not tell roots apart
	totalsUnchecked             // nobody looks whether the ends of a lane agree
	inPlaceForgotten            // inputs that are outputs, too, are not restored
	outputForgotten             // ... outputs that are to be preserved
	extentForgotten             // lanes of blocks of other sizes are the same if their bytes are
	mismatchUntold              // nobody tells the others that the ends of a lane do not agree
	misfitUntyped               // arguments that fit no plan look like a lost connection
	lossUnseen                  // a lost link does not end the data phase of a collective
	abortUnheard                // nor an abort
	senderForgotten             // what comes early is kept by tag, and not by member
	offersSwapped               // offers of messages overtake each other
	offersDoubled               // ... come twice
	tagsForgotten               // all have one tag
	refusalUntold               // nobody is told that the sizes differ
	givingUpUntold              // ... that a receive was given up
	withdrawalUntold            // ... a send
	failureUntold               // ... that a message has failed
	partsForgotten              // a message is done before it is there
	halfDelivered               // ... when its connection ends
	endUnheard                  // the end of a connection from a member means nothing
	endUnsaid                   // ... to a member
	replacementUnheard          // another one in the place of a connection
	staleHeard                  // what comes over the one before counts
	leaverForgotten             // a member that has gone ends nothing
	roundForgotten              // nor a round
	mailEpochForgotten          // messages outlive their round
	aheadForgotten              // those of a round that is over elsewhere are dropped
	openForgotten               // a member offers more messages than it may
	bytesForgotten              // ... more bytes
	lastWordsForgotten          // nobody waits for what was said before a connection ended
	releaseForgotten            // a part counts as sent before it is
	boundForgotten              // nothing bounds what leaves before a commence
	numberUnused                // what leaves behind it names the epoch, too
	heldForgotten               // what was held back until then stays
	resultUnsaid                // nobody says that it holds a result
	resultWrong                 // the result that is passed on is another one
	forwardUngranted            // operations return early whether others can get their result or not
	anyNumber                   // an operation takes what has any number, as long as it has none
)

// world is one run.
type world struct {
	seed  uint64
	rng   rng
	now   time.Duration
	q     queue
	order uint64
	count int // events handled

	master     *master // the one that peers find
	lastClient mfsm.ClientID
	heirs      heirs
	council    *council // nil: there is one master at a time
	peers      []*peer

	keys       keys
	links      map[[2]int]*link
	blocked    map[[2]int]bool // pairs that cannot connect
	plan       scenario
	eagerBytes int // of operations that may begin before their commence
	faults     []fault
	struck     uint // the kinds of faults that were injected, one bit each
	bug        mutation

	progress   time.Duration
	leaving    bool // some peer has done its work
	unprovoked int  // operations that had failed by then
	excused    bool // a fault of this run may cost innocent peers their place
	failing    int  // rounds that failed since the last one that stands
	failure    string
	log        journal
	collector  book
}

// journal is what is kept of a run to look at.
type journal struct {
	tracing bool
	lines   []string
	keep    bool     // facts
	facts   []string // of the master
	factAt  []time.Duration
}

func (w *world) failf(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
		w.tracef("FAILURE: %s", w.failure)
	}
}

func (w *world) tracef(format string, args ...any) {
	if w.log.tracing {
		w.log.lines = append(w.log.lines, fmt.Sprintf("%12.6f #%d ", w.now.Seconds(), w.count)+fmt.Sprintf(format, args...))
	}
}

// at schedules do, at peer p if not nil.
func (w *world) at(t time.Duration, p *peer, do func()) {
	w.order++
	w.q.push(event{at: max(t, w.now), seq: w.order, p: p, do: do})
}

func (w *world) after(d time.Duration, p *peer, do func()) { w.at(w.now+d, p, do) }

// run executes the seed and returns what went wrong, "" if nothing.
func (w *world) run() string {
	for len(w.q) > 0 && w.failure == "" {
		e := w.q.pop()
		w.now = e.at
		if p := e.p; p != nil {
			if p.dead {
				continue
			}
			if p.stopped {
				p.backlog = append(p.backlog, e.do)
				continue
			}
		}
		w.count++
		e.do()
		w.endsOfOutlaws()
		for len(w.faults) > 0 && w.count >= w.faults[0].at && w.failure == "" {
			f := w.faults[0]
			if f.amid && !w.amid() && w.count < f.at+amidWait {
				break
			}
			w.faults = w.faults[1:]
			w.inject(f)
		}
		if !w.running() {
			break
		}
		if most := w.patience(); w.now > w.progress+most {
			w.failf("nothing happened for %v: %s", most, w.waiting())
		}
		if most := max(maxEvents, w.plan.events); w.count > most {
			w.failf("no end after %d events: %s", most, w.waiting())
		}
	}
	if w.failure == "" && w.running() {
		w.failf("nobody will ever send anything again: %s", w.waiting())
	}
	if w.failure == "" {
		w.collector.settle(w)
	}
	return w.failure
}

// patience is for how long nothing may happen.
func (w *world) patience() time.Duration {
	if w.council != nil && w.now > w.council.calm+afterAll {
		return afterAll
	}
	return hangAfter
}

// running reports whether any peer is still at work.
func (w *world) running() bool {
	if w.council != nil && !w.council.opened {
		return true
	}
	for _, p := range w.peers {
		if !p.dead {
			return true
		}
	}
	return false
}

// waiting describes who waits for what.
func (w *world) waiting() string {
	var b strings.Builder
	for _, p := range w.peers {
		if !p.dead {
			fmt.Fprintf(&b, "peer %d in %s (stopped %v, world %d); ", p.id, p.trainer.doing, p.stopped, p.m.View().LocalWorldSize)
		}
	}
	if w.master.dead {
		return b.String()
	}
	for _, c := range w.master.m.Snapshot().Clients {
		fmt.Fprintf(&b, "master: %s %v %v %v; ", c.UUID.Short(), c.Phase, c.State, c.Collectives)
	}
	return b.String()
}

func (w *world) newUUID() (u wire.UUID) {
	a, b := w.rng.next(), w.rng.next()
	for i := range 8 {
		u[i], u[8+i] = byte(a>>(8*i)), byte(b>>(8*i))
	}
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u
}

// rounds checks that failed rounds come to an end.
func (w *world) rounds(f mfsm.Fact) {
	switch {
	case f.Kind != "round":
	case !f.Warn:
		w.failing = 0
	default:
		if w.failing++; w.failing > 3*len(w.peers)+10 {
			w.failf("%d rounds have failed in a row", w.failing)
		}
	}
}

func show(p wire.Packet) string {
	return strings.TrimPrefix(fmt.Sprintf("%T%+v", p, p), "wire.")
}

func ip(id int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(id >> 8), byte(id)}) }

// byAddr finds the peer that listens at a.
func (w *world) byAddr(a netip.AddrPort) *peer {
	for _, p := range w.peers {
		if p.ip == a.Addr() {
			return p
		}
	}
	return nil
}

func (w *world) byUUID(u wire.UUID) *peer {
	for _, p := range w.peers {
		if p.uuid == u {
			return p
		}
	}
	return nil
}
