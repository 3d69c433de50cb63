// Package sharedstate hands out and fetches the tensors of a shared state
// (control spec, section 9; data spec, section 7).
//
// The holders of the elected state run a Server whose window they open before
// they vote and shut when the synchronisation is complete. An outdated peer
// calls Fetch, which writes the bytes straight into the caller's tensors and
// accepts none whose hash is not the elected one.
package sharedstate

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// Tensor is one entry of a shared state.
type Tensor struct {
	// Key names the tensor within the state; unique.
	Key string
	// Data is the content in host byte order. It stays the caller's. Which side may
	// read or write it when is said at the functions that take a Tensor.
	Data []byte
	// Device is the content if it lies on a device; Data is empty then.
	Device device.Buffer
	// DType is the element type. It is compared between peers, and decides in
	// groups with PCCL peers whether there is any content (quirk Q33).
	DType dtype.Type
	// AllowInequality exempts the content from comparison and hash checks.
	AllowInequality bool
}

// contentless reports whether PCCL 1.0.0 gives entries of type t size 0 and
// hash 0 (quirk Q33).
func contentless(t dtype.Type) bool {
	return t == dtype.Int16 || t == dtype.Float16 || t == dtype.BFloat16
}

// Bytes is the size of the content.
func (t *Tensor) Bytes() int {
	if !t.Device.None() {
		return t.Device.Bytes
	}
	return len(t.Data)
}

// content is what of a tensor takes part in a synchronisation: memory of the
// host, or of a device.
type content struct {
	data []byte
	dev  device.Buffer
}

func (t *Tensor) content(legacy bool) content {
	switch {
	case legacy && contentless(t.DType):
		return content{}
	case t.Device.None() || t.Device.Bytes == 0:
		return content{data: t.Data}
	}
	return content{dev: t.Device}
}

func (c *content) bytes() int {
	if c.dev.None() {
		return len(c.data)
	}
	return c.dev.Bytes
}

// simpleHash is for content on a device; its error names the tensor. The end of
// ctx ends the wait for the tensor's stream.
func (c *content) simpleHash(ctx context.Context, key string) (uint64, error) {
	p, err := device.Lookup(c.dev.Platform)
	if err != nil {
		return 0, named(err, key)
	}
	sums, _, err := p.HashAll(ctx, []device.Buffer{c.dev})
	if err != nil {
		return 0, named(err, key)
	}
	return uint64(sums[0]), nil
}

// crc32c is for content on a device, which is read for it piece by piece.
func (c *content) crc32c(ctx context.Context, key string) (uint64, error) {
	p, err := device.Lookup(c.dev.Platform)
	if err != nil {
		return 0, named(err, key)
	}
	from, err := p.Read(ctx, c.dev)
	if err != nil {
		return 0, named(err, key)
	}
	defer from.Close()
	var sum uint32
	for {
		b, err := from.Next()
		if err == io.EOF {
			return uint64(sum), nil
		}
		if err != nil {
			return 0, named(err, key)
		}
		sum = digest.UpdateCRC32C(sum, b)
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

// named says which tensor a device's error is about.
func named(err error, key string) error {
	if err == nil {
		return nil
	}
	return errs.New(errs.CodeOf(err), opFetch, fmt.Errorf("tensor %q: %w", key, err))
}

// Entries returns what a peer votes with, one entry per tensor in the same
// order. Hashes are SimpleHashes; an entry with AllowInequality is not hashed
// and has hash and hash type 0. The number of elements is always 0 (quirk
// Q20). legacy says that PCCL peers may be in the group: int16, float16 and
// bfloat16 entries then have hash 0, as PCCL has it (quirk Q33). h hashes what
// lies on the host, nil is the built-in hasher; workers bounds the number of
// goroutines that hash at once, 0 means one per core.
// The tensors are read only while Entries runs. Those of a device are hashed
// there; errors are *errs.Error as device.Platform has them, and Canceled if
// ctx ends first.
func Entries(ctx context.Context, ts []Tensor, legacy bool, h digest.Hasher, workers int) ([]wire.StateEntry, error) {
	entries := make([]wire.StateEntry, len(ts))
	bufs := make([][]byte, len(ts))
	for i := range ts {
		t := &ts[i]
		entries[i] = wire.StateEntry{
			Key: t.Key, HashType: wire.HashSimple, DType: t.DType, AllowInequality: t.AllowInequality,
		}
		if !t.AllowInequality {
			bufs[i] = t.content(legacy).data
		}
	}
	// An empty buffer has hash 0 (hashing spec, section 1), which is what the
	// exempted entries need.
	sums, err := digest.SimpleHashAll(ctx, bufs, h, workers)
	if err != nil {
		return nil, errs.New(errs.Canceled, opFetch, err).WithPhase("hash")
	}
	for i, sum := range sums {
		entries[i].Hash = uint64(sum)
	}
	if err := ctx.Err(); err != nil {
		return nil, errs.New(errs.Canceled, opFetch, err).WithPhase("hash")
	}
	return entries, onDevices(ctx, ts, legacy, entries)
}

// onDevices sets the hashes of the tensors that lie on devices, those of a
// platform in one pass.
func onDevices(ctx context.Context, ts []Tensor, legacy bool, entries []wire.StateEntry) error {
	type pass struct {
		bufs []device.Buffer
		of   []int // the tensors
	}
	passes := map[string]*pass{}
	for i := range ts {
		c := ts[i].content(legacy)
		if c.dev.None() || ts[i].AllowInequality {
			continue
		}
		p := passes[c.dev.Platform]
		if p == nil {
			p = &pass{}
			passes[c.dev.Platform] = p
		}
		p.bufs, p.of = append(p.bufs, c.dev), append(p.of, i)
	}
	for _, name := range slices.Sorted(maps.Keys(passes)) {
		pass := passes[name]
		platform, err := device.Lookup(name)
		if err != nil {
			return named(err, ts[pass.of[0]].Key)
		}
		sums, failed, err := platform.HashAll(ctx, pass.bufs)
		if stop := ctx.Err(); stop != nil {
			return errs.New(errs.Canceled, opFetch, stop).WithPhase("hash")
		}
		if err != nil {
			return named(err, ts[pass.of[failed]].Key)
		}
		for k, i := range pass.of {
			entries[i].Hash = uint64(sums[k])
		}
	}
	return nil
}
