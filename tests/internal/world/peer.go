package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/ports"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// Order is what a parent tells a process of its world.
type Order struct {
	Role   string // "master" or "trainer"
	ID     int    // of a trainer: its bit in results, below MaxPeers
	Master string // address of the master
	World  int    // a trainer waits for a group of so many before its first step
	Host   string // the address that it listens at; "": loopback
	// Compute is how long a step computes before it reduces, by half more or
	// less from step to step and from peer to peer.
	Compute time.Duration
	Steady  bool // every step computes as long
	// SyncEvery and OptimizeEvery are the steps between synchronisations of the
	// shared state and optimizations of the topology; 0: none but the first
	// synchronisation and those of newcomers.
	SyncEvery, OptimizeEvery uint64
	Count                    int // elements of the largest operations
	Pool                     int // connections to the next peer

	// Ports are the exact listen ports, Announce those that others are told, and
	// Via is whom a trainer asks to dial for it (Relay); none: it is on its own.
	Ports, Announce []int
	Via             string
	// TellPorts has a trainer report its ports when it has joined. It may choose others than it
	// was given.
	TellPorts bool
}

// Report is what a process says.
type Report struct {
	Event string // "listening", "closed", "joined", "optimized", "begin", "step", "aborted", "noted", "done", "error"
	Addr  string `json:",omitempty"`
	Ports []int  `json:",omitempty"` // of "joined", if TellPorts
	At    int64  `json:",omitempty"` // nanoseconds of the system's clock
	Step  uint64 `json:",omitempty"`
	World int    `json:",omitempty"` // of the group

	Wait time.Duration `json:",omitempty"` // of "closed": for which newcomers are put off; of "optimized" and "noted": for the measurements

	// Of "step": for each operation who contributed, as bits, and a digest of
	// the result; the digest of the shared state; operations that were repeated.
	Sets    []uint64 `json:",omitempty"`
	Results []uint64 `json:",omitempty"`
	State   uint64   `json:",omitempty"`
	Retries int      `json:",omitempty"`
	// Forward: the operations were finished forward. One that dies may have reported what the others
	// compute again.
	Forward bool `json:",omitempty"`

	Synced bool   `json:",omitempty"` // the state was compared in this step
	Wrong  bool   `json:",omitempty"` // of "error": a result was not what the model says
	Code   string `json:",omitempty"`
	Text   string `json:",omitempty"`
}

// errWrong marks results that are not what the model says.
var errWrong = errors.New("wrong result")

// loopback is where a process without a Host listens.
const loopback = "127.0.0.1"

func runMaster(ctx context.Context, ordered Order, say func(Report)) error {
	o := core.MasterOptions{Listen: net.JoinHostPort(cmp.Or(ordered.Host, loopback), "0"), Logger: slog.New(door{logger().Handler(), say})}
	issued.Master(&o.Security)
	m, err := core.NewMaster(o)
	if err != nil {
		return err
	}
	say(Report{Event: "listening", Addr: m.Addr().String()})
	return m.Run(ctx)
}

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// trainer is the life of a peer: admit newcomers, agree on the state, order the
// ring, compute, reduce, check, apply, say what came out.
type trainer struct {
	Order
	say    func(Report)
	comm   *core.Communicator
	rng    *rand.Rand
	params []float64
	step   []uint64
	state  core.SharedState
	ops    []*task
}

func runTrainer(ctx context.Context, o Order, say func(Report)) error {
	t := &trainer{
		Order: o, say: say, rng: rand.New(rand.NewPCG(uint64(o.ID), uint64(os.Getpid()))),
		params: make([]float64, 2048), step: make([]uint64, 1),
	}
	t.state.Tensors = []core.Tensor{core.TensorOf("params", t.params), core.TensorOf("step", t.step)}
	if err := t.join(ctx); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	defer t.comm.Close()
	joined := Report{Event: "joined", At: time.Now().UnixNano()}
	if o.TellPorts {
		joined.Ports = t.Ports
	}
	say(joined)
	// Those that let this one in go on with a synchronisation, and so does it.
	for admitted := true; ; {
		if err := t.once(ctx, admitted); err != nil {
			return err
		}
		pending, err := t.comm.PeersPending(ctx)
		if err != nil {
			return fmt.Errorf("ask for newcomers: %w", err)
		}
		if admitted = pending; pending {
			if err := t.comm.UpdateTopology(ctx); err != nil {
				return fmt.Errorf("let newcomers in: %w", err)
			}
		}
	}
}

func (t *trainer) join(ctx context.Context) (err error) {
	opt := core.Options{}
	opt.Master, opt.PoolSize, opt.PortBase, opt.Logger = t.Master, t.Pool, -1, logger()
	issued.Peer(&opt.Security)
	if t.Host == "" {
		opt.Probe.Duration, opt.Probe.Connections = 20*time.Millisecond, 1
	}
	opt.ReattachTimeout = -1 // a peer that has lost its master has to be gone
	opt.ListenHost, opt.Ports, opt.Announce.Ports = cmp.Or(t.Host, loopback), t.Ports, t.Announce
	if t.Via != "" {
		opt.ListenHost = behind
	}
	if t.Via != "" {
		opt.Dial = func(ctx context.Context, _, addr string) (net.Conn, error) { return dialVia(ctx, t.Via, addr) }
	}
	for tries := 0; ; tries++ {
		if tries > 0 {
			if t.Ports, err = ports.Free(3); err != nil {
				return err
			}
			opt.Ports = t.Ports
		}
		t.comm, err = core.Connect(ctx, opt)
		if err == nil {
			break
		}
		// Somebody else has taken one of the ports meanwhile.
		if !t.TellPorts || tries == 10 || !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	for t.comm.Attributes().LocalWorldSize < t.World {
		pending, err := t.comm.PeersPending(ctx)
		switch {
		case err != nil:
			return err
		case pending:
			if err := t.comm.UpdateTopology(ctx); err != nil {
				return err
			}
		default:
			pause(ctx, 2*time.Millisecond)
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func due(step, every uint64) bool { return every > 0 && step%every == 0 }

// once is one step.
func (t *trainer) once(ctx context.Context, admitted bool) error {
	synced := admitted || due(t.step[0], t.SyncEvery)
	if synced {
		if _, err := t.comm.SyncSharedState(ctx, &t.state, core.SyncOptions{}); err != nil {
			return fmt.Errorf("synchronise: %w", err)
		}
		t.state.Revision++ // what the next synchronisation is about
	}
	step := t.step[0]
	if due(step, t.OptimizeEvery) && t.comm.Attributes().LocalWorldSize > 1 {
		began := time.Now()
		switch err := t.comm.OptimizeTopology(ctx); {
		case errors.Is(err, errs.TopologyOptimizationFailed):
			t.say(Report{Event: "noted", Step: step, Text: err.Error(), Wait: time.Since(began)})
		case err != nil:
			return fmt.Errorf("optimize: %w", err)
		default:
			t.say(Report{Event: "optimized", Step: step, Wait: time.Since(began)})
		}
	}
	compute := t.Compute
	if !t.Steady {
		compute = t.Compute/2 + time.Duration(t.rng.Int64N(int64(t.Compute)+1))
	}
	pause(ctx, compute)
	t.plan(step)
	world := t.comm.Attributes().LocalWorldSize
	t.say(Report{Event: "begin", Step: step, World: world, At: time.Now().UnixNano()})
	retries, err := t.reduce(ctx, step)
	if err != nil {
		return fmt.Errorf("reduce in step %d: %w", step, err)
	}
	r := Report{Event: "step", Step: step, World: t.comm.Attributes().LocalWorldSize, Retries: retries, Synced: synced, At: time.Now().UnixNano()}
	r.Forward = forwards(step)
	for i, op := range t.ops {
		set, err := op.check(step, i)
		if err == nil && set>>t.ID&1 == 0 {
			err = fmt.Errorf("%#x does not contain peer %d itself", set, t.ID)
		}
		if err != nil {
			return fmt.Errorf("%w: step %d, operation %d (%s): %w", errWrong, step, i, op, err)
		}
		r.Sets, r.Results = append(r.Sets, set), append(r.Results, uint64(digest.CRC32C(op.bytes())))
	}
	for i := range t.params {
		t.params[i] += t.ops[0].plain[i%len(t.ops[0].plain)]
	}
	t.step[0]++
	r.State = core.StateHash(&t.state)
	t.say(r)
	return nil
}

// task is one operation of a step, in place.
type task struct {
	quantize core.Quantize
	plain    []float64
	rough    []float32 // if it is quantized
}

func (k *task) String() string {
	if k.rough != nil {
		return k.quantize.Algorithm
	}
	return fmt.Sprintf("%d numbers", len(k.plain))
}

func (k *task) bytes() []byte {
	if k.rough != nil {
		return dtype.AsBytes(k.rough)
	}
	return dtype.AsBytes(k.plain)
}

func (k *task) check(step uint64, op int) (uint64, error) {
	if k.rough != nil {
		return Marked(k.rough, step, op)
	}
	return Contributors(k.plain, step, op)
}

// forwards reports whether the operations of a step are finished forward.
func forwards(step uint64) bool { return step%3 == 1 }

func (k *task) request(op int, step uint64) core.Reduce {
	r := core.ReduceOf(k.plain, k.plain, core.Sum)
	if k.rough != nil {
		r = core.ReduceOf(k.rough, k.rough, core.Sum)
		r.Quantize = k.quantize
	}
	r.Tag, r.FinishForward = uint64(op+1), forwards(step)
	return r
}

// plan makes the operations of a step: the same kinds and sizes on every peer.
func (t *trainer) plan(step uint64) {
	small, middle, large := t.Count/64, t.Count/8, t.Count
	minmax, zero := core.Quantize{Algorithm: "minmax", Type: dtype.Uint8}, core.Quantize{Algorithm: "zeropoint", Type: dtype.Uint8}
	t.ops = t.ops[:0]
	plain := func(n int) { t.ops = append(t.ops, &task{plain: make([]float64, n)}) }
	rough := func(q core.Quantize, n int) { t.ops = append(t.ops, &task{quantize: q, rough: make([]float32, n)}) }
	switch step % 8 {
	case 0:
		plain(large)
		plain(small)
	case 1, 5:
		plain(middle)
		rough(minmax, middle)
		rough(zero, middle)
		plain(small)
	case 2, 6:
		plain(middle)
	case 3:
		plain(small)
		rough(zero, middle)
	case 4:
		plain(small)
		rough(minmax, large/2)
	default:
		for range 6 {
			plain(small)
		}
	}
	for op, k := range t.ops {
		for i := range k.plain {
			k.plain[i] = Contribution(t.ID, step, op, i)
		}
		for i := range k.rough {
			k.rough[i] = Mark(t.ID, step, op, i)
		}
	}
}

// reduce runs the operations of a step, all in flight at once if there are
// several, until all have succeeded, and returns how many were repeated.
func (t *trainer) reduce(ctx context.Context, step uint64) (int, error) {
	if len(t.ops) == 1 {
		return t.reduceByHand(ctx, step, t.ops[0])
	}
	var rs []core.Reduce
	for i, op := range t.ops {
		rs = append(rs, op.request(i, step))
	}
	info, err := t.comm.AllReduceMultipleWithRetry(ctx, rs, len(rs))
	return info.Retries, err
}

// reduceByHand repeats one operation until it succeeds. After every failure its
// buffer has to be as it was, bit by bit.
func (t *trainer) reduceByHand(ctx context.Context, step uint64, op *task) (retries int, err error) {
	was := append([]float64(nil), op.plain...)
	for {
		_, err := t.comm.AllReduce(ctx, op.request(0, step))
		if err == nil {
			return retries, nil
		}
		for i := range was {
			if math.Float64bits(was[i]) != math.Float64bits(op.plain[i]) {
				return retries, fmt.Errorf("%w: step %d: element %d was not restored after: %w", errWrong, step, i, err)
			}
		}
		// The code is the same when the session is over, and then nothing helps.
		if !errors.Is(err, errs.RankConnectionLost) || !t.comm.Attributes().Connected {
			return retries, err
		}
		retries++
		t.say(Report{Event: "aborted", Step: step, Text: err.Error()})
	}
}
