package ptxtest

import (
	"slices"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// capture is a graph that is being recorded. What is queued on its streams
// meanwhile is not done.
type capture struct {
	thread  uint64
	mode    driver.CaptureMode
	spoiled bool
}

// graphs are the captures under way, and how threads treat them.
type graphs struct {
	captures []*capture
	modes    map[uint64]driver.CaptureMode // of each thread, unless it is global
}

// spoil ends a capture with a call that conflicts with it.
func (c *capture) spoil(call string, device int, r driver.Result) error {
	c.spoiled = true
	return failed(call, device, r, "a stream is capturing")
}

// harmless are the calls that end no capture: they change nothing, or queue
// work on a stream, which is recorded if the stream is captured.
var harmless = []string{
	"cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGetName", "cuDeviceGetAttribute",
	"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxGetCurrent",
	"cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing",
	"cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async",
	"cuEventRecord", "cuStreamWaitEvent",
}

// prohibited fails a call that ends a capture, and the capture with it. The
// driver's manual leaves open which calls those are: here all but the harmless.
func (d *Device) prohibited(call string, device int) (err error) {
	if len(d.graphs.captures) == 0 || slices.Contains(harmless, call) {
		return nil
	}
	t := thread()
	mode := d.graphs.modes[t]
	for _, c := range d.graphs.captures {
		own := c.thread == t && c.mode != driver.CaptureRelaxed && mode != driver.CaptureRelaxed
		others := c.thread != t && c.mode == driver.CaptureGlobal && mode == driver.CaptureGlobal
		if own || others {
			err = c.spoil(call, device, driver.CaptureUnsupported)
		}
	}
	return err
}

// ExchangeCaptureMode sets the calling thread's mode.
func (d *Device) ExchangeCaptureMode(m driver.CaptureMode) (driver.CaptureMode, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuThreadExchangeStreamCaptureMode"
	if err := d.enter(call, -1); err != nil {
		return 0, err
	}
	t := thread()
	before := d.graphs.modes[t]
	if d.graphs.modes[t] = m; m == driver.CaptureGlobal {
		delete(d.graphs.modes, t)
	}
	return before, nil
}

// StreamCapturing reports whether a stream is part of a capture.
func (d *Device) StreamCapturing(h driver.Stream) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, s, err := d.on("cuStreamIsCapturing", h)
	return err == nil && s.capture != nil, err
}

// BeginCapture records what is queued on a stream from now on, as
// cuStreamBeginCapture does.
func (d *Device) BeginCapture(h driver.Stream, m driver.CaptureMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuStreamBeginCapture_v2"
	c, s, err := d.on(call, h)
	switch {
	case err != nil:
		return err
	case h == 0 || s.capture != nil:
		return failed(call, c.device, driver.CaptureUnsupported, "the default stream, or one that is captured already")
	}
	s.capture = &capture{thread: thread(), mode: m}
	d.graphs.captures = append(d.graphs.captures, s.capture)
	return nil
}

// EndCapture ends the capture of a stream, and forgets the graph. Streams that
// joined it are free again, which on a device is an error.
func (d *Device) EndCapture(h driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuStreamEndCapture"
	s := d.streams[h]
	if s == nil || s.capture == nil {
		return failed(call, -1, driver.InvalidValue, "the stream is not captured")
	}
	over := s.capture
	d.graphs.captures = slices.DeleteFunc(d.graphs.captures, func(c *capture) bool { return c == over })
	joined := 0
	for _, o := range d.streams {
		if o.capture == over {
			o.capture = nil
			joined++
		}
	}
	switch {
	case over.spoiled:
		return failed(call, s.ctx.device, driver.CaptureInvalidated, "")
	case joined > 1:
		return failed(call, s.ctx.device, driver.CaptureInvalidated, "%d streams were drawn into it", joined-1)
	}
	return nil
}
