package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core"
)

// World is a master and peer processes on this machine.
type World struct {
	Size int
	Peer PeerConfig
	// Secure has every connection in TLS, with credentials that are made for this world.
	Secure bool
	// Command returns the command of a peer process, which calls Peer.
	Command func(master string) *exec.Cmd
	// Limit bounds the life of the world.
	Limit time.Duration
}

// run starts master and peers, gives each peer the order, and hands the reports
// of all peers on job by job, ordered by process.
func (w World) run(ctx context.Context, order Order, done func(job int, reports []Report) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, w.Limit)
	defer cancel()
	opt := core.MasterOptions{Listen: "127.0.0.1:0", Solver: "none"}
	var made *credentials
	if w.Secure {
		if made, err = newCredentials(); err != nil {
			return err
		}
		if opt.Security.Credential, err = made.master(); err != nil {
			return err
		}
	}
	m, err := core.NewMaster(opt)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer m.Close()
	wg.Go(func() { m.Run(ctx) })

	order.World, order.Peer = w.Size, w.Peer
	peers := make([]*process, w.Size)
	defer func() {
		for _, p := range peers {
			if p != nil {
				err = errors.Join(err, p.end(err != nil))
			}
		}
	}()
	for i := range peers {
		order.Index = i
		if made != nil {
			if order.Credential, err = made.peer(i); err != nil {
				return err
			}
		}
		if peers[i], err = start(w.Command(m.Addr().String()), order); err != nil {
			return fmt.Errorf("start peer process %d: %w", i, err)
		}
	}
	for job := range len(order.AllReduce) + len(order.Exchange) + len(order.Sync) {
		reports := make([]Report, w.Size)
		for i, p := range peers {
			if reports[i], err = p.report(ctx, job); err != nil {
				return fmt.Errorf("world %d, peer process %d: %w", w.Size, i, err)
			}
		}
		if err := done(job, reports); err != nil {
			return err
		}
	}
	return nil
}

// process is one peer process.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stderr  bytes.Buffer
	reports chan Report // closed at the end of the process's output
}

func start(cmd *exec.Cmd, o Order) (*process, error) {
	p := &process{cmd: cmd, reports: make(chan Report, len(o.AllReduce)+len(o.Exchange)+len(o.Sync))}
	cmd.Stderr = &p.stderr
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.reports)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 16<<20) // a report has a time per round
		for lines.Scan() && len(p.reports) < cap(p.reports) {
			var r Report
			if json.Unmarshal(lines.Bytes(), &r) == nil {
				p.reports <- r
			}
		}
	}()
	line, err := json.Marshal(o)
	if err == nil {
		_, err = p.stdin.Write(append(line, '\n'))
	}
	if err != nil {
		return nil, errors.Join(err, p.end(true))
	}
	return p, nil
}

// report waits for the next one, which must be that of the job.
func (p *process) report(ctx context.Context, job int) (Report, error) {
	select {
	case r, ok := <-p.reports:
		switch {
		case !ok:
			return r, errors.New("it ended early")
		case r.Error != "":
			return r, errors.New(r.Error)
		case r.Job != job:
			return r, fmt.Errorf("reported job %d instead of %d", r.Job, job)
		}
		return r, nil
	case <-ctx.Done():
		return Report{}, context.Cause(ctx)
	}
}

// end waits for the process, after killing it if hard. What it wrote to
// standard error becomes part of the error.
func (p *process) end(hard bool) error {
	if hard {
		p.cmd.Process.Kill()
	} else {
		// It leaves by itself after its last job; a stuck one is not waited for.
		timer := time.AfterFunc(10*time.Second, func() { p.cmd.Process.Kill() })
		defer timer.Stop()
	}
	for range p.reports { // all output must be read before Wait
	}
	err := p.cmd.Wait()
	p.stdin.Close()
	text := strings.TrimSpace(p.stderr.String())
	switch {
	case hard && text == "":
		return nil
	case hard:
		return errors.New(text)
	case err != nil:
		return fmt.Errorf("peer process: %w: %s", err, text)
	}
	return nil
}

// timing is what a job took.
type timing struct {
	median, min, max float64
	cpu              time.Duration
	rx, tx           uint64
}

// combine takes each round's slowest peer, the sum of processor time and the
// largest counters.
func combine(reports []Report) timing {
	var t timing
	slowest := slices.Clone(reports[0].Seconds)
	for _, r := range reports {
		for k, s := range r.Seconds {
			if k < len(slowest) {
				slowest[k] = max(slowest[k], s)
			}
		}
		t.cpu += r.CPU
		t.rx, t.tx = max(t.rx, r.Rx), max(t.tx, r.Tx)
	}
	if len(slowest) > 0 {
		t.median, t.min, t.max = median(slowest), slices.Min(slowest), slices.Max(slowest)
	}
	return t
}
