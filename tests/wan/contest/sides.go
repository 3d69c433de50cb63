package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gopccl/gopccl/tests/internal/gloo"
	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/lab"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// proc is a process in a host, which answers a line with a line of JSON.
type proc struct {
	in  io.WriteCloser
	out *json.Decoder
}

// start starts cmd in a host.
func start(l *lab.Lab, host int, cmd *exec.Cmd) (*proc, error) {
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &proc{in, json.NewDecoder(bufio.NewReader(out))}, l.Hosts[host].Start(cmd)
}

// begin starts this program in a host, with an order.
func begin(l *lab.Lab, host int, o order) (*proc, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	command := []string{self}
	if o.Secure {
		command = issued.Command(self)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	return start(l, host, cmd)
}

func (p *proc) hear() (r report, err error) {
	if err = p.out.Decode(&r); err == nil && r.Err != "" {
		err = errors.New(r.Err)
	}
	return r, err
}

// own are processes of this program.
type own struct {
	master *proc // works as long as its input is open; nil: none is needed
	procs  []*proc
	// retries is the most of a process, in the last operation.
	retries int
	// plan is what all of them took in it, and why.
	plan, why string
}

func at(l *lab.Lab, host, port int) string {
	return net.JoinHostPort(l.Hosts[host].Addr.String(), strconv.Itoa(port))
}

// newOurs is gopccl, with so many connections to each neighbour, or with its default (0).
// In TLS each process has a credential of its own. What else o says holds for all peers.
func newOurs(l *lab.Lab, port int, o order) (_ side, err error) {
	world := len(l.Hosts) - 1
	s := &own{}
	if s.master, err = begin(l, world, order{Role: "master", Listen: at(l, world, port), Secure: o.Secure}); err != nil {
		return s, err
	}
	if _, err := s.master.hear(); err != nil {
		return s, err
	}
	o.Role, o.Master, o.World = "gopccl", at(l, world, port), world
	return s, s.begin(l, func(int) order { return o })
}

// newPlainRing is plain TCP on n connections, each paced at so many bits/s; 0: not.
func newPlainRing(l *lab.Lab, n, port int, rate float64) (side, error) {
	world := len(l.Hosts) - 1
	s := &own{}
	return s, s.begin(l, func(i int) order {
		return order{Role: "plain", Listen: at(l, i, port), Next: at(l, (i+1)%world, port), World: world, Connections: n, Pace: uint64(rate / 8)}
	})
}

func (s *own) begin(l *lab.Lab, what func(i int) order) error {
	for i := range len(l.Hosts) - 1 {
		p, err := begin(l, i, what(i))
		if err != nil {
			return err
		}
		s.procs = append(s.procs, p)
	}
	for _, p := range s.procs {
		if _, err := p.hear(); err != nil {
			return err
		}
	}
	return nil
}

func (s *own) operate(t task) (slowest time.Duration, err error) {
	for _, p := range s.procs {
		if err := json.NewEncoder(p.in).Encode(t); err != nil {
			return 0, err
		}
	}
	for _, p := range s.procs {
		if _, err := p.hear(); err != nil {
			return 0, err
		}
	}
	for _, p := range s.procs {
		if _, err := fmt.Fprintln(p.in, "0"); err != nil {
			return 0, err
		}
	}
	s.retries = 0
	reports, errs := make([]report, len(s.procs)), make([]error, len(s.procs))
	for i, p := range s.procs {
		reports[i], errs[i] = p.hear() // of all: most of them only know that another one has failed
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	for i, r := range reports {
		if i > 0 && r.Plan != s.plan {
			return 0, fmt.Errorf("process %d took the plan %q, and those before it %q", i, r.Plan, s.plan)
		}
		s.plan, s.why = r.Plan, r.Why
		slowest = max(slowest, r.Took)
		s.retries = max(s.retries, r.Retries)
	}
	return slowest, nil
}

func (s *own) close() {
	for _, p := range s.procs {
		p.in.Close()
	}
	if s.master != nil {
		s.master.in.Close()
	}
}

// limit bounds every call of the original library. Before it optimizes a ring it measures every way for ten seconds, one at
// a time at each end: for 18 peers that takes some minutes.
const limit = 10 * time.Minute

// original is PCCL 1.0.0.
type original struct{ w *pccl.World }

// newOriginal starts a world with so many connections to each neighbour, and has it
// measure its links and optimize its ring if that is asked for. It fails now and then
// while it forms (quirk Q25 and others).
func newOriginal(l *lab.Lab, connections int, optimize bool) (side, error) {
	dir, ok := pccl.Find()
	if !ok {
		return nil, errors.New("its library is not set up: run tools/ci/original.sh")
	}
	d, err := pccl.Open(dir)
	if err != nil {
		return nil, err
	}
	var places []pccl.Place
	for _, h := range l.Hosts {
		places = append(places, pccl.Place{IP: h.Addr.String(), Begin: h.Start})
	}
	last := len(places) - 1
	s := &original{}
	for range 5 {
		s.w, err = pccl.NewWorldAt(d, places[last], places[:last], connections, limit)
		if err == nil && optimize {
			if err = s.w.Optimize(); err != nil {
				s.w.Close()
			}
		}
		if err == nil {
			return s, nil
		}
	}
	return nil, err
}

func (s *original) operate(t task) (time.Duration, error) {
	r, err := s.w.Bench(pccl.BenchOrder{Count: t.Bytes / 4, Rounds: 1})
	if err != nil {
		return 0, err
	}
	return r.Rounds[0], nil
}

func (s *original) close() { s.w.Close() }

// torch is PyTorch's Gloo.
type torch struct {
	dir   string
	ranks []*proc
}

func newGloo(l *lab.Lab) (side, error) {
	python, err := gloo.Python(context.Background())
	if err != nil {
		return nil, err
	}
	s := &torch{}
	if s.dir, err = os.MkdirTemp("", "gopccl-contest"); err != nil {
		return nil, err
	}
	program := filepath.Join(s.dir, "gloo.py")
	if err := os.WriteFile(program, gloo.Program, 0o600); err != nil {
		return s, err
	}
	world := len(l.Hosts) - 1
	for rank := range world {
		cmd := exec.Command(python, program, strconv.Itoa(rank), strconv.Itoa(world), "tcp://"+at(l, 0, 29500))
		cmd.Env = append(os.Environ(), "GLOO_SOCKET_IFNAME=tun0", "OMP_NUM_THREADS=1")
		p, err := start(l, rank, cmd)
		if err != nil {
			return s, err
		}
		s.ranks = append(s.ranks, p)
	}
	for _, p := range s.ranks {
		var ready string
		if err := p.out.Decode(&ready); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *torch) operate(t task) (time.Duration, error) {
	o := gloo.Order{Bytes: t.Bytes, Rounds: 1, Concurrent: 1, Pattern: t.Pattern, Started: true}
	for _, p := range s.ranks {
		if err := json.NewEncoder(p.in).Encode(o); err != nil {
			return 0, err
		}
	}
	slowest := 0.0
	for _, p := range s.ranks {
		var t gloo.Timing
		if err := p.out.Decode(&t); err != nil {
			return 0, err
		}
		slowest = max(slowest, t.Seconds[0])
	}
	return time.Duration(slowest * float64(time.Second)), nil
}

func (s *torch) close() {
	for _, p := range s.ranks {
		p.in.Close()
	}
	os.RemoveAll(s.dir)
}
