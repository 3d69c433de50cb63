package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/durable"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/quorum"
	"github.com/gopccl/gopccl/internal/sockets"
	"github.com/gopccl/gopccl/platform"
)

const (
	opName = "lead"
	// StateName is the file in the directory of a master.
	StateName = "quorum.state"
	lockName  = "master.lock"
	// tick is the unit of a machine's time.
	tick = 50 * time.Millisecond
	// maxKept bounds what a master can commit, maxFrame what another one can send.
	maxKept  = 8 << 20
	maxFrame = 4 * maxKept
	// yieldTime bounds the wait for another master to take the lead over.
	yieldTime = 500 * time.Millisecond
)

// Options of New.
type Options struct {
	// Masters are the addresses (HOST:PORT) of all, Self is the one of this master.
	Masters []string
	Self    string
	// Former are the masters before a change, nil: they are the same.
	Former []string
	// Listen is the HOST:PORT to listen on; "": the port of Self on all interfaces, or on
	// the loopback interface if Self is there.
	Listen string
	// Serves is the port on which peers find this master, 0: unknown. The others tell them.
	Serves uint16
	// Dir is the directory of its state. It is made if it does not exist.
	Dir      string
	Security guard.Options
	Logger   *slog.Logger // nil: discards
}

// Node is one of several masters. It is an authority for one master at a time.
type Node struct {
	opt     Options
	members quorum.Members
	log     *slog.Logger
	guard   *guard.Guard
	machine *quorum.Machine // its loop's
	lock    *durable.Lock
	ln      net.Listener
	links   map[quorum.ID]*link
	crowd   crowd
	// strangers are those of the crowd that were accepted and have not said a hello.
	strangers *sockets.Crowd
	strange   guard.Complaints

	events chan quorum.Event
	asks   chan chan quorum.Status
	leader atomic.Uint64 // the quorum.ID of the one that leads, 0: unknown
	stop   context.CancelFunc
	over   context.Context // ends with Close, or a failure
	wg     sync.WaitGroup

	mu      sync.Mutex
	reign   *reign // nil: it does not lead
	changed chan struct{}
	asked   map[uint64]chan error
	last    uint64 // number of a question
	failed  error
}

// reign is one time of leading.
type reign struct {
	term  uint32
	kept  []byte
	taken bool       // Lead has returned it
	lost  chan error // has room for one
}

// New reads the state, listens and begins to look for the other masters. Errors:
// *errs.Error with code InvalidConfig, InvalidUsage (a directory or a port that cannot be
// had) or CorruptFile.
func New(o Options) (n *Node, err error) {
	fail := func(code errs.Code, err error, hint string) (*Node, error) {
		return nil, errs.New(code, opName, err).WithHint(hint)
	}
	members, err := quorum.NewMembers(o.Masters, o.Self)
	if err != nil {
		return fail(errs.InvalidConfig, err, "")
	}
	g, err := guard.New(o.Security, secure.Master)
	if err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	const writable = "name a directory that the master may write to"
	if err := durable.MakeDir(o.Dir, 0o700); err != nil {
		return fail(errs.InvalidUsage, err, writable)
	}
	lock, err := durable.TryLock(filepath.Join(o.Dir, lockName))
	if errors.Is(err, durable.ErrTaken) {
		return fail(errs.InvalidUsage, fmt.Errorf("another master has %s", o.Dir), "end it first, or name another directory")
	} else if err != nil {
		return fail(errs.InvalidUsage, err, writable)
	}
	defer func() {
		if err != nil {
			lock.Unlock()
		}
	}()
	durable.Clean(o.Dir, 0, StateName)
	path := filepath.Join(o.Dir, StateName)
	state, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(errs.InvalidUsage, err, writable)
	}
	if state == nil && len(o.Former) > 0 {
		return fail(errs.InvalidUsage, fmt.Errorf("%s is empty, and former masters are named", o.Dir),
			"copy the directory of the master that led last to each of the new ones, before any of them is started")
	}
	machine, err := quorum.New(quorum.Config{Members: members, State: state, Former: o.Former, Rand: rand.IntN})
	if err != nil {
		return fail(errs.CorruptFile, fmt.Errorf("%s: %w", path, err), "docs/operations.md (Three masters) says how to change the masters, and how to replace a lost directory")
	}
	ln, err := platform.Listen(context.Background(), "tcp", listenOn(o))
	if err != nil {
		return fail(errs.InvalidUsage, err, "free the port or choose another address")
	}
	n = &Node{
		opt: o, members: members, log: o.Logger, guard: g, machine: machine, lock: lock, ln: ln,
		links: map[quorum.ID]*link{}, crowd: crowd{of: map[quorum.ID]speaker{}, named: map[quorum.ID]bool{}, all: map[net.Conn]struct{}{}},
		events: make(chan quorum.Event, 64), asks: make(chan chan quorum.Status),
		changed: make(chan struct{}), asked: map[uint64]chan error{},
	}
	var home func(netip.Prefix) bool
	if g != nil {
		home = g.Home
	}
	n.strangers = sockets.NewCrowd(maxStrangers, home)
	n.over, n.stop = context.WithCancel(context.Background())
	n.begin()
	return n, nil
}

// listenOn returns the address that others find the master at.
func listenOn(o Options) string {
	if o.Listen != "" {
		return o.Listen
	}
	host, port, _ := net.SplitHostPort(o.Self)
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.IsLoopback() {
		return o.Self
	}
	return ":" + port
}

// begin starts the goroutines. All end with n.over.
func (n *Node) begin() {
	for _, id := range n.members.IDs() {
		if id == n.members.Self() {
			continue
		}
		l := &link{to: id, addr: n.members.Name(id), queue: make(chan []byte, maxQueue), said: map[slog.Level]time.Time{}, more: map[slog.Level]int{}}
		n.links[id] = l
		n.run(func() { n.dial(l) })
	}
	n.run(n.accept)
	n.run(n.loop)
	n.run(func() {
		n.guard.Watch(n.over, 2*time.Second, func(news *guard.News, err error) {
			if err != nil {
				n.log.Warn("not taken over, and what was there before stays in force: "+err.Error(), "kind", "reload")
				return
			}
			for _, r := range news.Revoked {
				r.End()
			}
		})
	})
	n.run(func() {
		<-n.over.Done()
		n.ln.Close()
		n.crowd.close()
	})
}

func (n *Node) run(f func()) {
	n.wg.Add(1)
	go func() {
		defer n.wg.Done()
		f()
	}()
}

// post gives the machine an event. false: the node has ended.
func (n *Node) post(ev quorum.Event) bool {
	select {
	case n.events <- ev:
		return true
	case <-n.over.Done():
		return false
	}
}

// loop steps the machine and does what it wants.
func (n *Node) loop() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		var effects []quorum.Effect
		select {
		case <-t.C:
			effects = n.machine.Step(quorum.Tick{})
		case ev := <-n.events:
			effects = n.machine.Step(ev)
		case ask := <-n.asks:
			ask <- n.machine.Status()
		case <-n.over.Done():
			return
		}
		n.leader.Store(uint64(n.machine.Leader()))
		for _, e := range effects {
			if err := n.do(e); err != nil {
				n.fail(err)
				return
			}
		}
	}
}

func (n *Node) do(e quorum.Effect) error {
	switch e := e.(type) {
	case quorum.Save:
		if err := durable.Replace(filepath.Join(n.opt.Dir, StateName), e.State, 0o600); err != nil {
			return errs.New(errs.Internal, opName, err).WithHint("free space in " + n.opt.Dir + ", and start the master again")
		}
	case quorum.Send:
		n.links[e.To].send(e.Body)
	case quorum.Leads:
		n.change(&reign{term: e.Term, kept: e.Registry, lost: make(chan error, 1)})
	case quorum.Lost:
		n.lose(errors.New(e.Why))
	case quorum.Committed:
		n.answer(e.Number)
	case quorum.Confirmed:
		n.answer(e.Number)
	case quorum.Failed:
		return errs.New(errs.Internal, opName, e.Err).WithHint("start the master again; if it fails again, move its directory away while the others run")
	}
	return nil
}

// change says who leads to those who wait for it.
func (n *Node) change(r *reign) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reign = r
	close(n.changed)
	n.changed = make(chan struct{})
}

// lose ends a reign, and everything that was asked in it.
func (n *Node) lose(why error) {
	n.mu.Lock()
	r, asked := n.reign, n.asked
	n.asked = map[uint64]chan error{}
	n.mu.Unlock()
	n.change(nil)
	if r != nil {
		r.lost <- notLeading(why)
	}
	for _, ch := range asked {
		ch <- notLeading(why)
	}
}

// fail ends the node: its disk cannot be written, or what it read cannot be.
func (n *Node) fail(err error) {
	n.mu.Lock()
	n.failed = err
	n.mu.Unlock()
	n.log.Error("this master can lead no longer, and does not vote: "+err.Error(), "kind", "masters")
	n.lose(err)
	n.stop()
}

func (n *Node) answer(number uint64) {
	n.mu.Lock()
	ch := n.asked[number]
	delete(n.asked, number)
	n.mu.Unlock()
	if ch != nil {
		ch <- nil
	}
}

func notLeading(why error) error {
	var known *errs.Error
	if errors.As(why, &known) {
		return why
	}
	return errs.New(errs.NotLeading, opName, why)
}

// Lead implements core.Authority. It returns each reign once.
func (n *Node) Lead(ctx context.Context) (term uint32, kept []byte, lost <-chan error, err error) {
	for {
		n.mu.Lock()
		r, changed, failed := n.reign, n.changed, n.failed
		if failed == nil && r != nil && !r.taken {
			r.taken = true
			n.mu.Unlock()
			return r.term, r.kept, r.lost, nil
		}
		n.mu.Unlock()
		if failed != nil {
			return 0, nil, nil, failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, nil, nil, ctx.Err()
		case <-n.over.Done():
			return 0, nil, nil, n.closed()
		}
	}
}

func (n *Node) closed() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failed != nil {
		return n.failed
	}
	return errs.New(errs.Closed, opName, errors.New("the master was closed"))
}

// Confirm implements core.Authority.
func (n *Node) Confirm(ctx context.Context) error {
	return n.ask(ctx, func(number uint64, term uint32) quorum.Event { return quorum.Confirm{Number: number, Term: term} })
}

// Commit implements core.Authority.
func (n *Node) Commit(ctx context.Context, kept []byte) error {
	if len(kept) > maxKept {
		return errs.New(errs.InvalidUsage, opName, fmt.Errorf("%d bytes are too many for masters to agree on; at most %d", len(kept), maxKept))
	}
	return n.ask(ctx, func(number uint64, term uint32) quorum.Event {
		return quorum.Commit{Number: number, Term: term, Registry: kept}
	})
}

// ask waits for an answer of the machine, or for the end of the reign.
func (n *Node) ask(ctx context.Context, event func(number uint64, term uint32) quorum.Event) error {
	answer := make(chan error, 1)
	n.mu.Lock()
	if n.reign == nil || !n.reign.taken {
		n.mu.Unlock()
		return notLeading(errors.New("this master has not taken the lead, or has lost it"))
	}
	n.last++
	number, term := n.last, n.reign.term
	n.asked[number] = answer
	n.mu.Unlock()
	n.post(event(number, term))
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		n.answer(number)
		return ctx.Err()
	case <-n.over.Done():
		return n.closed()
	}
}

// Resign implements core.Authority: another master that is up takes the lead over. It
// waits a little for that.
func (n *Node) Resign() error {
	n.mu.Lock()
	r, changed := n.reign, n.changed
	n.mu.Unlock()
	if r == nil || !r.taken || !n.post(quorum.Yield{}) {
		return nil
	}
	t := time.NewTimer(yieldTime)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-n.over.Done():
	}
	return nil
}

// Close gives the lead up and ends the node. It waits for its goroutines.
func (n *Node) Close() error {
	n.Resign()
	n.stop()
	n.wg.Wait()
	return n.lock.Unlock()
}

// Addr is where it listens for other masters.
func (n *Node) Addr() net.Addr { return n.ln.Addr() }

// Leader returns where peers find the master that leads; the zero AddrPort: it is unknown, or
// this one leads.
func (n *Node) Leader() netip.AddrPort {
	if l := n.links[quorum.ID(n.leader.Load())]; l != nil {
		if at := l.serves.Load(); at != nil {
			return *at
		}
	}
	return netip.AddrPort{}
}

// Describe returns a line for each master: who leads, and how far the others are. Only
// the leader knows the latter.
func (n *Node) Describe() []string {
	ask := make(chan quorum.Status, 1)
	select {
	case n.asks <- ask:
	case <-n.over.Done():
		return []string{"masters: this one has ended"}
	}
	s := <-ask
	lines := []string{fmt.Sprintf("masters: term %d, entry %d", s.Term, s.Applied)}
	for i, id := range n.members.IDs() {
		line := "master " + n.members.Name(id)
		if id == n.members.Self() {
			line += ", this one"
		}
		switch {
		case id == s.Leader:
			line += ", leads"
		case s.Behind == nil:
		case s.Behind[i] == math.MaxUint64:
			line += ", does not answer"
		case s.Behind[i] > 0:
			line += fmt.Sprintf(", %d entries behind", s.Behind[i])
		default:
			line += ", up to date"
		}
		lines = append(lines, line)
	}
	if s.Leader == 0 {
		lines = append(lines, "masters: nobody leads")
	}
	return lines
}
