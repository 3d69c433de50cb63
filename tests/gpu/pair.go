package main

import (
	"context"
	"errors"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/internal/cuda"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// pair is the peers of a group in this process, and a trainer's memory on the
// device for them.
type pair struct {
	ctx      context.Context
	owner    *owner
	platform *cuda.Platform
	comms    [world]*core.Communicator
	restore  func() // the platform that was there before
	stop     func() // the master
}

// newPair connects the peers, whose platform is one of its own on d.
func newPair(j *job, d driver.Driver, s device.Settings) (p *pair, err error) {
	p = &pair{ctx: j.ctx, platform: cuda.On(d, s)}
	p.restore = device.Replace(device.CUDA, p.platform)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	addr, stop, err := runMaster(j.ctx)
	if err != nil {
		return p, err
	}
	p.stop = stop
	mine, err := newOwner(d, j.device)
	if err != nil {
		return p, err
	}
	p.owner = mine
	return p, p.each(func(i int) (err error) {
		p.comms[i], err = join(p.ctx, addr)
		return err
	})
}

// each calls f for all peers at once.
func (p *pair) each(f func(i int) error) (err error) {
	ends := make(chan error, world)
	for i := range world {
		go func() { ends <- f(i) }()
	}
	for range world {
		err = errors.Join(err, <-ends)
	}
	return err
}

// close gives everything back that is the pair's.
func (p *pair) close() (err error) {
	for _, c := range p.comms {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	if p.stop != nil {
		p.stop()
	}
	p.restore()
	err = errors.Join(err, p.platform.Close())
	if p.owner != nil {
		err = errors.Join(err, p.owner.release())
	}
	return err
}
