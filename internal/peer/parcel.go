package peer

import (
	"context"
	"errors"
	"sync"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
)

// parcel is host memory for a message that lies on a device, and the copies between
// them (device.Staging). All of what is sent is there before the message is offered, and
// what is received goes to the device when all of it has come: nothing is written there
// of a message that fails.
type parcel struct {
	op    string
	size  int
	sends bool
	stage device.Staging
	once  sync.Once
	ready chan struct{} // closed when the host's memory may be used
	over  chan struct{} // closed when no copy is under way
	err   error         // of the device; set before over is closed
}

// pack makes the host memory of a message and waits until it can be used: until what was
// queued on the buffer's stream is done and, of what is sent, all has come. The end of ctx,
// or of the session, ends the wait.
func (s *Session) pack(ctx context.Context, op string, b device.Buffer, sends bool) (*parcel, error) {
	platform, err := device.Lookup(b.Platform)
	if err != nil {
		return nil, err
	}
	p := &parcel{op: op, size: b.Bytes, sends: sends, ready: make(chan struct{}), over: make(chan struct{})}
	task := device.Task{Call: op, Target: b}
	var all []device.Range
	if sends {
		task.Source, task.Target = b, device.Buffer{}
		all = []device.Range{{From: 0, To: b.Bytes}}
	}
	if p.stage, err = platform.Stage(task); err != nil {
		return nil, err
	}
	if err := p.call(func() { p.stage.Begin(all, p) }); err != nil {
		p.stage.Release()
		return nil, err
	}
	select {
	case <-p.ready:
		return p, nil
	case <-p.over:
		select {
		case <-p.ready: // both are closed: the choice above was chance
			return p, nil
		default:
		}
		err = p.err
	case <-ctx.Done():
		err = errs.New(errs.Canceled, op, ctx.Err()).WithPhase("waiting for the device")
	case <-s.ctx.Done():
		err = closed()
	}
	p.close()
	if err == nil {
		err = errs.New(errs.Internal, op, errors.New("the device's platform has stopped"))
	}
	return nil, err
}

// call calls the platform; a panic is its error.
func (p *parcel) call(f func()) (err error) {
	defer errs.Catch(p.op, func(e *errs.Error) { err = e })
	f()
	return nil
}

// Arrived implements device.Events.
func (p *parcel) Arrived(n int) {
	if !p.sends || n == p.size {
		p.once.Do(func() { close(p.ready) })
	}
}

// Ended implements device.Events.
func (p *parcel) Ended(err error) {
	p.err = err
	close(p.over)
}

// memory is the host's memory of the message.
func (p *parcel) memory() []byte {
	src, dst := p.stage.Memory()
	if p.sends {
		return src
	}
	return dst
}

// deliver copies what has come to the device, and gives the memory back.
func (p *parcel) deliver() error {
	if err := p.call(func() { p.stage.Put(0, p.size) }); err != nil {
		p.close()
		return err
	}
	<-p.over
	p.stage.Release()
	return p.err
}

// close gives the memory back. Nothing is written to the device.
func (p *parcel) close() {
	select {
	case <-p.over:
	default:
		if p.call(p.stage.Stop) != nil {
			return // the platform cannot be trusted with its memory any more
		}
		<-p.over
	}
	p.stage.Release()
}
