package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
)

var dataKinds = []core.Kind{
	core.KindAllGather, core.KindReduceScatter, core.KindBroadcast, core.KindReduce, core.KindGather, core.KindScatter, core.KindAllToAll,
}

// callOf makes member me's part of one collective of n members with blocks of so many
// bytes, in place where the kind has such a form, so that an input is overwritten.
func callOf(kind core.Kind, n, me, root, block int) core.Collective {
	c := core.Collective{Kind: kind, Tag: uint64(kind), DType: dtype.Float32, Op: core.Sum, Preserve: true}
	all := make([]byte, n*block)
	for i := range all {
		all[i] = byte(i*(me+3)) & 0x3f
	}
	own := all[me*block : (me+1)*block]
	switch kind {
	case core.KindAllGather, core.KindGather:
		c.Src, c.Dst = own, all
	case core.KindReduceScatter, core.KindScatter:
		c.Src, c.Dst = all, own
	case core.KindBroadcast, core.KindReduce:
		c.Src, c.Dst = all, all
	case core.KindAllToAll:
		c.Src, c.Dst = all, slices.Clone(all)
	}
	switch kind {
	case core.KindBroadcast, core.KindReduce, core.KindGather, core.KindScatter:
		c.Root = root
	}
	return c
}

// kept is what the buffers of a call had in them.
func kept(c core.Collective) [2][]byte { return [2][]byte{slices.Clone(c.Src), slices.Clone(c.Dst)} }

// Of every kind: members that do not agree on the root, the type, the operation or the
// number of elements are told so, and all buffers are as before.
func TestMismatchOfEveryKind(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 3, nil)
	for name, other := range map[string]func(kind core.Kind, c *core.Collective) bool{
		"root": func(_ core.Kind, c *core.Collective) bool {
			c.Root++
			return c.Root == 2
		},
		"type": func(_ core.Kind, c *core.Collective) bool {
			c.DType = dtype.Int32
			return true
		},
		"operation": func(kind core.Kind, c *core.Collective) bool {
			c.Op = core.Max
			return kind == core.KindReduce || kind == core.KindReduceScatter
		},
		"count": func(kind core.Kind, c *core.Collective) bool {
			*c = callOf(kind, 3, 2, c.Root, 12)
			return true
		},
	} {
		for _, kind := range dataKinds {
			if sample := callOf(kind, 3, 2, 1, 8); !other(kind, &sample) {
				continue
			}
			for rank, err := range each(c, func(_ int, c *core.Communicator) error {
				me := c.Attributes().Index
				call := callOf(kind, 3, me, 1, 8)
				if me == 2 {
					other(kind, &call)
				}
				before := kept(call)
				_, err := c.Collect(ctx, call)
				if after := kept(call); fmt.Sprint(before) != fmt.Sprint(after) {
					return fmt.Errorf("the buffers were written: %w", err)
				}
				return err
			}) {
				require.Equal(t, errs.Mismatch, errs.CodeOf(err), "%s, kind %d, peer %d: %v", name, kind, rank, err)
				require.NotContains(t, err.Error(), "the buffers were written")
			}
		}
	}
	for _, err := range each(c, func(_ int, c *core.Communicator) error { return everyKind(ctx, c, 10, 1) }) {
		require.NoError(t, err)
	}
}

// Of every kind: a caller that gives up gets its call and its buffers back although
// nobody else has come. The others learn it when they come, and the next one is for all.
func TestEveryKindIsGivenUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 3, nil)
	for _, kind := range dataKinds {
		for lost := false; !lost; { // the others may be faster than the news
			mine := callOf(kind, 3, c[0].Attributes().Index, 1, 4000)
			before := kept(mine)
			h, err := c[0].CollectAsync(ctx, mine) // given up before that, nobody would hear of it
			require.NoError(t, err)
			h.Cancel()
			_, err = h.Wait(ctx)
			require.Equal(t, errs.Canceled, errs.CodeOf(err))
			require.Equal(t, before, kept(mine), "kind %d", kind)
			got := each(c[1:], func(_ int, c *core.Communicator) error {
				call := callOf(kind, 3, c.Attributes().Index, 1, 4000)
				was := kept(call)
				_, err := c.Collect(ctx, call)
				if err != nil && fmt.Sprint(was) != fmt.Sprint(kept(call)) {
					return fmt.Errorf("the buffers were written: %w", err)
				}
				return err
			})
			require.Equal(t, errs.CodeOf(got[0]), errs.CodeOf(got[1]), "kind %d: %v and %v", kind, got[0], got[1])
			if lost = got[0] != nil; lost {
				require.Equal(t, errs.RankConnectionLost, errs.CodeOf(got[0]), "%v", got[0])
				require.NotContains(t, got[0].Error()+got[1].Error(), "the buffers were written")
			}
		}
	}
	for _, err := range each(c, func(_ int, c *core.Communicator) error { return everyKind(ctx, c, 10, 1) }) {
		require.NoError(t, err)
	}
}

// every is a group of four whose member 1 can be shut off, with collectives of every kind
// under way.
type every struct {
	t       *testing.T
	ctx     context.Context
	c       []*core.Communicator
	handles [][]*core.Handle
	calls   [][]core.Collective
	before  [][][2][]byte

	data, control atomic.Bool // shut
	open          chan struct{}
	mu            sync.Mutex
	links         []net.Conn // of member 1
}

func newEvery(t *testing.T, ctx context.Context) *every {
	const silence = 5 * time.Second
	e := &every{
		t: t, ctx: ctx, open: make(chan struct{}),
		handles: make([][]*core.Handle, 4), calls: make([][]core.Collective, 4), before: make([][][2][]byte, 4),
	}
	m, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0", HeartbeatInterval: silence / 5, HeartbeatTimeout: silence})
	require.NoError(t, err)
	running, end := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- m.Run(running) }()
	t.Cleanup(func() { end(); <-over; m.Close() })
	master := m.Addr().String()
	t.Cleanup(func() { e.data.Store(false); e.control.Store(false) })
	e.c = world(t, ctx, master, 4, func(i int, o *core.Options) {
		o.HeartbeatInterval, o.HeartbeatTimeout, o.HandshakeTimeout = silence/5, silence, 3*silence // Close waits twice as long
		if i != 1 {
			return
		}
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			switch {
			case err != nil:
				return nil, err
			case addr == master:
				return behind(c, &e.control, e.open), nil
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.links = append(e.links, c)
			return behind(c, &e.data, e.open), nil
		}
	})
	return e
}

// launched are all kinds, and those that can be quantized again, to be quantized.
var launched = append(slices.Clone(dataKinds),
	core.KindAllGather, core.KindReduceScatter, core.KindAllGather, core.KindReduceScatter, core.KindAllGather, core.KindReduceScatter)

// launch begins one of every kind, of which none can end, and waits until all are
// commenced.
func (e *every) launch() {
	root := e.c[1].Attributes().Index
	e.data.Store(true)
	for i, c := range e.c {
		for k, kind := range launched {
			at := root
			if kind == core.KindReduce || kind == core.KindGather { // of which the root gets what others send
				at = (root + 1) % 4
			}
			call := callOf(kind, 4, c.Attributes().Index, at, 4000)
			if k >= len(dataKinds) {
				call.Tag, call.Quantize = uint64(100+k), quantizations[k%len(quantizations)]
			}
			e.calls[i], e.before[i] = append(e.calls[i], call), append(e.before[i], kept(call))
			h, err := c.CollectAsync(e.ctx, call)
			require.NoError(e.t, err)
			e.handles[i] = append(e.handles[i], h)
		}
	}
	require.Eventually(e.t, func() bool {
		for _, c := range e.c {
			for _, op := range c.State().Ops {
				if strings.Contains(op.Waits, "votes of") {
					return false
				}
			}
		}
		return true
	}, patience, time.Millisecond)
}

// strike has member 1 stop, be cut off or leave, and returns those that go on.
func (e *every) strike(how string, closed chan<- error) []*core.Communicator {
	others := slices.Delete(slices.Clone(e.c), 1, 2)
	switch how {
	case "stop":
		e.control.Store(true)
	case "leave": // what it sends is stuck until the others are done
		go func() { closed <- e.c[1].Close() }()
	case "cut":
		e.mu.Lock()
		for _, l := range e.links {
			l.Close()
		}
		e.mu.Unlock()
		e.data.Store(false)
		close(e.open)
		return e.c
	}
	return others
}

// ended waits for what member i has launched.
func (e *every) ended(i int) error {
	for k, h := range e.handles[i] {
		_, err := h.Wait(e.ctx)
		switch code := errs.CodeOf(err); {
		case code != errs.RankConnectionLost && (i != 1 || err == nil):
			return fmt.Errorf("kind %d, %v: %w", launched[k], e.calls[i][k].Quantize, err)
		case fmt.Sprint(e.before[i][k]) != fmt.Sprint(kept(e.calls[i][k])):
			return fmt.Errorf("the buffers of kind %d, %v, were written: %w", launched[k], e.calls[i][k].Quantize, err)
		}
	}
	return nil
}

// One collective of every kind is under way at once, and a member stops, is cut off from
// the others, or leaves: all end with RankConnectionLost, every buffer is as before, and the
// members that are left go on.
func TestEveryKindAtOnceEnds(t *testing.T) {
	for _, how := range []string{"stop", "cut", "leave"} {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			e := newEvery(t, ctx)
			for _, err := range each(e.c, func(_ int, c *core.Communicator) error { return everyKind(ctx, c, 10, 1) }) {
				require.NoError(t, err)
			}
			e.launch()
			closed := make(chan error, 1)
			left := e.strike(how, closed)
			// All at once: the last that is waited for takes part in the round.
			for _, err := range each(left, func(_ int, one *core.Communicator) error { return e.ended(slices.Index(e.c, one)) }) {
				require.NoError(t, err)
			}
			for _, err := range each(left, func(_ int, c *core.Communicator) error {
				for {
					if err := c.UpdateTopology(ctx); err != nil {
						return err
					}
					if err := everyKind(ctx, c, 10, 2); errs.CodeOf(err) != errs.RankConnectionLost {
						return err
					}
				}
			}) {
				require.NoError(t, err)
			}
			if how == "cut" {
				return
			}
			e.control.Store(false)
			e.data.Store(false)
			close(e.open)
			if how == "leave" {
				require.NoError(t, <-closed)
			}
			require.NoError(t, e.ended(1))
		})
	}
}
