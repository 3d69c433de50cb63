package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/process"
	"github.com/gopccl/gopccl/tests/internal/world"
)

const (
	honest = 4 // trainers that stay
	// comeEvery is the time between honest newcomers, stayFor how long they take part.
	comeEvery, stayFor = 4 * time.Second, 2 * time.Second
	// letIn is how long an honest newcomer may wait until it is in the run.
	letIn = 20 * time.Second
	// life bounds a client.
	life = 15 * time.Second
	// warmUp is how long both parties run before anything is counted.
	warmUp = 3 * time.Second
	// calmDown is how long the run may take to forget the clients.
	calmDown = 45 * time.Second
	// hung is after what time without a step the run is given up.
	hung = 45 * time.Second
)

// party is a crew with its guests.
type party struct {
	crew   *world.Crew
	next   time.Time // when the next honest newcomer comes
	guests map[*world.Proc]time.Time
	in     map[*world.Proc]bool
	phase  phase
}

// stage is a run in progress: a party that the clients visit, and a twin that
// they leave alone. What else the machine does slows both.
type stage struct {
	options
	visited, twin *party
	res           *result
	sampled       time.Time
	clothes       *wardrobe

	mu     sync.Mutex
	active map[int]string // clients at work, by number
	uuids  []wire.UUID
}

// phase is what a party has done in one of the three.
type phase struct {
	took  time.Duration
	steps int
	in    int           // honest newcomers that were let in
	wait  time.Duration // the longest that one of them waited
}

func (p phase) rate() float64 { return float64(p.steps) / max(1e-9, p.took.Seconds()) }

// newParty starts a run of its own.
func newParty(o options) (*party, error) {
	crew, err := world.NewCrew(world.Order{Compute: o.compute, Steady: true, SyncEvery: 10, OptimizeEvery: 200, Count: 16 << 10, Pool: 2, TellPorts: true})
	if err != nil {
		return nil, err
	}
	if err := crew.Begin(honest); err != nil {
		crew.Close()
		return nil, err
	}
	return &party{crew: crew, guests: map[*world.Proc]time.Time{}, in: map[*world.Proc]bool{}}, nil
}

func run(ctx context.Context, o options) (*result, error) {
	res := &result{options: o}
	clothes, err := dress(o.as)
	if err != nil {
		return res, err
	}
	defer clothes.close()
	s := &stage{options: o, res: res, active: map[int]string{}, clothes: clothes}
	for _, p := range []**party{&s.visited, &s.twin} {
		if *p, err = newParty(o); err != nil {
			return res, err
		}
		defer (*p).crew.Close()
	}
	s.sample()
	// One party was begun before the other, and its steps wait to be counted.
	for end := time.Now().Add(warmUp); time.Now().Before(end); {
		if err := s.turn(false); err != nil {
			return res, fmt.Errorf("at the beginning: %w", err)
		}
	}
	for i := range res.phases {
		err := s.phase(ctx, i == 1)
		res.phases[i], res.twin[i] = s.visited.phase, s.twin.phase
		res.books = s.visited.crew.Books
		if err != nil {
			return res, fmt.Errorf("%s: %w", [...]string{"before they came", "with them", "after they had gone"}[i], err)
		}
	}
	err = s.end()
	res.books = s.visited.crew.Books
	return res, err
}

// phase lets the run go on, with clients or without.
func (s *stage) phase(ctx context.Context, disturbed bool) (err error) {
	length := s.alone
	var clients sync.WaitGroup
	clientCtx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		clients.Wait()
	}()
	if disturbed {
		length = time.Duration(s.clients) * time.Second / time.Duration(s.rate)
		at := s.visited.targets()
		clients.Go(func() { s.attack(clientCtx, &clients, at) })
	}
	began := time.Now()
	before := [2]int{s.visited.crew.Books.Steps, s.twin.crew.Books.Steps}
	s.visited.phase, s.twin.phase = phase{}, phase{}
	for end := began.Add(length); time.Now().Before(end) && ctx.Err() == nil && err == nil; {
		err = s.turn(disturbed)
	}
	for i, p := range []*party{s.visited, s.twin} {
		p.phase.took, p.phase.steps = time.Since(began), p.crew.Books.Steps-before[i]
	}
	return err
}

// turn hears what was reported and looks whether all is well.
func (s *stage) turn(disturbed bool) error {
	before := s.visited.crew.Books.Steps
	for _, p := range []*party{s.visited, s.twin} {
		if err := p.turn(); err != nil {
			return err
		}
	}
	s.res.second(time.Now(), s.visited.crew.Books.Steps-before, s.busyKinds)
	if time.Since(s.sampled) > 200*time.Millisecond {
		s.sample()
		if disturbed {
			s.learn()
		}
	}
	return nil
}

// turn hears what was reported, and lets honest newcomers come and go.
func (p *party) turn() error {
	if err := p.crew.Run(time.Now().Add(5 * time.Millisecond)); err != nil {
		return err
	}
	now := time.Now()
	for g, since := range p.guests {
		switch {
		case !p.in[g] && g.Joined():
			p.in[g] = true
			p.phase.in++
			p.phase.wait = max(p.phase.wait, now.Sub(since))
			p.guests[g] = now
		case !p.in[g] && now.Sub(since) > letIn:
			p.crew.Fail("an honest newcomer was not let in within %v\n%s\nmaster:\n%s", letIn, g.Log(), p.crew.Master.Log())
		case p.in[g] && now.Sub(since) > stayFor:
			p.crew.Dismiss(g)
			delete(p.guests, g)
			delete(p.in, g)
		}
	}
	if now.After(p.next) {
		p.next = now.Add(comeEvery)
		g, err := p.crew.Spawn(false)
		if err != nil {
			return err
		}
		p.guests[g] = now
	}
	if stalled := p.crew.Stalled(); stalled > hung {
		p.crew.Fail("no step for %v\n%s", stalled.Round(time.Second), p.crew.Autopsy())
	}
	return p.crew.Failure()
}

// end waits until the guests have gone and everything is as it was.
func (s *stage) end() error {
	for _, p := range []*party{s.visited, s.twin} {
		for g := range p.guests {
			p.crew.Dismiss(g)
		}
		clear(p.guests)
		p.next = time.Now().Add(time.Hour)
	}
	for end := time.Now().Add(calmDown); time.Now().Before(end); {
		if err := s.turn(false); err != nil {
			return err
		}
		if time.Until(end) < calmDown-2*time.Second && s.res.settled() {
			return nil
		}
	}
	return nil
}

// sample notes what the master and the honest peers that stay need.
func (s *stage) sample() {
	s.sampled = time.Now()
	crew := s.visited.crew
	for i, p := range append([]*world.Proc{crew.Master}, crew.Trainers(func(p *world.Proc) bool { return p.Elder })...) {
		memory, files, ok := process.Usage(p.Cmd.Process.Pid)
		if !ok {
			continue
		}
		name := "master"
		if i > 0 {
			name = fmt.Sprintf("peer %d", p.ID)
		}
		s.res.note(i, name, memory, files, s.busyKinds)
	}
}

func (s *stage) busyKinds() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.active {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// learn asks the master for the uuids of its peers, as anybody may in a run in plaintext.
// In TLS somebody who may has told the clients.
func (s *stage) learn() {
	conn, err := net.DialTimeout("tcp", s.visited.crew.Addr, time.Second)
	if err != nil {
		return
	}
	defer conn.Close()
	if t := s.clothes.insider; t != nil {
		conn = tls.Client(conn, t.Client(secure.Want{Purpose: secure.Control}))
	}
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write(wire.Append(nil, wire.C2MAskTopology{})); err != nil {
		return
	}
	p, err := wire.Read(conn, wire.M2C, wire.MaxPacket)
	t, ok := p.(wire.M2CTopology)
	if err != nil || !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uuids = s.uuids[:0]
	for _, g := range t.Groups {
		for _, e := range g.Peers {
			s.uuids = append(s.uuids, e.UUID)
		}
	}
}

// targets are the ports of the master and of the trainers that stay.
func (p *party) targets() targets {
	at := targets{master: p.crew.Addr}
	for _, p := range p.crew.Trainers(func(p *world.Proc) bool { return p.Elder }) {
		addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", p.Ports[i]) }
		at.state, at.p2p, at.bench = append(at.state, addr(0)), append(at.p2p, addr(1)), append(at.bench, addr(2))
	}
	return at
}

// attack lets the clients come, one after another at an even rate.
func (s *stage) attack(ctx context.Context, clients *sync.WaitGroup, at targets) {
	many := manyAddresses()
	tick := time.NewTicker(time.Second / time.Duration(s.rate))
	defer tick.Stop()
	var order []int
	for n := range s.clients {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if len(order) == 0 { // all kinds in turn, in any order
			order = rand.New(rand.NewPCG(s.seed, uint64(n))).Perm(len(s.kinds))
		}
		k := s.kinds[order[0]]
		order = order[1:]
		mine := at
		s.mu.Lock()
		mine.uuids = slices.Clone(s.uuids)
		s.active[n] = k.name
		s.mu.Unlock()
		rng := rand.New(&source{pcg: rand.NewPCG(s.seed, 1<<32+uint64(n))})
		c := &client{Rand: rng, targets: mine, life: time.Second + time.Duration(rng.Int64N(int64(life))), heard: &s.res.heard}
		if len(s.as) > 0 {
			c.who = s.clothes.guise(rng)
		}
		if many {
			c.from = net.IPv4(127, 66, byte(rng.IntN(256)), byte(1+rng.IntN(250)))
		}
		clients.Go(func() {
			var end context.CancelFunc
			c.ctx, end = context.WithTimeout(ctx, c.life)
			k.run(c)
			end()
			s.mu.Lock()
			delete(s.active, n)
			s.mu.Unlock()
		})
		s.res.came(k.name)
	}
}

// source is a random source for the goroutines of one client.
type source struct {
	mu  sync.Mutex
	pcg *rand.PCG
}

// Uint64 implements rand.Source.
func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pcg.Uint64()
}

// manyAddresses reports whether this system has all of 127.0.0.0/8.
func manyAddresses() bool {
	ln, err := net.Listen("tcp", "127.66.1.2:0")
	if err != nil {
		return false
	}
	return ln.Close() == nil
}
