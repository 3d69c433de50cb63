package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// joining lets a peer join a world of 12 that reduces all the time, and says
// how long it took from the last of its measurements to the new ring.
func joining(ctx context.Context, o options) error {
	const n = 12
	_, m, err := load(n)
	if err != nil {
		return err
	}
	if _, m, err = scale(ctx, twin(m), o.mbps); err != nil {
		return err
	}
	w, err := newWorld(m, o)
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.grow(ctx, "gopccl", n); err != nil {
		return err
	}
	optimize := func(p *peer) error { return p.Optimize() }
	if err := w.all(ctx, optimize); err != nil {
		return err
	}
	if _, err := w.reduce(ctx, o); err != nil {
		return err
	}
	before, _ := w.last("probes", "measured")

	members := w.peers
	newcomer, err := w.start("gopccl")
	if err != nil {
		return err
	}
	connected := make(chan error, 1)
	go func() { connected <- newcomer.Connect() }()
	reduced := 0
	for pending := false; !pending; {
		// Every step reduces, and asks whether somebody waits.
		if err := together(members, func(_ int, p *peer) error {
			_, err := p.Bench(pccl.BenchOrder{Count: o.bytes / 4, Rounds: 1})
			return err
		}); err != nil {
			return err
		}
		reduced++
		if err := together(members, func(i int, p *peer) error {
			yes, err := p.Pending()
			if i == 0 {
				pending = yes
			}
			return err
		}); err != nil {
			return err
		}
	}
	if err := together(members, func(_ int, p *peer) error { return p.Update() }); err != nil {
		return err
	}
	if err := <-connected; err != nil {
		return err
	}
	began := time.Now()
	if err := w.all(ctx, optimize); err != nil {
		return err
	}
	took := time.Since(began)
	probed, _ := w.last("probes", "measured")
	ring, ok := w.last("round", "established")
	if !ok || !probed.at.After(before.at) {
		return errors.New("the newcomer's links were not measured")
	}
	if _, err := w.reduce(ctx, o); err != nil {
		return err
	}
	slowest, err := w.slowest()
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", probed.text)
	fmt.Printf("the whole optimization took %.2f s, the ring was installed %.2f s after the last measurement\n",
		took.Seconds(), ring.at.Sub(probed.at).Seconds())
	fmt.Printf("slowest link %.1f Mbit/s; %d all-reduces while the newcomer waited, %d operations aborted\n", slowest, reduced, w.count("abort"))
	if ring.at.Sub(probed.at) > 2*time.Second || w.count("abort") > 0 {
		return errors.New("too late, or not without an abort")
	}
	return nil
}

// twin adds a peer beside peer 0, a little slower everywhere.
func twin(m topo.Matrix) topo.Matrix {
	out := topo.NewMatrix(m.N + 1)
	for i := range m.N {
		for j := range m.N {
			if v, ok := m.At(i, j); ok {
				out.Set(i, j, v)
			}
		}
		if v, ok := m.At(0, i); ok {
			out.Set(m.N, i, 0.9*v)
		}
		if v, ok := m.At(i, 0); ok {
			out.Set(i, m.N, 0.9*v)
		}
	}
	out.Set(0, m.N, 1e4)
	out.Set(m.N, 0, 1e4)
	return out
}
