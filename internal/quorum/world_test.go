package quorum

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
)

// tickTime is 50 ms. Times of a world are in milliseconds.
const tickTime = 50

// planted is a mistake that a world makes, so that a test shows that it would be seen.
type planted int

const (
	none            planted = iota
	confirmsLocally         // a leader confirms without asking anybody
	commitsLocally          // ... and commits
	sendsFirst              // what is to be saved first is sent first
	keepsNothing            // a master comes back with an empty disk
)

// world runs masters in virtual time, on a network that loses, delays and parts, and
// with machines that crash between any two effects. It checks what authorities promise.
type world struct {
	rng    *rand.Rand
	bug    planted
	now    int
	queue  happenings
	count  int
	nodes  []*node
	loss   float64
	delay  int
	ties   int      // how often masters stand for election at once
	parted [][]bool // by from and to
	number uint64

	asked  map[uint64]asked
	leads  []lead   // every Leads
	acked  []commit // every Committed
	faults bool
	wrong  []string

	elections, commits, confirms, crashes int
}

type node struct {
	members Members
	m       *Machine // nil: down
	life    int      // counts restarts
	disk    []byte
	stopped bool
	held    []func() // while it is stopped
	term    uint32   // in which it leads, 0: it does not
	since   int
}

type asked struct {
	at, node, life int
	term           uint32
	registry       string // "": a Confirm
}

// commit is a registry that was committed: the n-th of a term.
type commit struct {
	term uint32
	n    uint64
}

func (c commit) before(o commit) bool { return c.term < o.term || c.term == o.term && c.n < o.n }

type lead struct {
	at, node int
	term     uint32
	found    commit
}

type happening struct {
	at, order int
	do        func()
}

type happenings []happening

func (h happenings) Len() int { return len(h) }
func (h happenings) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *happenings) Push(x any)   { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func newWorld(seed uint64, masters int, bug planted) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 7)), bug: bug, asked: map[uint64]asked{}, delay: 5, ties: 1 + int(seed%4)}
	var names []string
	for i := range masters {
		names = append(names, fmt.Sprintf("master%d:48147", i))
		w.parted = append(w.parted, make([]bool, masters))
	}
	for i, name := range names {
		members, err := NewMembers(names, name)
		if err != nil {
			panic(err)
		}
		w.nodes = append(w.nodes, &node{members: members})
		w.start(i)
		w.at(w.rng.IntN(tickTime), func() { w.tick(i) })
	}
	return w
}

func (w *world) at(after int, do func()) {
	w.count++
	heap.Push(&w.queue, happening{w.now + after, w.count, do})
}

func (w *world) start(i int) {
	n := w.nodes[i]
	if n.m != nil {
		return
	}
	disk := n.disk
	if w.bug == keepsNothing {
		disk = nil
	}
	m, err := New(Config{Members: n.members, State: disk, Rand: func(n int) int { return w.rng.IntN(max(1, n/w.ties)) }})
	if err != nil {
		w.fail("master %d cannot read what it wrote: %v", i, err)
		return
	}
	n.m, n.term, n.stopped, n.held = m, 0, false, nil
	n.life++
}

func (w *world) crash(i int) {
	w.nodes[i].m, w.nodes[i].term = nil, 0
	w.crashes++
	away := 1 + w.rng.IntN(1500)
	if w.rng.IntN(2) == 0 {
		away = 1 + w.rng.IntN(30) // so short that votes of the same election still come
	}
	w.at(away, func() { w.start(i) })
	for j := range w.nodes { // the others may notice, or not
		if j != i && w.rng.IntN(2) == 0 {
			w.at(w.rng.IntN(20), func() { w.step(j, Broken{w.nodes[i].members.Self()}) })
		}
	}
}

func (w *world) fail(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf("%d ms: ", w.now)+fmt.Sprintf(format, args...))
}

// later does something at a master that is up: when it goes on, if it is stopped.
func (w *world) later(i int, do func()) {
	n := w.nodes[i]
	switch {
	case n.m == nil:
	case n.stopped:
		n.held = append(n.held, do)
	default:
		do()
	}
}

func (w *world) tick(i int) {
	if !w.nodes[i].stopped { // a stopped process loses its ticks
		w.step(i, Tick{})
	}
	w.at(tickTime-2+w.rng.IntN(5), func() { w.tick(i) }) // clocks drift
}

func (w *world) step(i int, ev Event) {
	w.later(i, func() {
		n := w.nodes[i]
		if c, ok := ev.(Confirm); ok && w.bug == confirmsLocally && n.term != 0 {
			w.confirmed(i, c.Number)
			return
		}
		if c, ok := ev.(Commit); ok && w.bug == commitsLocally && n.term != 0 {
			w.committed(i, c.Number)
		}
		effects := n.m.Step(ev)
		if w.bug == sendsFirst {
			slices.SortStableFunc(effects, func(a, b Effect) int { return saves(a) - saves(b) })
		}
		dies, done := false, len(effects)
		if w.faults && slices.ContainsFunc(effects, func(e Effect) bool { return saves(e) > 0 }) {
			if dies = w.rng.IntN(20) == 0; dies {
				done = w.rng.IntN(len(effects) + 1)
			}
		}
		for _, e := range effects[:done] {
			w.do(i, e)
		}
		if dies {
			w.crash(i)
		}
	})
}

func saves(e Effect) int {
	if _, ok := e.(Save); ok {
		return 1
	}
	return 0
}

func (w *world) do(i int, e Effect) {
	n := w.nodes[i]
	switch e := e.(type) {
	case Save:
		n.disk = e.State
	case Send:
		w.transmit(i, slices.IndexFunc(w.nodes, func(o *node) bool { return o.members.Self() == e.To }), e.Body)
	case Leads:
		w.lead(i, e)
	case Lost:
		if n.term == 0 {
			w.fail("master %d has lost what it did not have", i)
		}
		n.term = 0
	case Committed:
		if w.bug != commitsLocally {
			w.committed(i, e.Number)
		}
	case Confirmed:
		w.confirmed(i, e.Number)
	case Failed:
		w.fail("master %d: %v", i, e.Err)
		n.m = nil
	}
}

// transmit may lose, delay and double a message. Messages overtake each other.
func (w *world) transmit(from, to int, body []byte) {
	for range 1 + w.rng.IntN(20)/19 {
		if w.rng.Float64() < w.loss {
			return
		}
		delay := 1 + w.rng.IntN(w.delay)
		if w.faults && w.rng.IntN(100) == 0 {
			delay += w.rng.IntN(800)
		}
		w.at(delay, func() {
			if !w.parted[from][to] {
				w.step(to, Message{From: w.nodes[from].members.Self(), Body: body})
			}
		})
	}
}

// lead checks that a leader is the only one of its term, and that it has found what any
// leader before it has committed.
func (w *world) lead(i int, e Leads) {
	n := w.nodes[i]
	l := lead{at: w.now, node: i, term: e.Term}
	if len(e.Registry) > 0 {
		var term, number uint64
		if _, err := fmt.Sscanf(string(e.Registry), "%d %d", &term, &number); err != nil {
			w.fail("master %d found %q", i, e.Registry)
		}
		l.found = commit{uint32(term), number}
	}
	for _, o := range w.leads {
		if o.term == l.term {
			w.fail("master %d leads in term %d, and so did master %d from %d ms on", i, l.term, o.node, o.at)
		}
	}
	if l.found.term >= l.term {
		w.fail("master %d found what was committed in term %d when it began term %d", i, l.found.term, l.term)
	}
	for _, c := range w.acked {
		w.compare(l, c)
	}
	w.leads = append(w.leads, l)
	n.term, n.since = e.Term, w.now
	w.elections++
}

func (w *world) compare(l lead, c commit) {
	if c.term < l.term && l.found.before(c) {
		w.fail("master %d found %v when it began term %d at %d ms: %v was lost", l.node, l.found, l.term, l.at, c)
	}
}

func (w *world) ask(i int, commits bool) {
	n := w.nodes[i]
	if n.m == nil || n.term == 0 {
		return
	}
	w.number++
	a := asked{at: w.now, node: i, life: n.life, term: n.term}
	if commits {
		a.registry = fmt.Sprintf("%d %d", n.term, w.number)
		w.asked[w.number] = a
		w.step(i, Commit{w.number, a.term, []byte(a.registry)})
		return
	}
	w.asked[w.number] = a
	w.step(i, Confirm{w.number, a.term})
}

// answered takes the question that an answer is for. A question has one answer.
func (w *world) answered(i int, number uint64, commits bool) (a asked, ok bool) {
	a, ok = w.asked[number]
	delete(w.asked, number)
	if n := w.nodes[i]; !ok || (a.registry != "") != commits || a.node != i || a.life != n.life || a.term != n.term {
		w.fail("master %d answers what nobody asked it in term %d: %s", i, n.term, strconv.FormatUint(number, 10))
		return a, false
	}
	return a, true
}

func (w *world) committed(i int, number uint64) {
	a, ok := w.answered(i, number, true)
	if !ok {
		return
	}
	c := commit{a.term, number}
	for _, l := range w.leads {
		w.compare(l, c)
	}
	w.acked = append(w.acked, c)
	w.commits++
}

// confirmed checks that nobody led a higher term when the question was asked.
func (w *world) confirmed(i int, number uint64) {
	a, ok := w.answered(i, number, false)
	if !ok {
		return
	}
	for _, l := range w.leads {
		if l.term > a.term && l.at < a.at {
			w.fail("master %d confirms term %d at %d ms, and master %d led term %d from %d ms on", i, a.term, a.at, l.node, l.term, l.at)
		}
	}
	w.confirms++
}

// fault is one thing that goes wrong, and its end.
func (w *world) fault() {
	i := w.rng.IntN(len(w.nodes))
	if w.rng.IntN(2) == 0 { // rather a leader
		for j, n := range w.nodes {
			if n.term != 0 {
				i = j
			}
		}
	}
	switch w.rng.IntN(6) {
	case 0, 1:
		if w.nodes[i].m != nil {
			w.crash(i)
		}
	case 2:
		w.stop(i, w.rng.IntN(2500))
	case 3: // one alone
		w.part(w.rng.IntN(3000), func(from, to int) bool { return (from == i) != (to == i) })
	case 4: // in one direction
		w.part(w.rng.IntN(3000), func(from, to int) bool { return from == i && to != i && w.rng.IntN(2) == 0 })
	case 5:
		side := make([]bool, len(w.nodes))
		for j := range side {
			side[j] = w.rng.IntN(2) == 0
		}
		w.part(w.rng.IntN(3000), func(from, to int) bool { return side[from] != side[to] })
	}
	if w.rng.IntN(6) == 0 {
		w.step(i, Yield{})
	}
	if w.rng.IntN(4) == 0 {
		w.loss = w.rng.Float64() * 0.3
	}
}

func (w *world) stop(i, time int) {
	n := w.nodes[i]
	if n.m == nil {
		return
	}
	n.stopped = true
	life := n.life
	w.at(time, func() {
		if n.life != life || n.m == nil {
			return
		}
		n.stopped = false
		held := n.held
		n.held = nil
		for _, do := range held {
			w.later(i, do)
		}
	})
}

func (w *world) part(time int, cut func(from, to int) bool) {
	for from := range w.nodes {
		for to := range w.nodes {
			w.parted[from][to] = cut(from, to)
		}
	}
	w.at(time, w.heal)
}

func (w *world) heal() {
	for _, row := range w.parted {
		clear(row)
	}
}

// run lets time pass.
func (w *world) run(time int) {
	end := w.now + time
	for len(w.queue) > 0 && w.queue[0].at <= end && len(w.wrong) == 0 {
		h := heap.Pop(&w.queue).(happening)
		w.now = h.at
		h.do()
	}
	w.now = end
}

// leader returns the only master that leads, -1: none or several do.
func (w *world) leader() int {
	at := -1
	for i, n := range w.nodes {
		if n.m != nil && n.term != 0 {
			if at >= 0 {
				return -1
			}
			at = i
		}
	}
	return at
}

// live is a whole life of masters: faults and questions for a time, and then peace.
func (w *world) live(time int) {
	w.faults = true
	w.delay = 1 + w.rng.IntN(30)
	for t := 0; t < time; t += 1 + w.rng.IntN(60) {
		w.at(t, func() { w.ask(w.rng.IntN(len(w.nodes)), w.rng.IntN(2) == 0) })
	}
	for t := 0; t < time; t += 100 + w.rng.IntN(1500) {
		w.at(t, w.fault)
	}
	w.run(time)
	w.faults, w.loss = false, 0
	w.heal()
	w.run(6000)
	if len(w.wrong) > 0 {
		return
	}
	at := w.leader()
	if at < 0 {
		w.fail("nobody leads, or several do")
		return
	}
	before := w.commits
	w.ask(at, true)
	w.ask(at, false)
	w.run(500)
	if w.commits != before+1 {
		w.fail("the leader can commit nothing")
	}
	for i, n := range w.nodes {
		if a, b := n.m.Status().Applied, w.nodes[at].m.Status().Applied; a != b {
			w.fail("master %d knows %d registries, the leader %d", i, a, b)
		}
		if s := n.m.state(); len(s.Entries) > 2*kept+1 {
			w.fail("master %d keeps %d entries", i, len(s.Entries))
		}
	}
}
