// Package device is the extension point for memory of accelerators: what a
// caller says about it, what the engine asks of the platform that serves it,
// and the registry of platforms.
//
// The engine computes and sends from host memory. A platform lets one
// operation see device memory as host memory (Staging), and hands a tensor of
// a shared state out and takes it in, piece by piece (Source, Sink). All that a
// platform does is ordered behind what the caller has queued on the buffer's
// stream before the call, and complete when the call's result is there.
package device

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/registry"
)

// CUDA is the name of the platform that serves CUDA devices.
const CUDA = "cuda"

// Any is the Device of a Buffer whose device the platform is to find out.
const Any = -1

// Buffer is memory of a device, or none (the zero value). Nothing here owns
// it; it must stay allocated as long as host memory would have to stay alive.
type Buffer struct {
	// Platform that serves the memory, such as CUDA; "": no device memory.
	Platform string
	// Ptr is the address, Bytes the size. Elements are little-endian.
	Ptr   uint64
	Bytes int
	// Device is the ordinal of the device, or Any.
	Device int
	// Stream is the caller's stream (a CUstream): the buffer is touched when
	// what was queued there before the call is complete. 0 is the legacy
	// default stream. It must stay valid until the call, or the operation, ended.
	Stream uint64
}

// None reports whether b names no device memory.
func (b Buffer) None() bool { return b.Platform == "" }

// String names the memory for errors.
func (b Buffer) String() string {
	if b.None() {
		return "no device memory"
	}
	where := fmt.Sprintf("%s device %d", b.Platform, b.Device)
	if b.Device == Any {
		where = b.Platform
	}
	return fmt.Sprintf("%d bytes at %#x of %s", b.Bytes, b.Ptr, where)
}

// Range is the bytes From..To of an operation's memory.
type Range struct{ From, To int }

// Task describes one operation to the platform. In an all-reduce Source and Target
// have the same size, which is not 0; they are the same memory (in place) or do not
// overlap.
type Task struct {
	Source, Target Buffer
	DType          dtype.Type
	Op             dtype.Op
	// Quantizer encodes what is sent as Wire; nil: it travels as it is.
	Quantizer quant.Quantizer
	Wire      dtype.Type
	// Call names an operation other than an all-reduce, for errors. All is computed in
	// the host's memory then: DType, Op and Quantizer have no meaning. Source and Target
	// have sizes of their own, either may be none, and they may overlap.
	Call string
	// Preserve, with Call: Restore brings all back that Put has overwritten, and not
	// only what is part of the source, too.
	Preserve bool
}

// Events is what a Staging tells the operation, from goroutines of its own.
// The methods must return soon.
type Events interface {
	// Arrived: the first n bytes of the ranges that Begin got are in the source's
	// host memory, or their wire form is in Encoded's. n only rises. If there are no
	// ranges it is called with 0.
	Arrived(n int)
	// Ended is called exactly once after Begin, last of all: no memory of the
	// operation is being touched any more. err says that the device failed; if
	// it is nil, every byte of the target is on the device, or Stop was called.
	Ended(err error)
}

// Staging is host memory in which one operation runs, and the copies between
// it and the device.
type Staging interface {
	// Memory returns source and target in host memory, each of its own size,
	// from the first call of Arrived until Release. In an all-reduce they are one and
	// the same if nothing has to be restored; of a task with a Call they never share
	// memory. It does not wait.
	Memory() (source, target []byte)
	// Begin starts to copy the source in, range after range, and lets targets
	// out as they are put; it has ended when all of both is done. ranges are disjoint.
	// Called at most once. A panic says that it has begun nothing.
	Begin(ranges []Range, e Events)
	// Describe asks for the quantizer's parameters of the source's bytes from..to, so
	// that these can be sent as they arrive. Called at most once, before Begin, for a
	// task that has a quantizer. It does not wait; false: the platform does not
	// compute them, or not yet.
	Describe(from, to int) bool
	// Params returns them, from the first call of Arrived on. They are those that the
	// quantizer computes, bit for bit.
	Params() quant.Meta
	// Encoded returns host memory with their wire form, nil if the platform leaves
	// that to the host. It has what the quantizer's Quantize writes under Params, bit
	// for bit, of as much of the described bytes as has arrived; the source's host
	// memory does not have those then. From the first call of Arrived until Release.
	// It does not wait.
	Encoded() []byte
	// Reduces reports whether received data is to be reduced by Reduce, and not
	// in the host's memory. Begin then gets the ranges that are sent alone, unless
	// the operation is in place.
	Reduces() bool
	// Reduce makes the bytes from..to of the target source op received, divided
	// by world if that is not 0, and waits until they are in the host's memory.
	// It is called by several goroutines, after the first call of Arrived.
	Reduce(from, to int, received []byte, world int) error
	// Put says that the bytes from..to of the target are final. Each byte is
	// put once. It does not wait.
	Put(from, to int)
	// Decodes reports whether PutEncoded may take the place of Put. Called at most
	// once, before Begin, for a task that has a quantizer. It does not wait; false:
	// the platform does not decode what the quantizer writes, or not yet.
	Decodes() bool
	// PutEncoded is Put for bytes that are not in the host's memory: the device has
	// to make them of q, their wire form under m, and to divide them by world if that
	// is not 0. They are those that the quantizer's Dequantize sets, bit for bit. q
	// must not change until Ended.
	PutEncoded(from, to int, q []byte, m *quant.Meta, world int)
	// Stop: nothing more is to be copied. It does not wait; Ended follows. Called
	// at most once, after Begin has returned, and not after Ended, though that may
	// come meanwhile.
	Stop()
	// Restore writes the original bytes back to where Put has overwritten them
	// in place, or all of them with Task.Preserve. Called after Ended, before Release.
	Restore() error
	// Release gives everything back: after Ended, or instead of Begin, and when no
	// other call is under way.
	Release()
}

// Source reads a buffer from front to back. Not safe for concurrent use.
type Source interface {
	// Next returns the next bytes, valid until the following call; io.EOF
	// behind the last.
	Next() ([]byte, error)
	// Close gives everything back. It waits for copies under way.
	Close()
}

// Sink writes a buffer from front to back. Not safe for concurrent use.
type Sink interface {
	// Room returns host memory for the next bytes, at least one unless the
	// buffer is full.
	Room() ([]byte, error)
	// Commit says that the first n bytes of what Room returned last are there.
	Commit(n int) error
	// Close waits until all that was committed is on the device.
	Close() error
}

// Platform serves the memory of one kind of device. Safe for concurrent use.
// Errors are *errs.Error: InvalidArgument for buffers that are not what they
// are said to be, DeviceFailed for what the device's driver refused.
type Platform interface {
	// Identify tells whether ptr is an address of this platform's devices, and
	// of which. It is cheap where there is no device.
	Identify(ptr uint64) (device int, ok bool)
	// Check finds b and returns it with its device.
	Check(b Buffer) (Buffer, error)
	// HashAll returns the SimpleHash of each buffer (hashing spec, section 1). An
	// error is about bufs[failed], or about all if none is to blame. The end of ctx
	// ends the wait for the buffers' streams, with Canceled.
	HashAll(ctx context.Context, bufs []Buffer) (sums []uint32, failed int, err error)
	// Stage prepares an operation, and notes how far the streams of its
	// buffers are.
	Stage(t Task) (Staging, error)
	// Read and Write open b when its stream has come to where it is at the call.
	// The end of ctx ends the wait for that, with Canceled, and nothing else.
	Read(ctx context.Context, b Buffer) (Source, error)
	Write(ctx context.Context, b Buffer) (Sink, error)
	// Configure changes settings of the process; they hold for what begins later.
	Configure(s Settings) error
}

// Settings of a platform. Zero values leave a setting as it is.
type Settings struct {
	// Staging bounds the pinned host memory in bytes, idle memory included.
	// Beyond it operations continue in ordinary memory, which is slower. Until it
	// is set it is for the platform to choose.
	Staging int64
	// Reduce says where received data is reduced: "host", "device", or "auto",
	// whichever was faster when it was tried.
	Reduce string
	// Logger receives what happens once or never: fallbacks, choices, losses.
	Logger *slog.Logger
}

var platforms = registry.New[Platform]("device platform")

// Register makes p serve the buffers that name it. It panics on an empty or
// registered name, since that is a programmer's error at start-up.
func Register(name string, p Platform) { platforms.Register(name, p) }

// Replace is Register for a name that may be taken; back undoes it. It is for
// programs and tests that bring a driver of their own.
func Replace(name string, p Platform) (back func()) { return platforms.Replace(name, p) }

// Names returns the registered names in alphabetical order.
func Names() []string { return platforms.Names() }

// Lookup returns the platform called name. The error, *errs.Error with code
// InvalidArgument, says what is missing.
func Lookup(name string) (Platform, error) {
	if p, ok := platforms.Lookup(name); ok {
		return p, nil
	}
	err := errs.New(errs.InvalidArgument, "find device platform", fmt.Errorf("nothing serves %q memory in this program", name))
	if name == CUDA {
		return nil, err.WithHint("import backends/cuda, build it without the tag nocuda, or copy the tensor to the host")
	}
	return nil, err.WithHint("import the platform's package")
}

// Configure gives s to every registered platform. It opens no driver.
func Configure(s Settings) error {
	for _, name := range Names() {
		p, err := Lookup(name)
		if err == nil {
			err = p.Configure(s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Identify returns the n bytes at ptr as a buffer if a registered platform
// knows the address as memory of one of its devices. The caller sets Stream.
func Identify(ptr uint64, n int) (Buffer, bool) {
	for _, name := range Names() {
		p, err := Lookup(name)
		if err != nil {
			continue
		}
		if d, ok := p.Identify(ptr); ok {
			return Buffer{Platform: name, Ptr: ptr, Bytes: n, Device: d}, true
		}
	}
	return Buffer{}, false
}
