package world

import (
	"errors"
	"fmt"
	"math/bits"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/internal/ports"
	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/process"
)

// Proc is a process of a crew.
type Proc struct {
	*process.Child[Report]
	ID    int
	Relay *Relay // nil: nothing stands between it and the others
	Ports []int  // shared state, P2P, benchmark, if Order.TellPorts and it has joined
	// Elder is never harmed for good: so the state never dies, and there is
	// somebody whose memory can be compared over the whole run.
	Elder bool

	came           time.Duration // Crew.going.time then
	joined, holder bool
	lone           bool // it has reported what nobody else had
	paused         bool
	doomed         string // why it may end, or be dropped, from now on
	last           Report
	began          int64 // Report.At of its last "begin"
}

// Joined reports whether the process has come into the run.
func (p *Proc) Joined() bool { return p.joined }

// Holder reports whether the process has the shared state and is well.
func (p *Proc) Holder() bool { return p.holder && p.doomed == "" && !p.paused }

// Crew is a master and its trainers. One goroutine uses it; what the processes
// report is taken in by Run.
type Crew struct {
	Template Order
	Master   *Proc
	Addr     string // of the master
	Books    Books
	// OnBegin is called when a trainer begins the operations of a step.
	OnBegin func(*Proc)
	// OnStep is called when a trainer has finished a step, whose operations took so long.
	OnStep func(r Report, took time.Duration)

	place    func(trainer int) Place
	trainers map[int]*Proc
	nextID   int
	events   chan event
	failure  error
	going    going
	journal  journal
}

type event struct {
	p     *Proc
	r     Report
	ended bool
}

// ErrViolated is the class of failures that are the fault of what is tested.
var ErrViolated = errors.New("violated")

// Place is where a process of a crew runs.
type Place struct {
	Host  string                // the address that it listens at; "": loopback
	Begin func(*exec.Cmd) error // starts it there, and has it end with this process
}

// Master is the trainer of whose place a crew asks for that of its master.
const Master = -1

func onLoopback(int) Place { return Place{Begin: process.Begin} }

// NewCrew starts a master. Trainers are made after the template. All of them run
// on loopback.
func NewCrew(template Order) (*Crew, error) { return NewCrewAt(onLoopback, template) }

// NewCrewAt is NewCrew for processes each of which runs at a place of its own, by
// the id of the trainer.
func NewCrewAt(place func(trainer int) Place, template Order) (*Crew, error) {
	c := &Crew{Template: template, place: place, trainers: map[int]*Proc{}, events: make(chan event, 4096), going: going{moved: time.Now()}}
	issued.Share()
	c.Books.init()
	c.Template.Role = "trainer"
	m, err := c.start(Order{Role: "master", ID: Master})
	if err != nil {
		return nil, err
	}
	c.Master = m
	for end := time.Now().Add(30 * time.Second); c.Addr == ""; {
		if time.Now().After(end) || c.failure != nil {
			m.Kill()
			return nil, fmt.Errorf("the master did not start: %w\n%s", c.failure, m.Log())
		}
		c.turn(100 * time.Millisecond)
	}
	return c, nil
}

func (c *Crew) start(o Order) (*Proc, error) {
	place := c.place(o.ID)
	o.Host = place.Host
	child, err := process.StartBy[Report](place.Begin, childEnv, o, "GOMAXPROCS=2")
	if err != nil {
		return nil, err
	}
	p := &Proc{Child: child, ID: o.ID, came: c.going.time}
	go func() {
		for r := range child.Reports {
			c.events <- event{p: p, r: r}
		}
		c.events <- event{p: p, ended: true}
	}()
	return p, nil
}

// Spawn starts a trainer, with a relay in front of it or not.
func (c *Crew) Spawn(relayed bool) (*Proc, error) {
	if len(c.trainers) == MaxPeers {
		return nil, fmt.Errorf("more than %d trainers", MaxPeers)
	}
	for c.trainers[c.nextID] != nil {
		c.nextID = (c.nextID + 1) % MaxPeers
	}
	o := c.Template
	o.ID, o.Master = c.nextID, c.Addr
	c.nextID = (c.nextID + 1) % MaxPeers
	var relay *Relay
	var err error
	if relayed {
		if relay, err = NewRelay(c.Addr); err != nil {
			return nil, err
		}
		o.Ports, o.Announce, o.Via = relay.Ports, relay.Ports, relay.Via
	} else {
		listeners := 1
		if o.TellPorts {
			listeners = 3
		}
		// A peer that listens where one was killed as it joined is kept out for a while in its place.
		if o.Ports, err = ports.Free(listeners); err != nil {
			return nil, err
		}
	}
	p, err := c.start(o)
	if err != nil {
		if relay != nil {
			relay.Close()
		}
		return nil, err
	}
	p.Relay = relay
	c.trainers[p.ID] = p
	c.Books.Spawned++
	return p, nil
}

// Begin starts the first trainers, elders, which wait for each other, and
// returns when they have finished a step. A peer that comes later is a newcomer.
func (c *Crew) Begin(elders int) error {
	c.Template.World = elders
	for range elders {
		p, err := c.Spawn(false)
		if err != nil {
			return err
		}
		p.Elder = true
	}
	c.Template.World = 0
	for end := time.Now().Add(time.Minute); c.Books.Steps == 0; {
		if err := c.Run(time.Now().Add(20 * time.Millisecond)); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("the first trainers did not come to a step\n%s", c.Autopsy())
		}
	}
	return nil
}

// Trainers returns the trainers that fit, by id.
func (c *Crew) Trainers(fit func(*Proc) bool) (ps []*Proc) {
	for _, p := range c.trainers {
		if fit(p) {
			ps = append(ps, p)
		}
	}
	slices.SortFunc(ps, func(a, b *Proc) int { return a.ID - b.ID })
	return ps
}

// Well fits trainers to which nothing was done.
func Well(p *Proc) bool { return p.doomed == "" && !p.paused }

// Kill ends a trainer without a word.
func (c *Crew) Kill(p *Proc) {
	c.strike(p, "killed", &c.Books.Deaths)
	p.Kill()
	delete(c.trainers, p.ID)
}

// Doom says that what is now done to a trainer is its end: it has to be gone by
// itself, and the others have to go on without it. Whether it is silent decides
// with whom the time that this takes is counted.
func (c *Crew) Doom(p *Proc, why string, silent bool) {
	book := &c.Books.Deaths
	if silent {
		book = &c.Books.Silences
	}
	c.strike(p, why, book)
}

func (c *Crew) strike(p *Proc, why string, book *Recoveries) {
	if p.doomed == "" && p.joined {
		book.begin(uint64(1)<<p.ID, time.Now())
	}
	if p.doomed == "" {
		p.doomed = why
	}
	c.journal.add(p.ID, "is "+why)
}

// Dismiss has a trainer leave as programs do that are told to end.
func (c *Crew) Dismiss(p *Proc) {
	c.strike(p, "dismissed", &c.Books.Deaths)
	p.Dismiss()
}

// Pause stops a trainer and Resume lets it go on.
func (c *Crew) Pause(p *Proc) {
	c.journal.add(p.ID, "stops")
	p.paused = true
	_ = process.Pause(p.Cmd.Process)
}

// Resume lets a paused trainer go on.
func (c *Crew) Resume(p *Proc) {
	c.journal.add(p.ID, "goes on")
	p.paused = false
	_ = process.Resume(p.Cmd.Process)
}

// Run takes reports in until the time has come or something was violated.
func (c *Crew) Run(until time.Time) error {
	for c.failure == nil {
		left := time.Until(until)
		if left <= 0 {
			break
		}
		c.turn(min(left, 50*time.Millisecond))
	}
	return c.failure
}

// Stalled is how long no trainer has finished a step.
func (c *Crew) Stalled() time.Duration { return time.Since(c.going.moved) }

// Outside returns a trainer that is well and has not finished a step though others have gone on for so
// long since it was started, without the time for which the master has put newcomers off; nil: there
// is none.
func (c *Crew) Outside(d time.Duration) *Proc {
	ps := c.Trainers(func(p *Proc) bool { return Well(p) && !p.holder && c.going.time-p.came > d })
	if len(ps) == 0 {
		return nil
	}
	return ps[0]
}

// Failure is the first violation, nil if there was none.
func (c *Crew) Failure() error { return c.failure }

// turn takes in what is there, waiting for the first report at most so long.
func (c *Crew) turn(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case e := <-c.events:
		c.hear(e)
	case <-timer.C:
		return
	}
	for {
		select {
		case e := <-c.events:
			c.hear(e)
		default:
			return
		}
	}
}

// Fail notes a violation.
func (c *Crew) Fail(format string, a ...any) {
	if c.failure == nil {
		c.failure = fmt.Errorf("%w: %s", ErrViolated, fmt.Sprintf(format, a...))
	}
}

func (c *Crew) hear(e event) {
	p := e.p
	if e.ended {
		c.gone(p)
		return
	}
	if e.r.Event != "aborted" && e.r.Event != "noted" && e.r.Event != "optimized" {
		p.last = e.r
	}
	c.journal.add(p.ID, e.r.line())
	switch e.r.Event {
	case "listening":
		c.Addr = e.r.Addr
	case "joined":
		p.joined, p.Ports = true, e.r.Ports
	case "begin":
		p.began = e.r.At
		if c.OnBegin != nil {
			c.OnBegin(p)
		}
	case "aborted":
		c.Books.ByHand++
	case "noted":
		c.Books.Noted++
		c.Books.Optimizations.member(e.r.Step, e.r.Wait)
	case "optimized":
		c.Books.Optimizations.member(e.r.Step, e.r.Wait)
	case "error":
		if e.r.Wrong {
			c.Books.Wrong++
			c.Fail("peer %d: %s\n%s", p.ID, e.r.Text, p.Log())
		}
	case "closed":
		c.going.close(time.Now(), e.r.Wait)
	case "step":
		c.going.step(time.Now())
		p.holder = true
		if c.OnStep != nil {
			c.OnStep(e.r, time.Duration(e.r.At-p.began))
		}
		if bad := c.Books.step(p, e.r, c.present()); bad != "" {
			c.Books.Wrong++
			c.Fail("%s", bad)
		}
	}
}

// present are the trainers that ought to be in an operation: all that run and
// have nothing done to them, those that are still on their way into the group
// included, as bits.
func (c *Crew) present() (set uint64) {
	for id, p := range c.trainers {
		if Well(p) {
			set |= 1 << id
		}
	}
	return set
}

func (c *Crew) gone(p *Proc) {
	if p.Relay != nil {
		p.Relay.Close()
	}
	if c.trainers[p.ID] == p {
		delete(c.trainers, p.ID)
	}
	c.journal.add(p.ID, "has ended")
	switch {
	case p.doomed != "":
	case p == c.Master:
		c.Fail("the master ended: %s\n%s", p.last.Text, p.Log())
	default:
		c.Books.Dropped++
		c.Fail("honest peer %d (joined %v, last step %d) ended: %s: %s\n%s\nmaster:\n%s",
			p.ID, p.joined, p.last.Step, p.last.Code, p.last.Text, p.Log(), c.Master.Log())
	}
}

// Dissect has a trainer print what it waits for, and end.
func (c *Crew) Dissect(p *Proc) string {
	p.doomed = "autopsy"
	_ = process.Resume(p.Cmd.Process)
	if process.Dump(p.Cmd.Process) != nil {
		p.Kill()
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && c.trainers[p.ID] == p; {
		c.turn(100 * time.Millisecond)
	}
	return fmt.Sprintf("== peer %d (step %d, %s)\n%s\n", p.ID, p.last.Step, p.last.Event, p.Log())
}

// Autopsy has every process print what it waits for, and end.
func (c *Crew) Autopsy() string {
	var b strings.Builder
	trainers := c.Trainers(func(*Proc) bool { return true })
	for _, p := range append(trainers, c.Master) {
		_ = process.Resume(p.Cmd.Process)
		p.doomed = "autopsy"
		if process.Dump(p.Cmd.Process) != nil {
			p.Kill()
		}
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && len(c.trainers) > 0; {
		c.turn(100 * time.Millisecond)
	}
	for _, p := range trainers {
		fmt.Fprintf(&b, "== peer %d (step %d, %s)\n%s\n", p.ID, p.last.Step, p.last.Event, p.Log())
	}
	fmt.Fprintf(&b, "== master\n%s\n", c.Master.Log())
	return b.String()
}

// Close ends all processes.
func (c *Crew) Close() {
	for _, p := range append(c.Trainers(func(*Proc) bool { return true }), c.Master) {
		p.doomed = "over"
		p.Kill()
		if p.Relay != nil {
			p.Relay.Close()
		}
	}
}

func members(set uint64) string {
	var ids []string
	for ; set != 0; set &= set - 1 {
		ids = append(ids, fmt.Sprint(bits.TrailingZeros64(set)))
	}
	return "{" + strings.Join(ids, " ") + "}"
}
