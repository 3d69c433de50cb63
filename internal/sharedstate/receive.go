package sharedstate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

const (
	// One request asks for at most this many keys and key bytes: the answer
	// repeats the keys, and a holder that dies costs one request.
	batchKeys  = 4096
	batchBytes = 1 << 20
	// maxResponse bounds the length field of an answer: the keys of a batch
	// with 16 bytes each, with room to spare.
	maxResponse = 4 << 20
	// readAhead is the buffer that gathers small tensors into one read.
	readAhead = 64 << 10
	// progressStep is how many bytes of a tensor pass between two calls of Progress.
	progressStep = 4 << 20
)

// errNotOpen: the holder answered that it is not distributing.
var errNotOpen = errors.New("the holder is not distributing")

// from gets what is missing from one holder. nil means that every item is
// done; otherwise the error says what went wrong last.
func (f *fetch) from(ctx context.Context, addr netip.AddrPort) error {
	var missing []*item
	for _, it := range f.items {
		if !it.done {
			missing = append(missing, it)
		}
	}
	var wrong error
	for asked := false; !asked || len(missing) > 0; asked = true {
		var batch []*item
		size := 0
		for len(missing) > 0 && len(batch) < batchKeys && (len(batch) == 0 || size+len(missing[0].want.Key) <= batchBytes) {
			size += len(missing[0].want.Key)
			batch = append(batch, missing[0])
			missing = missing[1:]
		}
		err := f.batch(ctx, addr, batch)
		for try := 1; errors.Is(err, errNotOpen) && try < notOpenTries; try++ {
			if perr := f.pauseAt(ctx, notOpenPause); perr != nil {
				return perr
			}
			err = f.batch(ctx, addr, batch)
		}
		if errors.Is(err, errs.HashMismatch) {
			// The holder works, its other tensors may be right.
			wrong = err
			continue
		}
		if err != nil {
			return err
		}
	}
	return wrong
}

// batch runs one request on a connection of its own.
func (f *fetch) batch(ctx context.Context, addr netip.AddrPort, items []*item) (err error) {
	defer func() {
		if platform.Classify(err) == platform.ClassTimeout {
			err = errs.New(errs.Timeout, opFetch, err).WithPhase("transfer")
		}
	}()
	dctx, cancel := context.WithTimeout(ctx, f.cfg.DialTimeout)
	conn, err := f.cfg.Dial(dctx, addr)
	cancel()
	if err != nil {
		return err
	}
	conn = transport.Quiet(conn)
	defer conn.Close() // PCCL never closes; its distributor leaks (quirk Q29)
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	req := wire.C2SRequestSharedState{Keys: make([]string, len(items))}
	for i, it := range items {
		req.Keys[i] = it.want.Key
	}
	if err := conn.SetWriteDeadline(time.Now().Add(f.cfg.StallTimeout)); err != nil {
		return err
	}
	// One write: PCCL closes when a read ends inside the length (quirk Q2).
	if _, err := conn.Write(wire.Append(nil, req)); err != nil {
		return err
	}
	r := bufio.NewReaderSize(&patientReader{conn: conn, stall: f.cfg.StallTimeout}, readAhead)
	p, err := wire.Read(r, wire.S2C, maxResponse)
	if err != nil {
		return err
	}
	if err := f.accept(p, items); err != nil {
		return err
	}
	return f.receive(ctx, r, items)
}

// accept checks a holder's answer against the request.
func (f *fetch) accept(p wire.Packet, items []*item) error {
	violation := func(format string, args ...any) error {
		return errs.New(errs.Protocol, opFetch, fmt.Errorf(format, args...)).WithPhase("answer")
	}
	rsp, ok := p.(wire.S2CSharedStateResponse)
	switch {
	case !ok:
		return violation("unexpected %T", p)
	case rsp.Status == wire.StateNotDistributed || rsp.Status == wire.StateNotServing:
		return errNotOpen
	case rsp.Status == wire.StateUnknownKey:
		return violation("the holder lacks one of the %d keys", len(items))
	case rsp.Status != wire.StateSuccess:
		return violation("status %d", rsp.Status)
	case len(rsp.Entries) != len(items):
		return violation("%d entries for %d keys", len(rsp.Entries), len(items))
	case f.haveRev && rsp.Revision != f.res.Revision:
		return violation("revision %d, another holder has %d", rsp.Revision, f.res.Revision)
	}
	for i, e := range rsp.Entries {
		if e.Key != items[i].want.Key {
			return violation("entry %d is %q instead of %q", i, e.Key, items[i].want.Key)
		}
		if e.Size != uint64(items[i].bytes()) {
			return violation("tensor %q has %d bytes there and %d here", e.Key, e.Size, items[i].bytes())
		}
	}
	f.res.Revision, f.haveRev = rsp.Revision, true
	return nil
}

// receive reads the content of items in order. Each one is hashed while the
// next arrives.
func (f *fetch) receive(ctx context.Context, r io.Reader, items []*item) error {
	verify := make(chan *item, len(items))
	verdict := make(chan error, 1)
	go func() {
		var wrong error
		defer func() { verdict <- wrong }()
		defer errs.Catch("sync shared state", func(err *errs.Error) { wrong = err })
		for it := range verify {
			err := f.verify(ctx, it)
			it.done, it.wrong = err == nil, err != nil
			if err != nil {
				wrong = err
			}
		}
	}()
	start := f.done
	var err error
	for _, it := range items {
		if err = f.receiveOne(ctx, r, it); err != nil {
			break
		}
		verify <- it
	}
	close(verify)
	wrong := <-verdict
	f.done = start
	for _, it := range items {
		if it.done {
			f.done += uint64(it.bytes())
		}
	}
	if err != nil {
		return err
	}
	return wrong
}

// receiveOne reads the content of one tensor.
func (f *fetch) receiveOne(ctx context.Context, r io.Reader, it *item) error {
	key, size := it.want.Key, it.bytes()
	into, err := it.open(ctx)
	if err != nil {
		return named(err, key)
	}
	reported := 0
	for have := 0; have < size; {
		room, err := into.Room()
		if err != nil {
			into.Close()
			return named(err, key)
		}
		n, err := r.Read(room)
		if n > 0 {
			it.torn = true
			have += n
			f.done += uint64(n)
			f.res.RxBytes += uint64(n)
			if cerr := into.Commit(n); cerr != nil {
				into.Close()
				return named(cerr, key)
			}
			if have-reported >= progressStep && have < size {
				f.cfg.Progress(f.done, f.total, key)
				reported = have
			}
		}
		if err != nil && have < size {
			into.Close()
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("tensor %q, byte %d of %d: %w", key, have, size, err)
		}
	}
	if err := into.Close(); err != nil {
		return named(err, key)
	}
	f.cfg.Progress(f.done, f.total, key)
	return nil
}

// open returns where the bytes go as they arrive.
func (it *item) open(ctx context.Context) (device.Sink, error) {
	if it.dev.None() {
		return &hostSink{left: it.data}, nil
	}
	p, err := device.Lookup(it.dev.Platform)
	if err != nil {
		return nil, err
	}
	return p.Write(ctx, it.dev)
}

// hostSink is the caller's memory.
type hostSink struct{ left []byte }

// Room returns all that is left.
func (h *hostSink) Room() ([]byte, error) { return h.left, nil }

// Commit moves on by n bytes.
func (h *hostSink) Commit(n int) error {
	h.left = h.left[n:]
	return nil
}

// Close has nothing to wait for.
func (h *hostSink) Close() error { return nil }

// verify compares the content of a tensor with the elected hash. The end of
// ctx ends it, as it ends the fetch.
func (f *fetch) verify(ctx context.Context, it *item) error {
	if it.free {
		return nil
	}
	var got uint64
	switch onDevice := !it.dev.None(); {
	case it.want.HashType == wire.HashSimple && onDevice:
		var err error
		if got, err = it.simpleHash(ctx, it.want.Key); err != nil {
			return err
		}
	case it.want.HashType == wire.HashSimple:
		sum, err := digest.SimpleHashParallel(ctx, it.data, f.cfg.Hasher, f.cfg.Workers)
		if err != nil {
			return err
		}
		got = uint64(sum)
	case it.want.HashType == wire.HashCRC32 && onDevice:
		var err error
		if got, err = it.crc32c(ctx, it.want.Key); err != nil {
			return err
		}
	case it.want.HashType == wire.HashCRC32:
		sum, err := digest.CRC32CParallel(ctx, it.data, f.cfg.Hasher, f.cfg.Workers)
		if err != nil {
			return err
		}
		got = uint64(sum)
	default:
		return errs.New(errs.HashMismatch, opFetch, fmt.Errorf("tensor %q: hash type %d is not served here", it.want.Key, it.want.HashType)).
			WithPhase("verify")
	}
	if got != it.want.Hash {
		return errs.New(errs.HashMismatch, opFetch,
			fmt.Errorf("tensor %q has hash %08x, elected is %08x", it.want.Key, got, it.want.Hash)).WithPhase("verify")
	}
	return nil
}

// patientReader reads from a connection that may not be silent for longer
// than stall.
type patientReader struct {
	conn  net.Conn
	stall time.Duration
}

// Read sets the deadline for each call: what counts is progress.
func (p *patientReader) Read(b []byte) (int, error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(p.stall)); err != nil {
		return 0, err
	}
	return p.conn.Read(b)
}
