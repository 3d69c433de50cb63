package checkpoint

import (
	"context"
	"fmt"
	"io"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
)

// bytes is the size of the content.
func (t *Tensor) bytes() int64 {
	if !t.Device.None() {
		return int64(t.Device.Bytes)
	}
	return int64(len(t.Data))
}

// named says which tensor a device's error is about.
func (t *Tensor) named(err error) error {
	return errs.New(errs.CodeOf(err), "checkpoint", fmt.Errorf("tensor %q: %w", t.Key, err))
}

// writeTo writes the content to out, in pieces, so that what is hashed was
// just written and is in the cache. Of a tensor on a device it waits for its
// stream, as long as that takes, as readFrom does.
func (t *Tensor) writeTo(out io.Writer) error {
	if t.Device.None() {
		for rest := t.Data; len(rest) > 0; {
			n := min(len(rest), 1<<20)
			if _, err := out.Write(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		return nil
	}
	if t.Device.Bytes == 0 {
		return nil
	}
	p, err := device.Lookup(t.Device.Platform)
	if err != nil {
		return t.named(err)
	}
	from, err := p.Read(context.Background(), t.Device)
	if err != nil {
		return t.named(err)
	}
	defer from.Close()
	wrote := 0
	for {
		b, err := from.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return t.named(err)
		}
		if _, err := out.Write(b); err != nil {
			return err
		}
		wrote += len(b)
	}
	if wrote != t.Device.Bytes {
		return t.named(errs.New(errs.DeviceFailed, "read", fmt.Errorf("%d of %d bytes came", wrote, t.Device.Bytes)))
	}
	return nil
}

// readFrom fills the content from in, which has as many bytes.
func (t *Tensor) readFrom(in io.Reader) error {
	if t.Device.None() {
		_, err := io.ReadFull(in, t.Data)
		return err
	}
	if t.Device.Bytes == 0 {
		return nil
	}
	p, err := device.Lookup(t.Device.Platform)
	if err != nil {
		return t.named(err)
	}
	into, err := p.Write(context.Background(), t.Device)
	if err != nil {
		return t.named(err)
	}
	for left := t.Device.Bytes; left > 0; {
		room, err := into.Room()
		if err == nil {
			room = room[:min(len(room), left)]
			_, err = io.ReadFull(in, room)
		}
		if err == nil {
			err = into.Commit(len(room))
		}
		if err != nil {
			into.Close()
			return t.named(err)
		}
		left -= len(room)
	}
	if err := into.Close(); err != nil {
		return t.named(err)
	}
	return nil
}
