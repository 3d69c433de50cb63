package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/tests/internal/netns"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// peer is a process in a host of its own.
type peer struct {
	*pccl.Process
	host int
}

// world is a network whose links are those of a matrix, our master in a host
// behind them, and peers.
type world struct {
	matrix topo.Matrix
	o      options
	net    *netns.Network
	master *core.Master
	ended  chan error
	peers  []*peer
	place  []int // hosts of the peers to come, nil: each has one of its own

	mu    sync.Mutex
	facts []fact
}

type fact struct {
	at   time.Time
	kind string
	text string
}

// newWorld makes a host for every peer of the matrix; total is what the first
// hosts send in all, to any of them, in place of the matrix.
func newWorld(m topo.Matrix, o options, total ...netns.Rate) (*world, error) {
	n, err := netns.New(m.N + 1)
	if err != nil {
		return nil, err
	}
	w := &world{matrix: m, o: o, net: n, ended: make(chan error, 1)}
	for i := range m.N {
		to := map[int]netns.Rate{}
		for j := range m.N {
			if v, ok := m.At(i, j); ok {
				to[j] = netns.Rate(v * 1e6)
			}
		}
		shape := netns.Shape{To: to}
		if i < len(total) {
			shape = netns.Shape{Total: total[i]}
		}
		if err := n.Hosts[i].Shape(shape); err != nil {
			n.Close()
			return nil, err
		}
	}
	err = n.Hosts[m.N].Do(func() (err error) {
		w.master, err = core.NewMaster(core.MasterOptions{
			Listen: netip.AddrPortFrom(n.Hosts[m.N].Addr, 48148).String(), OnFact: w.note, SearchBudget: -1,
		})
		return err
	})
	if err != nil {
		n.Close()
		return nil, err
	}
	go func() { w.ended <- w.master.Run(context.Background()) }()
	return w, nil
}

func (w *world) note(f core.Fact) {
	w.mu.Lock()
	w.facts = append(w.facts, fact{time.Now(), f.Kind, f.Text})
	w.mu.Unlock()
	if w.o.verbose {
		fmt.Fprintf(os.Stderr, "%s %s: %s\n", time.Now().Format("15:04:05.000"), f.Kind, f.Text)
	}
}

// last returns the last fact of a kind that contains text.
func (w *world) last(kind, text string) (fact, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range slices.Backward(w.facts) {
		if f.kind == kind && strings.Contains(f.text, text) {
			return f, true
		}
	}
	return fact{}, false
}

func (w *world) count(kind string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.facts {
		if f.kind == kind {
			n++
		}
	}
	return n
}

// skew is what the master said about the starts of the probes of one round.
func (w *world) skew() string {
	f, ok := w.last("probes", "within ")
	if !ok {
		return "-"
	}
	_, text, _ := strings.Cut(f.text, "within ")
	text, _, _ = strings.Cut(text, " ")
	return text
}

func (w *world) close() error {
	var failed []error
	for _, p := range w.peers {
		p.Close()
	}
	failed = append(failed, w.master.Close(), <-w.ended)
	w.net.Close()
	return errors.Join(failed...)
}

// start starts a peer of the kind in the next host.
func (w *world) start(kind string) (*peer, error) {
	host := len(w.peers)
	if w.place != nil {
		host = w.place[host]
	}
	var cmd *exec.Cmd
	switch kind {
	case "gopccl":
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cmd = exec.Command(self, peerArg)
	case "original":
		dir, ok := pccl.Find()
		if !ok {
			return nil, errors.New("the original PCCL is not set up (tools/ci/original.sh)")
		}
		d, err := pccl.Open(dir)
		if err != nil {
			return nil, err
		}
		cmd = d.Command()
	default:
		return nil, fmt.Errorf("there are no %q peers: want gopccl or original", kind)
	}
	p, err := &peer{host: host}, error(nil)
	if p.Process, err = pccl.StartBy(w.net.Hosts[host].Start, fmt.Sprintf("%s peer %d", kind, host), cmd, callLimit); err != nil {
		return nil, err
	}
	w.peers = append(w.peers, p)
	at := w.master.Addr()
	return p, p.Comm(at.Addr().String(), int(at.Port()), 0, 1)
}

// grow lets peers join one after another until there are n.
func (w *world) grow(ctx context.Context, kind string, n int) error {
	for len(w.peers) < n {
		members := slices.Clone(w.peers)
		p, err := w.start(kind)
		if err != nil {
			return err
		}
		if err := w.admit(ctx, members, p); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) admit(ctx context.Context, members []*peer, p *peer) error {
	connected := make(chan error, 1)
	go func() { connected <- p.Connect() }()
	if len(members) == 0 {
		return <-connected
	}
	for {
		yes := make([]bool, len(members))
		err := together(members, func(i int, m *peer) (err error) {
			yes[i], err = m.Pending()
			return err
		})
		if err != nil {
			return err
		}
		if yes[0] {
			break
		}
		select {
		case err := <-connected:
			return fmt.Errorf("connected without the members: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
	}
	if err := together(members, func(_ int, m *peer) error { return m.Update() }); err != nil {
		return err
	}
	return <-connected
}

func (w *world) all(ctx context.Context, f func(p *peer) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return together(w.peers, func(_ int, p *peer) error { return f(p) })
}

func together(peers []*peer, f func(i int, p *peer) error) error {
	failed := make([]error, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() { failed[i] = f(i, p) })
	}
	wg.Wait()
	return errors.Join(failed...)
}

// reduce times all-reduces: the median of the rounds, each as long as it took
// the slowest peer.
func (w *world) reduce(ctx context.Context, o options) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	slowest := make([]time.Duration, o.rounds)
	var mu sync.Mutex
	err := together(w.peers, func(_ int, p *peer) error {
		t, err := p.Bench(pccl.BenchOrder{Count: o.bytes / 4, Warmup: 1, Rounds: o.rounds})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for k, d := range t.Rounds {
			slowest[k] = max(slowest[k], d)
		}
		return nil
	})
	return median(slowest), err
}

// hosts names the peers of the master's ring by their hosts.
func (w *world) hosts() (map[core.UUID]int, []int) {
	s := w.master.Status()
	at := map[core.UUID]int{}
	for _, c := range s.Clients {
		at[c.UUID] = int(c.Remote.Addr().As4()[3]) - 1
	}
	var ring []int
	for _, g := range s.Groups {
		for _, u := range g.Ring {
			ring = append(ring, at[u])
		}
	}
	return at, ring
}

// slowest returns the slowest link of the ring in force by the matrix.
func (w *world) slowest() (float64, error) {
	_, ring := w.hosts()
	b, _, ok := w.matrix.Value(ring)
	if !ok {
		return 0, fmt.Errorf("the ring is %v", ring)
	}
	return b, nil
}

// errorOfLinks is the median relative error of what was measured, over the
// links that are at most twice as fast as the best ring's slowest one: those
// are the ones that decide.
func (w *world) errorOfLinks() float64 {
	at, _ := w.hosts()
	var off []float64
	for _, t := range w.master.Topology() {
		for i, a := range t.Peers {
			for j, b := range t.Peers {
				truth, ok := w.matrix.At(at[a.UUID], at[b.UUID])
				if !ok || truth > 2*w.o.mbps {
					continue
				}
				off = append(off, math.Abs(t.Mbps[i*len(t.Peers)+j]/truth-1))
			}
		}
	}
	return median(off)
}
