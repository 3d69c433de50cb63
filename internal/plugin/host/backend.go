package host

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/plugin/shm"
	"github.com/gopccl/gopccl/plugins/proto"
)

// BackendPlugin is a backend.Backend whose arithmetic a plugin does. Since every
// backend gives the same bits, a built-in one takes over, in the middle of an
// operation if need be, while the plugin is not there.
type BackendPlugin struct {
	t       *tensors
	builtIn backend.Backend
	rank    atomic.Int64
	lost    atomic.Int64
	// Small (32 KiB) is the number of bytes below which a call of the plugin
	// costs more than it gains; the built-in backend computes these.
	Small int
}

// StartBackend starts a backend plugin.
func StartBackend(spec Spec, builtIn backend.Backend) (*BackendPlugin, error) {
	spec.Kind = Backend
	p := &BackendPlugin{builtIn: builtIn, Small: 32 << 10}
	t, err := startTensors(spec, func(in *instance) error {
		ctx, cancel := context.WithTimeout(context.Background(), in.spec.StartTimeout)
		defer cancel()
		d, err := proto.NewBackendClient(in.conn).Describe(ctx, &proto.DescribeRequest{})
		if err != nil {
			return fmt.Errorf("it does not describe itself: %w", err)
		}
		p.rank.Store(int64(d.Rank))
		return nil
	})
	if err != nil {
		return nil, err
	}
	p.t = t
	return p, nil
}

// Plugin is the program behind the backend.
func (p *BackendPlugin) Plugin() *Plugin { return p.t.Plugin }

// Close ends the plugin; nobody may compute with it any more.
func (p *BackendPlugin) Close() error { return p.t.Close() }

// Name is the name of the plugin.
func (p *BackendPlugin) Name() string { return p.t.spec.Name }

// Rank is what the plugin says of itself. Rank, Probe and New make the plugin a
// backend.Driver.
func (p *BackendPlugin) Rank() int { return int(p.rank.Load()) }

// Probe waits until the plugin serves, at most its start timeout.
func (p *BackendPlugin) Probe() error {
	ctx, cancel := context.WithTimeout(context.Background(), p.t.spec.StartTimeout)
	defer cancel()
	return p.t.Wait(ctx)
}

// New returns p.
func (p *BackendPlugin) New() (backend.Backend, error) { return p, nil }

// Lost returns how many pieces the built-in backend computed because the plugin
// failed.
func (p *BackendPlugin) Lost() int64 { return p.lost.Load() }

// Reduce implements backend.Backend.
func (p *BackendPlugin) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	if len(dst) < p.Small {
		p.builtIn.Reduce(t, op, dst, a, b)
		return
	}
	for at := 0; at < len(dst); at += pieceBytes {
		end := min(at+pieceBytes, len(dst))
		if !p.piece(shm.Frame{Call: shm.Reduce, Type: t, Op: op}, dst[at:end], a[at:end], b[at:end]) {
			p.builtIn.Reduce(t, op, dst[at:end], a[at:end], b[at:end])
		}
	}
}

// Finalize implements backend.Backend.
func (p *BackendPlugin) Finalize(t dtype.Type, dst []byte, world int) {
	if len(dst) < p.Small {
		p.builtIn.Finalize(t, dst, world)
		return
	}
	for at := 0; at < len(dst); at += pieceBytes {
		end := min(at+pieceBytes, len(dst))
		if !p.piece(shm.Frame{Call: shm.Finalize, Type: t, World: uint64(world)}, dst[at:end], nil, nil) {
			p.builtIn.Finalize(t, dst[at:end], world)
		}
	}
}

// piece has the plugin compute one piece; false if it did not, dst being as it was.
func (p *BackendPlugin) piece(f shm.Frame, dst, a, b []byte) bool {
	in, err := p.t.current()
	if err != nil {
		p.lost.Add(1)
		return false
	}
	l := <-p.t.lanes
	defer p.t.done(l, len(dst))
	f.Count = uint64(len(dst) / f.Type.Size())
	var x, y, z []byte
	f.Dst, x = l.operand(0, len(dst))
	f.A, y = l.operand(1, len(a))
	f.B, z = l.operand(2, len(b))
	if f.Call == shm.Finalize {
		copy(x, dst)
	}
	copy(y, a)
	copy(z, b)
	l.frame = f
	if err := p.t.exchange(in, l); err != nil {
		p.lost.Add(1)
		return false
	}
	copy(dst, x)
	return true
}

var _ backend.Driver = (*BackendPlugin)(nil)
