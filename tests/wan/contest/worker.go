package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/platform"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
	_ "github.com/gopccl/gopccl/solvers/defaults"
	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/moves"
)

// order is what a process in a host is told.
type order struct {
	Role        string // "master", "gopccl", "plain", "echo" or "small"
	Listen      string // of the master, or of a plain peer
	Master      string
	Next        string // whom a plain peer sends to
	World       int
	Connections int    // of gopccl to each neighbour; 0: its default
	Pace        uint64 // of each connection, bytes/s; 0: none
	Secure      bool   // gopccl in TLS
	Forward     bool   // gopccl finishes forward
	Optimize    bool   // gopccl optimizes its ring before the first operation
	Repeat      bool   // operations that fail are repeated, instead of ending the process
}

// task is an operation: an all-reduce, or the collective of that name.
type task struct {
	Bytes   int
	Pattern string
}

// report is a line that a process says.
type report struct {
	Ready bool
	Took  time.Duration
	Err   string
	// Retries counts the operations that failed and were repeated.
	Retries int
	// Plan is what the last operation took, and Why.
	Plan, Why string
	// Small says how long messages took.
	Small []time.Duration
}

// job is an operation that is about to begin, and what compares its result.
type job struct{ op, check func() error }

// work does what is ordered until the input ends: a task has it get ready, and the value
// after its answer has it begin, so that all processes begin together however long each
// of them fills its buffers.
func work(o order) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	say := func(r report) { _ = json.NewEncoder(os.Stdout).Encode(r) }
	var prepare func(task) (job, error)
	info := core.ReduceInfo{}
	switch o.Role {
	case "echo":
		return echo(o.Listen)
	case "small":
		return sendSmalls(o.Next)
	case "master":
		opt := core.MasterOptions{Listen: o.Listen}
		issued.Master(&opt.Security)
		m, err := core.NewMaster(opt)
		if err != nil {
			return err
		}
		defer m.Close()
		go func() { _ = m.Run(ctx) }()
	case "gopccl":
		c, err := join(ctx, o)
		if err != nil {
			return err
		}
		defer c.Close()
		buffers := member{Communicator: c, world: o.World}
		prepare = func(t task) (job, error) {
			if t.Pattern != "" {
				return buffers.collect(ctx, t)
			}
			v := values(t.Bytes)
			return job{func() (err error) {
				info, err = allReduce(ctx, c, o, v)
				return err
			}, func() error { return right(v, o.World) }}, nil
		}
	case "plain":
		p, err := newPlain(o)
		if err != nil {
			return err
		}
		defer p.close()
		prepare = func(t task) (job, error) { return job{p.pass(t.Bytes), func() error { return nil }}, nil }
	}
	say(report{Ready: true})
	for in := json.NewDecoder(os.Stdin); ; {
		var t task
		if err := in.Decode(&t); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		j, err := prepare(t)
		if err != nil {
			return err
		}
		say(report{Ready: true})
		if err := in.Decode(new(any)); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		r, began := report{}, time.Now()
		err = j.op()
		r.Took, r.Retries, r.Plan, r.Why = time.Since(began), info.Retries, info.Plan, info.Why
		if err == nil {
			err = j.check()
		}
		if err != nil {
			r.Err = err.Error()
		}
		say(r)
	}
}

// member does collectives besides all-reduce, with the same buffers as long as the task
// is the same.
type member struct {
	*core.Communicator
	world int
	last  task
	*moves.Buffers
}

func (m *member) collect(ctx context.Context, t task) (job, error) {
	if t != m.last {
		b, err := moves.New(t.Pattern, m.world, m.Attributes().Index, t.Bytes)
		if err != nil {
			return job{}, err
		}
		m.Buffers, m.last = b, t
	}
	clear(m.Dst)
	return job{func() (err error) {
		if m.Kind == plan.Barrier {
			return m.Barrier(ctx)
		}
		_, err = m.Collect(ctx, m.Call())
		return err
	}, m.Check}, nil
}

// join connects with the defaults and returns when all peers are there.
func join(ctx context.Context, o order) (*core.Communicator, error) {
	opt := core.Options{Master: o.Master, PoolSize: o.Connections, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	issued.Peer(&opt.Security)
	c, err := core.Connect(ctx, opt)
	if err != nil {
		return nil, err
	}
	if err := c.WaitForPeers(ctx, o.World); err != nil || !o.Optimize {
		return c, err
	}
	return c, c.OptimizeTopology(ctx)
}

// values returns what each member contributes.
func values(bytes int) []float32 {
	v := make([]float32, max(1, bytes/4))
	for i := range v {
		v[i] = float32(i % 1000)
	}
	return v
}

// right compares the sum of what all members contributed.
func right(v []float32, world int) error {
	for i := range v {
		if v[i] != float32(world*(i%1000)) {
			return fmt.Errorf("element %d is %v", i, v[i])
		}
	}
	return nil
}

func allReduce(ctx context.Context, c *core.Communicator, o order, v []float32) (core.ReduceInfo, error) {
	r := core.ReduceOf(v, v, core.Sum)
	r.FinishForward = o.Forward
	if o.Repeat {
		return c.AllReduceMultipleWithRetry(ctx, []core.Reduce{r}, 1)
	}
	return c.AllReduce(ctx, r)
}

// plain is a peer of a ring without dependencies and without reduction: every
// host sends to the next one what a ring all-reduce makes it send, over bare TCP.
type plain struct {
	world   int
	out, in []net.Conn
}

func newPlain(o order) (*plain, error) {
	p := &plain{world: o.World}
	ln, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	accepted := make(chan error, 1)
	go func() {
		for range o.Connections {
			c, err := ln.Accept()
			if err != nil {
				accepted <- err
				return
			}
			p.in = append(p.in, c)
		}
		accepted <- nil
	}()
	for len(p.out) < o.Connections {
		c, err := dial(o.Next)
		if err != nil {
			return nil, err
		}
		if o.Pace > 0 {
			if ok, err := platform.SetPacing(c, o.Pace); !ok || err != nil {
				return nil, fmt.Errorf("the system does not pace connections: %w", err)
			}
		}
		p.out = append(p.out, c)
	}
	return p, <-accepted
}

// dial waits until the other end listens.
func dial(addr string) (net.Conn, error) {
	end := time.Now().Add(30 * time.Second)
	for {
		c, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err == nil || time.Now().After(end) {
			return c, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// pass returns what sends and receives the bytes of a ring all-reduce, a part on each
// connection.
func (p *plain) pass(bytes int) func() error {
	part := make([]byte, 2*(p.world-1)*bytes/p.world/len(p.out))
	return func() error {
		errs := make(chan error, 2*len(p.out))
		var wg sync.WaitGroup
		for i := range p.out {
			wg.Go(func() {
				_, err := p.out[i].Write(part)
				errs <- err
			})
			wg.Go(func() {
				_, err := io.CopyN(io.Discard, p.in[i], int64(len(part)))
				errs <- err
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	}
}

func (p *plain) close() {
	for _, c := range append(p.out, p.in...) {
		c.Close()
	}
}
