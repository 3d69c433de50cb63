package cuda

import (
	"context"
	"errors"
	"io"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// slots is how many pieces a tensor passes through; the next ones are copied
// while one is on the wire.
const slots = 4

const opSync = "sync shared state"

// flow is a buffer that passes through a ring of pinned slots on a stream of
// its own.
type flow struct {
	p      *Platform
	d      *dev
	b      device.Buffer
	stream driver.Stream
	slot   [slots]area
	event  [slots]driver.Event
	count  int // of slots
	at     int // byte of the buffer up to which copies are queued
	queued int // copies
}

// flow opens b when what is queued on its stream is done.
func (p *Platform) flow(ctx context.Context, b device.Buffer) (*flow, error) {
	d, b, err := p.find(opSync, b)
	if err != nil {
		return nil, err
	}
	if err := d.behind(ctx, opSync, b.Stream); err != nil {
		return nil, p.fault(opSync, d, b, err)
	}
	f := &flow{p: p, d: d, b: b}
	err = d.do(func() (err error) {
		if f.stream, err = d.stream(); err != nil {
			return err
		}
		size := min(b.Bytes, p.pieces)
		for ; f.count < slots && f.count*size < b.Bytes; f.count++ {
			if f.event[f.count], err = d.event(); err != nil {
				return err
			}
			f.slot[f.count] = p.pinned.get(size)
		}
		return nil
	})
	if err != nil {
		f.close()
		return nil, p.fault(opSync, d, b, err)
	}
	return f, nil
}

// close waits for copies under way and gives everything back.
func (f *flow) close() error {
	var err error
	if f.stream != 0 && f.d.gone() == nil {
		err = f.d.do(func() error { return f.d.await(f.stream) })
	}
	f.d.keep([]driver.Stream{f.stream}, f.event[:])
	for _, a := range f.slot {
		f.p.pinned.put(a)
	}
	f.stream, f.slot, f.event, f.count = 0, [slots]area{}, [slots]driver.Event{}, 0
	return f.p.fault(opSync, f.d, f.b, err)
}

// queue copies the next piece through its slot and marks the end of that.
func (f *flow) queue(n int, toHost bool) error {
	i := f.queued % f.count
	at, host := driver.Ptr(f.b.Ptr)+driver.Ptr(f.at), f.slot[i].bytes[:n]
	var err error
	if toHost {
		err = f.p.driver.CopyToHost(host, at, f.stream)
	} else {
		err = f.p.driver.CopyToDevice(at, host, f.stream)
	}
	if err != nil {
		return err
	}
	f.at += n
	f.queued++
	return f.p.driver.EventRecord(f.event[i], f.stream)
}

// source implements device.Source.
type source struct {
	*flow
	taken int // pieces that were handed out
	given int // bytes of them
}

// Read implements device.Platform.
func (p *Platform) Read(ctx context.Context, b device.Buffer) (device.Source, error) {
	if b.Bytes == 0 {
		return &source{}, nil
	}
	f, err := p.flow(ctx, b)
	if err != nil {
		return nil, err
	}
	return &source{flow: f}, nil
}

// Next implements device.Source.
func (s *source) Next() ([]byte, error) {
	if s.flow == nil || s.given == s.b.Bytes {
		return nil, io.EOF
	}
	if s.count == 0 {
		return nil, errors.New("the source was closed")
	}
	size := len(s.slot[0].bytes)
	err := s.d.do(func() error {
		// The slot handed out last is free again.
		for s.at < s.b.Bytes && s.queued-s.taken < s.count {
			if err := s.queue(min(size, s.b.Bytes-s.at), true); err != nil {
				return err
			}
		}
		return s.p.driver.EventSynchronize(s.event[s.taken%s.count])
	})
	if err != nil {
		return nil, s.p.fault(opSync, s.d, s.b, err)
	}
	n := min(size, s.b.Bytes-s.given)
	host := s.slot[s.taken%s.count].bytes[:n]
	s.taken++
	s.given += n
	return host, nil
}

// Close implements device.Source.
func (s *source) Close() {
	if s.flow != nil {
		_ = s.close() // what was read has been checked
	}
}

// sink implements device.Sink.
type sink struct {
	*flow
	have int // bytes committed in the current slot
	free bool
}

// Write implements device.Platform.
func (p *Platform) Write(ctx context.Context, b device.Buffer) (device.Sink, error) {
	if b.Bytes == 0 {
		return &sink{}, nil
	}
	f, err := p.flow(ctx, b)
	if err != nil {
		return nil, err
	}
	return &sink{flow: f}, nil
}

// Room implements device.Sink.
func (s *sink) Room() ([]byte, error) {
	if s.flow == nil || s.at+s.have == s.b.Bytes {
		return nil, nil
	}
	if s.count == 0 {
		return nil, errors.New("the sink was closed")
	}
	i := s.queued % s.count
	if !s.free && s.queued >= s.count {
		if err := s.d.do(func() error { return s.p.driver.EventSynchronize(s.event[i]) }); err != nil {
			return nil, s.p.fault(opSync, s.d, s.b, err)
		}
	}
	s.free = true
	all := s.slot[i].bytes
	return all[s.have:min(len(all), s.b.Bytes-s.at)], nil
}

// Commit implements device.Sink.
func (s *sink) Commit(n int) error {
	if s.flow == nil || n == 0 {
		return nil
	}
	s.have += n
	if s.have < len(s.slot[0].bytes) && s.at+s.have < s.b.Bytes {
		return nil
	}
	n, s.have, s.free = s.have, 0, false
	return s.p.fault(opSync, s.d, s.b, s.d.do(func() error { return s.queue(n, false) }))
}

// Close implements device.Sink.
func (s *sink) Close() error {
	if s.flow == nil {
		return nil
	}
	var err error
	if s.have > 0 {
		n := s.have
		s.have = 0
		err = s.p.fault(opSync, s.d, s.b, s.d.do(func() error { return s.queue(n, false) }))
	}
	if cerr := s.close(); err == nil {
		err = cerr
	}
	return err
}
