package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

const (
	masterRole = "bench-master"
	peerRole   = "bench-peer"
)

// ours starts a master and peers of command, this program or another build of it.
func ours(command []string) func(ctx context.Context, world int) (session, error) {
	return func(ctx context.Context, world int) (session, error) {
		c := &crew{}
		master, err := startWorker(ctx, command, masterRole)
		if err != nil {
			return nil, err
		}
		c.helpers = append(c.helpers, master)
		var addr string
		if err := master.hear(&addr); err != nil {
			c.close()
			return nil, err
		}
		for range world {
			w, err := startWorker(ctx, command, peerRole, addr, strconv.Itoa(world))
			if err != nil {
				c.close()
				return nil, err
			}
			c.ranks = append(c.ranks, w)
		}
		return c, nil
	}
}

func runMaster(ctx context.Context, _ []string) error {
	opt := core.MasterOptions{Listen: "127.0.0.1:0", Solver: "none"}
	issued.Master(&opt.Security)
	m, err := core.NewMaster(opt)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		serve(orders(os.Stdin), os.Stdout, func(order) (answer, error) { return answer{}, nil }) // until the input ends
		cancel()
	}()
	if err := json.NewEncoder(os.Stdout).Encode(m.Addr().String()); err != nil {
		return err
	}
	return m.Run(ctx)
}

// runPeer is a peer process: the address of the master, the size of the world.
func runPeer(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want MASTER WORLD, got %q", args)
	}
	world, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	in := orders(os.Stdin)
	opt := core.Options{Master: args[0], ListenHost: "127.0.0.1", PortBase: -1}
	issued.Peer(&opt.Security)
	comm, err := core.Connect(ctx, opt)
	if err != nil {
		return err
	}
	defer comm.Close()
	for comm.Attributes().LocalWorldSize < world {
		if err := comm.UpdateTopology(ctx); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond) // others are starting
	}
	p := &peer{comm: comm, world: world}
	return serve(in, os.Stdout, func(o order) (answer, error) { return p.run(ctx, o) })
}

// peer keeps the buffers of its last job.
type peer struct {
	comm  *core.Communicator
	world int
	last  order
	ops   []core.Reduce
	move  *blocks // of other collectives
}

func (p *peer) run(ctx context.Context, o order) (a answer, err error) {
	rounds := o.Rounds
	if o.Rounds = 0; o != p.last {
		if err := p.prepare(ctx, o); err != nil {
			return a, err
		}
	}
	a.Root = p.comm.Attributes().Index == 0
	handles := make([]*core.Handle, len(p.ops))
	meet := core.ReduceOf([]uint32{0}, []uint32{1}, core.Sum)
	meet.Tag = 1 << 32
	for k := range 1 + rounds { // the first one finds its way back into the caches
		if _, err := p.comm.AllReduce(ctx, meet); err != nil {
			return a, err
		}
		cpu, start := cpuTime(), time.Now()
		if err := p.round(ctx, handles); err != nil {
			return a, err
		}
		if k == 0 {
			continue
		}
		a.Seconds = append(a.Seconds, time.Since(start).Seconds())
		a.CPU += (cpuTime() - cpu).Seconds()
	}
	return a, nil
}

func (p *peer) round(ctx context.Context, handles []*core.Handle) (err error) {
	if b := p.move; b != nil {
		if b.Kind == plan.Barrier {
			return p.comm.Barrier(ctx)
		}
		_, err = p.comm.Collect(ctx, b.Call())
		return err
	}
	if len(p.ops) == 1 {
		_, err = p.comm.AllReduce(ctx, p.ops[0])
		return err
	}
	for k, op := range p.ops {
		if handles[k], err = p.comm.AllReduceAsync(ctx, op); err != nil {
			return err
		}
	}
	for _, h := range handles {
		if _, err := h.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes buffers and looks at the result of a first round.
func (p *peer) prepare(ctx context.Context, o order) error {
	p.ops, p.move, p.last = nil, nil, order{}
	if o.Pattern != "" {
		var err error
		if p.move, err = newBlocks(o.Pattern, p.world, p.comm.Attributes().Index, o.Bytes); err != nil {
			return err
		}
		if err := p.round(ctx, nil); err != nil {
			return err
		}
		p.last = o
		return p.move.Check()
	}
	n := o.Bytes / 4
	for k := range max(1, o.Concurrent) {
		src, dst := make([]float32, n), make([]float32, n)
		for i := range src {
			src[i] = float32(i%1000) / 1000
		}
		r := core.ReduceOf(dst, src, core.Sum)
		r.Tag = uint64(k)
		if o.Quantize != "none" {
			r.Quantize = core.Quantize{Algorithm: o.Quantize, Type: dtype.Uint8}
		}
		p.ops = append(p.ops, r)
	}
	handles := make([]*core.Handle, len(p.ops))
	if err := p.round(ctx, handles); err != nil {
		return err
	}
	for _, r := range p.ops {
		dst, src := dtype.View[float32](r.Dst), dtype.View[float32](r.Src)
		for i := 0; i < n; i += max(1, n/1009) {
			want := float64(src[i]) * float64(p.world)
			if off := math.Abs(float64(dst[i]) - want); off > 1e-5*want && (o.Quantize == "none" || off > 0.02*float64(p.world*p.world)) {
				return fmt.Errorf("wrong result: element %d of %d is %v, want %v", i, n, dst[i], want)
			}
		}
	}
	p.last = o
	return nil
}
