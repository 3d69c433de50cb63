// Command contest measures all-reduces, and other collectives beside Gloo, over the wide-area networks of
// tests/internal/lab, with the defaults of gopccl, in plaintext and in TLS, beside PCCL 1.0.0, PyTorch's
// Gloo and plain TCP that sends as many bytes over one or more connections. All take
// turns in one run; the table says for each how long an operation took (median,
// without the first), what part of the ideal that is (the least that any schedule needs
// at the rates of the network, without delays), and what share of the packets the machine delivered late.
// An operation in which these were too many does not count, and is done again. Linux,
// root. PCCL needs tools/ci/original.sh to have run; PyTorch is installed in a cache
// directory if it is nowhere.
//
//	go run ./tests/wan/contest -profile regional -bytes 16777216,400000
//	go run ./tests/wan/contest -profile lossy -bytes 2097152 -pccl 1,8 -gloo
//	go run ./tests/wan/contest -profile home -bytes 4194304 -tls
//	go run ./tests/wan/contest -profile regional -bytes 16777216 -pattern all -gloo
//	go run ./tests/wan/contest -profile home -bytes 4194304 -small
//	go run ./tests/wan/contest -profile report6 -bytes 4194304 -pccl 1o -gloo -plain ''
//	go run ./tests/wan/contest -write FILE.md -only lossy/
//	go run ./tests/wan/contest -profile intercontinental,lossy -bytes 2097152 -blackout 5s -plain ''
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/tests/internal/lab"
	"github.com/gopccl/gopccl/tests/internal/moves"
)

const orderVariable = "GOPCCL_CONTEST_ORDER"

func main() {
	if text := os.Getenv(orderVariable); text != "" {
		var o order
		err := json.Unmarshal([]byte(text), &o)
		if err == nil {
			err = work(o)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "contest:", err)
			os.Exit(1)
		}
		return
	}
	lab.Precede()
	// A collection would stop the thread that carries the packets, and wait for others
	// that have no precedence.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(1 << 30)
	if err := compete(); err != nil {
		fmt.Fprintln(os.Stderr, "contest:", err)
		os.Exit(1)
	}
}

// contestant is a world of processes that do an operation together.
type contestant struct {
	name string
	side
	turns  []turn
	spent  time.Duration // in all of its operations
	first  time.Duration // in the first of those from which it learns; 0: there was none
	failed error         // who has failed plays no more; not gopccl, with which all ends
	steps  []step        // all of its operations
	small  []time.Duration
}

// turn is an operation that was timed, and what the network did meanwhile.
type turn struct {
	took time.Duration
	lab.Stats
}

// step is an operation, and the plan that it took.
type step struct {
	took      time.Duration
	plan, why string
}

// side is what runs in a contestant's processes.
type side interface {
	// operate does an operation, and returns how long the slowest of the processes took.
	operate(task) (time.Duration, error)
	close()
}

func compete() error {
	names := flag.String("profile", "regional", "profiles, comma separated: "+strings.Join(lab.Names(), ", ")+"; drawn1, drawn2 and so on are drawn from the number; with a slash it is a file")
	sizes := flag.String("bytes", "16777216,400000", "bytes of an operation, comma separated")
	rounds := flag.Int("rounds", 5, "operations of each, the first not counted")
	plain := flag.String("plain", "1,4,16", "connections of plain TCP, comma separated; paced with a p behind the number; empty: it takes no part")
	original := flag.String("pccl", "", "connections of PCCL 1.0.0, comma separated; with an o behind its ring is optimized first; empty: it takes no part")
	patience := flag.Duration("patience", 0, "who has taken so long for operations gets no more turns than two; 0: all get all")
	torch := flag.Bool("gloo", false, "PyTorch's Gloo takes part")
	tls := flag.Bool("tls", false, "gopccl in TLS takes part, too")
	forward := flag.Bool("forward", false, "gopccl that finishes forward takes part, too")
	optimized := flag.Bool("optimized", false, "gopccl whose ring is optimized first takes part, too")
	connections := flag.String("connections", "", "gopccl takes part with so many connections to each neighbour, too, comma separated")
	flow := flag.Float64("flow", 0, "no TCP flow gets more, in Mbit/s; 0: as the profile says")
	written := flag.String("json", "", "write an object for each row that counts to `FILE`, a line each")
	congestion := flag.String("congestion", "cubic", "congestion control of all hosts")
	seed := flag.Uint64("seed", 1, "of the losses")
	write := flag.String("write", "", "play all matches of the series, and write their page as `FILE`.md, with or without .md here, .json and .svg")
	only := flag.String("only", "", "of the series those whose names begin so, such as lossy/cubic")
	blackout := flag.Duration("blackout", 0, "in each operation that counts one pair of peers loses everything for so long; ours are repeated if they fail")
	become := flag.String("become", "", "before a round the network becomes that of another profile with as many hosts: PROFILE@ROUND, comma separated; the first round, which does not count, is 0")
	small := flag.Bool("small", false, "print how long small messages to the master's host took beside the operations")
	steps := flag.Bool("steps", false, "print each operation, with the plan that it took")
	rest := flag.Duration("rest", 0, "all connections rest for so long before each turn")
	pattern := flag.String("pattern", plan.AllReduce.String(), "collectives, comma separated; all: those besides all-reduce, in which PCCL and plain TCP take no part")
	flag.Parse()
	if *rounds < 2 {
		return fmt.Errorf("-rounds %d: the first operation of each does not count, so there have to be two", *rounds)
	}
	patterns, err := patternsOf(*pattern)
	if err != nil {
		return err
	}
	others, err := becomings(*become)
	if err != nil {
		return err
	}
	if len(others) > 0 && (*write != "" || len(numbers(*sizes))*len(patterns) > 1) {
		return errors.New("-become: the network does not become what it was again: name one collective and one size, and no -write")
	}
	g := game{
		patterns: patterns, becomings: others,
		blackout: *blackout, rest: *rest, steps: *steps, small: *small,
		seed: *seed, congestion: *congestion, sizes: numbers(*sizes), rounds: *rounds,
		lineup:      lineup{plain: *plain, original: *original, gloo: *torch, secure: *tls, forward: *forward, optimized: *optimized},
		connections: numbers(*connections), flow: *flow, patience: *patience,
	}
	if *write != "" {
		played, err := g.tour(strings.TrimSuffix(*write, ".md"), *only)
		return errors.Join(err, played.note(*written))
	}
	fmt.Println("| profile | operation | contestant | seconds | of the ideal | packets dropped, lost an operation | operations | late |\n|---|---|---|---|---|---|---|---|")
	var all outcomes
	for _, name := range strings.Split(*names, ",") {
		found, err := g.visit(name)
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	return all.note(*written)
}

// tour plays the series, and writes after every match: a run may be cut off.
func (g game) tour(base, only string) (played outcomes, err error) {
	list, err := readOutcomes(base + ".json")
	if err != nil {
		return nil, err
	}
	for rest := series; len(rest) > 0; {
		var now []match
		now, rest = rest[:together(rest)], rest[together(rest):]
		now = slices.DeleteFunc(slices.Clone(now), func(m match) bool { return !strings.HasPrefix(m.String(), only) })
		if len(now) == 0 {
			continue
		}
		g.congestion, g.lineup, g.chosen = now[0].Congestion, now[0].lineup(), nil
		g.rounds, g.patience, g.least, g.most, g.learn = seriesRounds, seriesPatience, seriesLeast, seriesMost, seriesLearn
		for _, m := range now {
			g.chosen = append(g.chosen, task{m.Bytes, m.Pattern})
		}
		g.found = func(o outcome) error {
			list, played = list.with(o), append(played, o)
			return list.write(base)
		}
		if _, err := g.visit(now[0].Profile); err != nil {
			return played, err
		}
	}
	if played == nil {
		return nil, fmt.Errorf("no match of the series begins with %q", only)
	}
	return played, list.write(base)
}

func (g game) visit(profile string) ([]outcome, error) {
	p, err := lab.Load(profile)
	if err != nil {
		return nil, err
	}
	if g.flow > 0 {
		p.Flow.Rate = g.flow * 1e6
	}
	found, err := g.play(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", profile, err)
	}
	return found, nil
}

func numbers(text string) (ns []int) {
	for _, s := range strings.Split(text, ",") {
		if n, err := strconv.Atoi(s); err == nil && n > 0 {
			ns = append(ns, n)
		}
	}
	return ns
}

// game says who takes part, and in what.
type game struct {
	seed       uint64
	congestion string
	sizes      []int
	rounds     int
	patterns   []string // empty: an all-reduce; nil: all-reduces
	chosen     []task   // instead of sizes and patterns
	lineup
	connections []int         // of gopccl to each neighbour, beside its default
	flow        float64       // Mbit/s of each TCP flow; 0: as the profile says
	patience    time.Duration // who has taken longer in a match gets no more turns than two; 0: nobody has
	least       time.Duration // who has taken less gets more turns; 0: nobody does
	most        time.Duration // after which patience is a half; 0: it stays
	learn       int           // operations of each before those of the match
	blackout    time.Duration
	becomings   []becoming
	rest        time.Duration                // before each turn
	found       func(outcome) error          // told of each match when it is over; nil: nobody is
	enough      func(all []*contestant) bool // ends a match early; nil: nothing does
	small       bool                         // small messages are sent beside the operations
	steps       bool                         // each operation is printed, with its plan
}

// play builds a network, lets all begin, and then takes turns. The last host is
// the master's.
func (g game) play(p *lab.Profile) (found []outcome, err error) {
	l, err := lab.Start(p, g.seed)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	allow(g.congestion)
	for _, h := range l.Hosts {
		if err := h.Sysctl("net.ipv4.tcp_congestion_control", g.congestion); err != nil {
			return nil, fmt.Errorf("congestion control %s: %w", g.congestion, err)
		}
	}
	all, err := g.enter(l, p)
	defer func() {
		for _, c := range all {
			c.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	var small *smalls
	if g.small {
		small, err = newSmalls(l)
		defer small.close()
		if err != nil {
			return nil, fmt.Errorf("small messages: %w", err)
		}
		idle, err := small.during(func() error { time.Sleep(2 * time.Second); return nil })
		if err != nil {
			return nil, fmt.Errorf("small messages: %w", err)
		}
		fmt.Printf("    small messages, idle: %s\n", spread(idle))
	}
	for _, t := range g.tasks() {
		for _, c := range all {
			c.small = nil
			c.turns, c.spent, c.first, c.steps = nil, 0, 0, nil
			err := g.prepare(l, c, t)
			if err != nil && strings.HasPrefix(c.name, nameOurs) {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			if err != nil {
				c.failed = err
			}
		}
		began := time.Now()
		for round := range max(g.rounds+spares, manyRounds) {
			if round > 1 && g.enough != nil && g.enough(all) {
				break
			}
			if err := g.become(l, round); err != nil {
				return nil, err
			}
			for _, c := range all {
				if !g.plays(c, round, time.Since(began)) {
					continue
				}
				time.Sleep(g.rest) // a rest is what is measured; nothing is waited for
				end := g.darken(l, round)
				took, err := small.during(func() error { return c.turn(l, t, round > 0) })
				if round > 0 {
					c.small = append(c.small, took...)
				}
				end()
				if err == nil {
					err = g.endured(c, round)
				}
				if err != nil && (strings.HasPrefix(c.name, nameOurs) || g.blackout > 0) {
					return nil, fmt.Errorf("%s: %w", c.name, err)
				}
				c.failed = err
			}
		}
		o := outcome{match: match{p.Name, g.congestion, t.Bytes, t.Pattern}, On: machine()}
		for _, c := range all {
			e := c.entry(p, len(l.Hosts)-1, t)
			fmt.Print(e.row(fmt.Sprintf(" %s | %v |", p.Name, t)))
			if g.small {
				fmt.Printf("    small messages: %s\n", spread(c.small))
			}
			if g.steps {
				for _, s := range c.steps {
					fmt.Printf("    %.3f s %s %s\n", s.took.Seconds(), s.plan, s.why)
				}
			}
			o.Entries = append(o.Entries, e)
		}
		found = append(found, o)
		if g.found != nil {
			if err := g.found(o); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// prepare has a contestant do operations before the match: gopccl learns from them what
// the network can, and windows grow.
func (g game) prepare(l *lab.Lab, c *contestant, t task) error {
	for done := 0; g.prepares(c, done); done++ {
		if err := c.turn(l, t, false); err != nil {
			return err
		}
		if done == 0 {
			c.first = c.spent
		}
	}
	c.spent = 0
	return nil
}

// prepares says whether a contestant that has done so many has another operation before
// the match. A contestant that learns nothing gets no more after its patience is spent.
func (g game) prepares(c *contestant, done int) bool {
	return c.failed == nil && done < g.learn && (strings.HasPrefix(c.name, nameOurs) || c.spent < g.patience)
}

// spares is how many operations more a contestant gets for those of its operations in
// which the machine was too slow.
const spares = 6

// manyRounds is how many operations a contestant has at most for being fast.
const manyRounds = 12

// plays says whether a contestant has another turn in a match that has taken so long.
func (g game) plays(c *contestant, round int, since time.Duration) bool {
	patience := g.patience
	if g.most > 0 && since > g.most {
		patience /= 2
	}
	tired := g.patience > 0 && c.spent > patience && (c.sound() > 0 || c.spent > 3*patience)
	if c.failed != nil || round > 1 && tired {
		return false
	}
	if g.least > 0 && round < manyRounds && c.spent < g.least {
		return true
	}
	return round < g.rounds || round < g.rounds+spares && c.sound() < g.rounds-1
}

// sound counts the operations in which the machine was fast enough.
func (c *contestant) sound() (n int) {
	for _, t := range c.turns {
		if t.Share() <= lab.MaxLate {
			n++
		}
	}
	return n
}

// tasks are the operations, of each collective in each size.
func (g game) tasks() (list []task) {
	if g.chosen != nil {
		return g.chosen
	}
	if g.patterns == nil {
		g.patterns = []string{""}
	}
	for _, pattern := range g.patterns {
		for i, bytes := range g.sizes {
			if pattern == plan.Barrier.String() {
				if i > 0 {
					continue
				}
				bytes = 0
			}
			list = append(list, task{bytes, pattern})
		}
	}
	return list
}

// patternsOf reads the names of collectives.
func patternsOf(text string) (list []string, err error) {
	if text == "all" {
		return moves.Names(), nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if name == plan.AllReduce.String() {
			name = ""
		} else if _, err := moves.KindOf(name); err != nil {
			return nil, fmt.Errorf("-pattern: %w", err)
		}
		list = append(list, name)
	}
	return list, nil
}

// enter starts all processes.
func (g game) enter(l *lab.Lab, p *lab.Profile) (all []*contestant, err error) {
	if slices.ContainsFunc(g.tasks(), func(t task) bool { return t.Pattern != "" }) {
		g.original, g.plain = "", "" // which have no other collectives
	}
	add := func(name string, s side, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, &contestant{name: name, side: s})
		return nil
	}
	const port = 48148
	o := order{Repeat: g.blackout > 0}
	ours, err := newOurs(l, port, o)
	if err := add(nameOurs, ours, err); err != nil {
		return all, err
	}
	if g.forward {
		o := o
		o.Forward = true
		ours, err := newOurs(l, port+2, o)
		if err := add(nameForward, ours, err); err != nil {
			return all, err
		}
	}
	if g.optimized {
		o := o
		o.Optimize = true
		ours, err := newOurs(l, port-1, o)
		if err := add(nameOptimized, ours, err); err != nil {
			return all, err
		}
	}
	if g.secure {
		o := o
		o.Secure = true
		ours, err := newOurs(l, port+1, o)
		if err := add(nameTLS, ours, err); err != nil {
			return all, err
		}
	}
	for k, n := range g.connections {
		o := o
		o.Connections = n
		ours, err := newOurs(l, port+3+k, o)
		if err := add(fmt.Sprintf("%s with %d", nameOurs, n), ours, err); err != nil {
			return all, err
		}
	}
	for word := range strings.SplitSeq(g.original, ",") {
		if word == "" {
			continue
		}
		number, optimized := strings.CutSuffix(word, "o")
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return all, fmt.Errorf("%q is not a number of connections", word)
		}
		name := fmt.Sprintf("%s, %d", namePCCL, n)
		if optimized {
			name += ", its ring optimized"
		}
		s, err := newOriginal(l, n, optimized)
		if err := add(name, s, err); err != nil {
			return all, err
		}
	}
	if g.gloo {
		s, err := newGloo(l)
		if err := add(nameGloo, s, err); err != nil {
			return all, err
		}
	}
	for k, word := range strings.Split(g.plain, ",") {
		if word == "" {
			continue
		}
		number, paced := strings.CutSuffix(word, "p")
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return all, fmt.Errorf("%q is not a number of connections", word)
		}
		name, rate := fmt.Sprintf("%s, %d", namePlain, n), 0.0
		if paced && slowest(p, len(l.Hosts)-1) == 0 {
			continue // nobody knows at what rate
		}
		if paced {
			name, rate = name+" paced", 0.9*slowest(p, len(l.Hosts)-1)/float64(n)
		}
		s, err := newPlainRing(l, n, 20000+k, rate)
		if err := add(name, s, err); err != nil {
			return all, err
		}
	}
	return all, nil
}

// allow lets namespaces take a congestion control that the kernel has. The list is
// the machine's; one name more on it changes nothing for others.
func allow(congestion string) {
	const list = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
	have, err := os.ReadFile(list)
	if err == nil && !slices.Contains(strings.Fields(string(have)), congestion) {
		_ = os.WriteFile(list, append(have[:len(have)-1], " "+congestion+"\n"...), 0) // Sysctl says so if it is not
	}
}

// turn has a contestant do an operation.
func (c *contestant) turn(l *lab.Lab, t task, count bool) error {
	before := l.Stats()
	took, err := c.operate(t)
	if err != nil {
		return err
	}
	if o, ok := c.side.(*own); ok {
		c.steps = append(c.steps, step{took, o.plan, o.why})
	}
	c.spent += took
	if count {
		c.turns = append(c.turns, turn{took, l.Stats().Since(before)})
	}
	return nil
}

// slowest returns the rate of the slowest uplink of the peers, in bits/s; 0: none is
// limited.
func slowest(p *lab.Profile, world int) (rate float64) {
	for _, h := range p.Hosts[:world] {
		if r := h.Up.Rate; r > 0 && (rate == 0 || r < rate) {
			rate = r
		}
	}
	return rate
}

// entry says what came out: of the operations in which the machine was fast enough, or of
// all if there are none.
func (c *contestant) entry(p *lab.Profile, world int, t task) entry {
	e := entry{Name: c.name, First: c.first.Seconds(), steps: c.steps}
	if c.failed != nil {
		e.Failed = c.failed.Error()
		return e
	}
	turns := slices.DeleteFunc(slices.Clone(c.turns), func(t turn) bool { return t.Share() > lab.MaxLate })
	if len(turns) == 0 {
		turns = c.turns
	}
	e.Times, e.Unsound = c.sound(), len(c.turns)-c.sound()
	var all lab.Stats
	var took []float64
	for _, t := range turns {
		took = append(took, t.took.Seconds())
		all.Delivered += t.Delivered
		all.Lost += t.Lost
		all.Dropped += t.Dropped
		all.Late += t.Late
	}
	n := uint64(len(turns))
	e.Seconds, e.Dropped, e.Lost, e.Late = median(took), all.Dropped/n, all.Lost/n, all.Share()
	switch rate := slowest(p, world); {
	case t.Pattern == "":
		e.Ideal = ideal(p, world, t.Bytes) / e.Seconds
	case rate > 0:
		e.Ideal = t.carried(world) * 8 / rate / e.Seconds
	}
	return e
}

func median(list []float64) float64 {
	slices.Sort(list)
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// carried returns the most bytes that a member of so many has to send or to receive in a
// collective other than all-reduce.
func (t task) carried(world int) (most float64) {
	kind, err := moves.KindOf(t.Pattern)
	if err != nil {
		return 0
	}
	block := func(int) int { return t.Bytes / world }
	if kind == plan.Broadcast || kind == plan.Reduce {
		block = func(int) int { return t.Bytes }
	}
	for me := range world {
		p := plan.For(plan.Job{Kind: kind, N: world, Me: me, Mesh: true})
		most = max(most, float64(p.Sent(block)), float64(p.Received(block)))
	}
	return most
}
