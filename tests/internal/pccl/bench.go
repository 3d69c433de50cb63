package pccl

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
)

// BenchResult is what a benchmark of the original library measured.
type BenchResult struct {
	Rounds []time.Duration // of each round, the time of the slowest peer
	CPU    time.Duration   // processor time of all peers over all rounds
	Tx, Rx uint64          // payload bytes of one peer in one round
}

// Bench times rounds of a float32 sum of count elements in a world of original
// peers under an original master on this machine, one process each, after
// warmup rounds that do not count. No call may take longer than limit.
func Bench(d *Driver, world, count, warmup, rounds int, limit time.Duration) (BenchResult, error) {
	w, err := NewWorld(d, world, limit)
	if err != nil {
		return BenchResult{}, err
	}
	defer w.Close()
	return w.Bench(BenchOrder{Count: count, Warmup: warmup, Rounds: rounds})
}

// Place is where a process of a world runs.
type Place struct {
	IP string
	// Begin starts a process there, as cmd.Start does; nil: on this machine.
	Begin func(*exec.Cmd) error
}

func (a Place) start(d *Driver, name string, limit time.Duration) (*Process, error) {
	if a.Begin == nil {
		return Start(name, d.Command(), limit)
	}
	return StartBy(a.Begin, name, d.Command(), limit)
}

// World is an original master and original peers.
type World struct {
	master *Process
	peers  []*Process
}

// NewWorld starts the processes on this machine and lets the peers in. The caller
// must Close it.
func NewWorld(d *Driver, world int, limit time.Duration) (*World, error) {
	return NewWorldAt(d, Place{IP: "127.0.0.1"}, make([]Place, world), 1, limit)
}

// NewWorldAt is NewWorld with a place for every process, and with connections in
// the pool to each neighbour.
func NewWorldAt(d *Driver, master Place, peers []Place, connections int, limit time.Duration) (w *World, err error) {
	w = &World{}
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
	var port int
	if w.master, port, err = d.startMaster(master, limit); err != nil {
		return w, err
	}
	for i, at := range peers {
		p, err := at.start(d, fmt.Sprintf("original peer %d", i), limit)
		if err != nil {
			return w, err
		}
		w.peers = append(w.peers, p)
		if err := errors.Join(p.Comm(master.IP, port, 0, connections), admit(w.peers[:i], p)); err != nil {
			return w, err
		}
	}
	return w, nil
}

// Close ends all processes.
func (w *World) Close() {
	for _, p := range w.peers {
		p.Close()
	}
	if w.master != nil {
		w.master.Close()
	}
}

// PIDs returns the process ids of the peers.
func (w *World) PIDs() (ids []int) {
	for _, p := range w.peers {
		ids = append(ids, p.PID())
	}
	return ids
}

// Optimize has all peers measure their links and optimize the ring.
func (w *World) Optimize() error {
	return together(w.peers, func(_ int, p *Process) error { return p.Optimize() })
}

// Bench times rounds on all peers.
func (w *World) Bench(o BenchOrder) (BenchResult, error) {
	var res BenchResult
	timings := make([]Timing, len(w.peers))
	if err := together(w.peers, func(i int, p *Process) (err error) {
		timings[i], err = p.Bench(o)
		return err
	}); err != nil {
		return res, err
	}
	res.Rounds = make([]time.Duration, o.Rounds)
	for _, t := range timings {
		res.CPU += t.CPU
		for k, took := range t.Rounds {
			res.Rounds[k] = max(res.Rounds[k], took)
		}
	}
	res.Tx, res.Rx = timings[0].Tx, timings[0].Rx
	return res, nil
}

// startMaster starts an original master on a free port below the ephemeral range.
func (d *Driver) startMaster(at Place, limit time.Duration) (*Process, int, error) {
	var err error
	for range 20 {
		var m *Process
		if m, err = at.start(d, "original master", limit); err != nil {
			return nil, 0, err
		}
		port := 20000 + rand.IntN(10000)
		if err = m.Master(at.IP, port); err == nil {
			return m, port, nil
		}
		m.Close()
		if errs.CodeOf(err) != errs.InvalidUsage { // that is: the port is taken
			break
		}
	}
	return nil, 0, err
}

// admit lets the members let p in. All members must take part.
func admit(members []*Process, p *Process) error {
	connected := make(chan error, 1)
	go func() { connected <- p.Connect() }()
	for pending := len(members) == 0; !pending; {
		select {
		case err := <-connected:
			return fmt.Errorf("connected without the members: %w", err)
		default:
		}
		if err := together(members, func(i int, m *Process) error {
			yes, err := m.Pending()
			if i == 0 {
				pending = yes
			}
			return err
		}); err != nil {
			return err
		}
	}
	if err := together(members, func(_ int, m *Process) error { return m.Update() }); err != nil {
		return err
	}
	return <-connected
}

func together(peers []*Process, f func(int, *Process) error) error {
	failed := make([]error, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() { failed[i] = f(i, p) })
	}
	wg.Wait()
	return errors.Join(failed...)
}
