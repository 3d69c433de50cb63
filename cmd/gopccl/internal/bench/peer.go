// Package bench is the body of `gopccl bench`: worlds of peer processes on this
// machine, with the master in the process that measures.
package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
)

// Order tells a peer process what to measure. It is the first line on its
// standard input, in JSON; the end of the input makes the process leave.
type Order struct {
	Index int // of the process, 0 to World-1
	World int
	Peer  PeerConfig
	// Credential is one in PEM, for a world in TLS; it is on no disk.
	Credential []byte `json:",omitempty"`

	AllReduce []Reduction // one job each, in this order
	Exchange  []Exchange
	Sync      []Transfer // at most one: the keys of a run's state are fixed, sizes included
}

// PeerConfig is what the processes need of core.Options.
type PeerConfig struct {
	PoolSize   int
	FrameBytes int
	EagerBytes int
	Backend    string
	Congestion string
	Threads    string
	Affinity   string
	Hasher     string
}

// Report is what one process measured in one job, a line of JSON.
type Report struct {
	Job     int
	Seconds []float64     // per timed round
	CPU     time.Duration // processor time of the process in the timed rounds
	Tx, Rx  uint64        // payload bytes of this peer in one round
	Hash    uint64        // of the result of the warm-up round
	Error   string        `json:",omitempty"`
}

// Peer is the body of a peer process: it joins the run of master, does what
// its order says together with the others, and reports.
func Peer(ctx context.Context, master string, in io.Reader, out io.Writer) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("bench peer: no order: %w", err)
	}
	var o Order
	if err := json.Unmarshal(line, &o); err != nil {
		return fmt.Errorf("bench peer: order: %w", err)
	}
	go func() {
		io.Copy(io.Discard, lines)
		leave() // the measuring process is gone
	}()

	var security core.SecurityOptions
	if len(o.Credential) > 0 {
		if security.Credential, err = secure.ParseCredential(o.Credential); err != nil {
			return err
		}
	}
	comm, err := core.Connect(ctx, core.Options{
		Master: master, Security: security, ListenHost: "127.0.0.1", PortBase: -1,
		PoolSize: o.Peer.PoolSize, FrameBytes: o.Peer.FrameBytes, EagerBytes: o.Peer.EagerBytes,
		Backend: o.Peer.Backend, Congestion: o.Peer.Congestion, Threads: o.Peer.Threads, Affinity: o.Peer.Affinity,
		Hash: core.HashSettings{Hasher: o.Peer.Hasher},
	})
	if err != nil {
		return err
	}
	defer comm.Close()
	if err := gather(ctx, comm, o.World); err != nil {
		return err
	}
	reports := json.NewEncoder(out)
	job := 0
	report := func(r Report, err error) error {
		r.Job = job
		job++
		if err != nil {
			r.Error = err.Error()
		}
		return errors.Join(err, reports.Encode(r))
	}
	for _, job := range o.AllReduce {
		if err := report(job.run(ctx, comm, o.Index)); err != nil {
			return err
		}
	}
	for _, job := range o.Exchange {
		if err := report(job.run(ctx, comm)); err != nil {
			return err
		}
	}
	for _, job := range o.Sync {
		if err := report(job.run(ctx, comm, o.Index)); err != nil {
			return err
		}
	}
	// Leave together: the first to leave would abort what the last one still does.
	return barrier(ctx, comm)
}

// gather lets peers in until the world is complete. Every round ends for all
// members alike, so all see the same size and stop together.
func gather(ctx context.Context, comm *core.Communicator, world int) error {
	pause := time.NewTicker(2 * time.Millisecond)
	defer pause.Stop()
	for comm.Attributes().LocalWorldSize < world {
		if err := comm.UpdateTopology(ctx); err != nil {
			return fmt.Errorf("gather %d peers: %w", world, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
	}
	return nil
}

// barrierTag is above those of the measured operations.
const barrierTag = 1 << 32

// barrier returns when all peers called it.
func barrier(ctx context.Context, comm *core.Communicator) error {
	r := core.ReduceOf([]uint32{0}, []uint32{1}, core.Sum)
	r.Tag = barrierTag
	_, err := comm.AllReduce(ctx, r)
	return err
}

// clock measures one round of this process.
type clock struct {
	start time.Time
	cpu   time.Duration
}

func startClock() clock { return clock{time.Now(), cpuTime()} }

func (c clock) stop(r *Report) {
	r.Seconds = append(r.Seconds, time.Since(c.start).Seconds())
	r.CPU += cpuTime() - c.cpu
}
