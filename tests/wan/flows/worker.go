package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
	_ "github.com/gopccl/gopccl/solvers/defaults"
	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/netns"
)

// task is what a process of a world is told.
type task struct {
	Role   string // "master" or "peer"
	Master string
	World  int
	Pool   int
	Flows  int
	Delay  time.Duration
	Window int
	// Own: the peer names its interfaces eth0 and eth1 and dials by itself, so that
	// the network cannot tell flows apart.
	Own bool
	// Secure: the world is in TLS. Each process has a credential of its own.
	Secure bool
}

// report is a line that a process says.
type report struct {
	Addr  string
	Ready bool
	Took  time.Duration
	Err   string
}

// trials is how many connections a peer of two makes before those of its pool.
const trials = 1

// work does the task and returns when the parent closes the input.
func work(t task) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	say := func(r report) { json.NewEncoder(os.Stdout).Encode(r) }
	in := bufio.NewScanner(os.Stdin)
	if t.Role == "master" {
		opt := core.MasterOptions{Listen: t.Master}
		issued.Master(&opt.Security)
		m, err := core.NewMaster(opt)
		if err != nil {
			return err
		}
		defer m.Close()
		go m.Run(ctx)
		say(report{Addr: m.Addr().String()})
		in.Scan()
		return nil
	}
	var next atomic.Int32
	o := core.Options{Master: t.Master, PoolSize: t.Pool, Flows: t.Flows, Congestion: "cubic"}
	o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == t.Master {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
		// Source ports in the order of dialling: flow i of the first pool has
		// the i-th, which is how the network tells flows apart. The first dial is
		// the trial whether the neighbour can be reached, and has the last.
		d := netns.Dialer((int(next.Add(1)) - 1 - trials + netns.Buckets) % netns.Buckets)
		return hop{t.Delay, t.Window}.dial(ctx, d, addr)
	}
	if t.Own {
		o.Dial, o.Addresses = nil, []string{"eth0", "eth1"}
	}
	issued.Peer(&o.Security)
	c, err := core.Connect(ctx, o)
	if err != nil {
		return err
	}
	defer c.Close()
	for c.Attributes().LocalWorldSize < t.World {
		pending, err := c.PeersPending(ctx)
		if err == nil && pending {
			err = c.UpdateTopology(ctx)
		}
		if err != nil {
			return err
		}
	}
	if dialled := int(next.Load()) - trials; !t.Own && dialled != max(t.Pool, 1) {
		return fmt.Errorf("dialled %d connections for a pool of %d: they are not the flows that the network limits", dialled, t.Pool)
	}
	say(report{Ready: true})
	for in.Scan() {
		var count int
		if _, err := fmt.Sscan(in.Text(), &count); err != nil {
			return err
		}
		v := make([]float32, count)
		for i := range v {
			v[i] = float32(i % 1000)
		}
		start := time.Now()
		_, err := c.AllReduce(ctx, core.ReduceOf(v, v, core.Sum))
		r := report{Took: time.Since(start)}
		for i := range v {
			if err == nil && v[i] != float32(t.World*(i%1000)) {
				err = fmt.Errorf("element %d is %v", i, v[i])
			}
		}
		if err != nil {
			r.Err = err.Error()
		}
		say(r)
	}
	return nil
}
