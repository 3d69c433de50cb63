// Package trainers holds three data-parallel trainers of the charlm model on top
// of gopccl: DDP, DiLoCo and AsyncDiLoCo. Each is one function that reads from
// top to bottom; this file has what they share. The programs in examples/ddp,
// examples/diloco and examples/asyncdiloco only read flags.
//
// All three keep their model as shared state, let waiting peers in between two
// steps, and go on with the survivors when a peer dies. After every step the
// shared state has the same bits on every peer.
package trainers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/checkpoint"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/examples/charlm"
)

// Options of a trainer; DefaultOptions has usable ones.
type Options struct {
	Master   string // HOST:PORT of the master
	Security core.SecurityOptions
	Steps    uint64 // the run ends when the shared state has taken so many steps
	MinPeers int    // below this number of peers nothing is computed
	Seed     uint64 // of the initial parameters and of the order of the data
	Inner    int    // local steps between two synchronisations (DiLoCo); the first ones, if there is a Pace
	Pace     Pace   // chooses further local steps (DiLoCo)
	Batch    int    // examples per local step
	// Local makes the inner optimizer of DiLoCo for n parameters.
	Local func(n int) charlm.Optimizer
	// OuterRate and OuterMomentum are those of DiLoCo's outer optimizer.
	OuterRate, OuterMomentum float32
	// Outer takes DiLoCo's outer steps, nil: the processor. It stays the caller's.
	Outer Outer
	Shape charlm.Shape // Vocab 0: that of the text

	LossEvery uint64 // steps between two measurements of the validation loss

	Quantize core.Quantize // how averages travel

	Checkpoint      string // directory; empty: none
	CheckpointEvery uint64 // steps between two checkpoints

	Report func(Event)   // called from the trainer's goroutine
	Until  func() uint64 // if not nil, asked for the last step instead of Steps
	// Leaving has the trainer leave the run between two steps when it ends, so that no
	// operation of the others is aborted; nil: never.
	Leaving context.Context
	Logger  *slog.Logger        // of the communicator; may be nil
	Tune    func(*core.Options) // last word on how to connect; may be nil
	Now     func() time.Time    // the clock of the Pace; nil: time.Now
}

// DefaultOptions returns what the flags of the example programs start from.
func DefaultOptions() Options {
	return Options{
		Master: "127.0.0.1:48148", Steps: 100, MinPeers: 2, Seed: 1, Inner: 20, Batch: 32,
		Local:     func(n int) charlm.Optimizer { return charlm.NewAdamW(n, innerRate) },
		OuterRate: 0.7, OuterMomentum: 0.9,
		Shape: charlm.DefaultShape(0), LossEvery: 1, CheckpointEvery: 1, Report: func(Event) {},
	}
}

// innerRate is the learning rate of AdamW.
const innerRate = 2e-3

// validationSize is the number of examples behind every reported loss.
const validationSize = 256

// run is a trainer's membership in a run: the communicator, the shared state
// and what is needed to report about both.
type run struct {
	Options
	comm  *core.Communicator
	text  *charlm.Corpus
	model *charlm.Model
	valid charlm.Batch
	state *core.SharedState
	now   Event // counters so far

	pacing pacing
}

// prepare loads text and model; nothing is connected yet.
func prepare(o Options) (*run, error) {
	text, err := charlm.Opticks()
	if err != nil {
		return nil, err
	}
	o.Shape.Vocab = len(text.Vocab)
	if o.Outer == nil {
		o.Outer = hostOuter{}
	}
	model, err := charlm.New(o.Shape)
	if err != nil {
		return nil, err
	}
	return &run{
		Options: o, text: text, model: model, state: &core.SharedState{},
		valid: text.Validation(o.Shape.Context, validationSize),
	}, nil
}

// share adds the tensors of a parameter vector to the shared state.
func (r *run) share(prefix string, vector []float32) {
	for _, v := range r.model.Views(vector) {
		r.state.Tensors = append(r.state.Tensors, core.TensorOf(prefix+v.Name, v.Data))
	}
}

// resume continues where the newest intact checkpoint left off, if there is one.
func (r *run) resume() error {
	if r.Checkpoint == "" {
		return nil
	}
	path, damaged, err := checkpoint.Latest(r.Checkpoint)
	if errors.Is(err, errs.NoSharedStateAvailable) && len(damaged) == 0 {
		return nil // the first start
	} else if err != nil {
		return err
	}
	for _, err := range damaged { // this is a step back, which nobody should have to guess
		r.warn("a newer checkpoint than "+path+" is passed over", err)
	}
	_, err = r.state.LoadCheckpoint(path)
	return err
}

// warn reports what a person should look at.
func (r *run) warn(text string, err error) {
	e := r.now
	e.Kind, e.Text = Warning, fmt.Sprintf("%s: %v", text, err)
	r.Report(e)
}

// more says whether the run goes on.
func (r *run) more() bool {
	if r.told() {
		return false
	}
	if r.Until != nil {
		return r.now.Step < r.Until()
	}
	return r.now.Step < r.Steps
}

// admit joins the run, or lets in who waits to join it, and returns when enough
// peers are there: true if somebody is new. Every peer leaves it in the same
// state, the newcomer included, so that all make the same calls next. pause is
// called before the membership changes.
func (r *run) admit(ctx context.Context, pause func() error) (bool, error) {
	anyNew := false
	wait, stop := r.untilTold(ctx)
	defer stop()
	if r.comm == nil {
		if err := r.connect(wait); err != nil {
			return false, err
		}
		anyNew = true
	} else {
		pending, err := r.comm.PeersPending(ctx)
		if err != nil {
			return false, err
		}
		if pending {
			if err := pause(); err != nil {
				return false, err
			}
			if err := r.comm.UpdateTopology(ctx); err != nil {
				return false, err
			}
			anyNew = true
			r.report(World, nil)
		}
	}
	if r.world() >= r.MinPeers {
		return anyNew, nil
	}
	if err := pause(); err != nil {
		return false, err
	}
	if err := r.comm.WaitForPeers(wait, r.MinPeers); err != nil { // nobody to train with yet
		return false, err
	}
	r.report(World, nil)
	return true, nil
}

func (r *run) connect(ctx context.Context) error {
	var opt core.Options
	opt.Master, opt.Security, opt.Logger = r.Master, r.Security, r.Logger
	if r.Tune != nil {
		r.Tune(&opt)
	}
	comm, err := core.Connect(ctx, opt)
	if err != nil {
		return err
	}
	r.comm = comm
	r.now.Peer = comm.Attributes().UUID.Short()
	return nil
}

func (r *run) world() int { return r.comm.Attributes().LocalWorldSize }

// sync makes the shared state equal on all peers and says whether this one had
// something else before. It must be called once per revision.
func (r *run) sync(ctx context.Context, opt core.SyncOptions) (bool, error) {
	info, err := r.comm.SyncSharedState(ctx, r.state, opt)
	if err != nil {
		return false, err
	}
	r.now.Tx += info.TxBytes
	r.now.Rx += info.RxBytes
	r.now.Revision = r.state.Revision
	r.report(Synced, func(e *Event) { e.Strategy, e.Fetched = strategies[opt.Strategy], info.Outdated })
	return info.Outdated, nil
}

var strategies = [...]string{core.EnforcePopular: "enforce popular", core.ReceiveOnly: "receive only", core.SendOnly: "send only"}

// data is this peer's share of the text: every peer draws from its own part of the text, in an
// order that depends on seed and step alone.
func (r *run) data() *charlm.Sampler {
	a := r.comm.Attributes()
	return r.text.Sampler(r.Shape.Context, max(a.Rank, 0), max(len(a.Ring), 1), r.Seed<<32+r.now.Step)
}

// train does the local steps of one outer step on params and returns their mean loss.
func (r *run) train(ctx context.Context, params, grad []float32, opt charlm.Optimizer) (float64, error) {
	data, sum := r.data(), 0.0
	r.pacing.began, r.now.Inner = r.clock(), r.Inner
	for range r.Inner {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		sum += r.model.Gradient(params, grad, data.Next(r.Batch))
		opt.Step(params, grad)
	}
	return sum / float64(r.Inner), nil
}

// reduces describes the average of a parameter-shaped vector over all peers, one
// operation per tensor.
func (r *run) reduces(mean, own []float32) []core.Reduce {
	var ops []core.Reduce
	to, from := r.model.Views(mean), r.model.Views(own)
	for i := range to {
		op := core.ReduceOf(to[i].Data, from[i].Data, core.Avg)
		op.Tag, op.Quantize = uint64(i), r.Quantize
		ops = append(ops, op)
	}
	return ops
}

// average sets mean to the average of own over the peers that live to see it.
func (r *run) average(ctx context.Context, mean, own []float32) error {
	r.report(Reduce, nil)
	info, err := r.comm.AllReduceMultipleWithRetry(ctx, r.pace(r.reduces(mean, own)), 4)
	if err == nil || errors.Is(err, errs.TooFewPeers) {
		r.paces(err != nil)
	}
	return r.averaged(info, err, mean, own)
}

// averaged counts what a reduce did. A peer that is left alone averages with nobody.
func (r *run) averaged(info core.ReduceInfo, err error, mean, own []float32) error {
	r.now.Tx += info.TxBytes
	r.now.Rx += info.RxBytes
	if info.Retries > 0 {
		r.now.Retried += info.Retries
		r.report(Retry, nil)
	}
	if errors.Is(err, errs.TooFewPeers) {
		copy(mean, own)
		return nil
	}
	return err
}

// stepped reports a step of the shared state and writes a checkpoint when it is time.
func (r *run) stepped(params []float32, train float64) error {
	r.now.Revision = r.state.Revision
	r.report(Stepped, func(e *Event) {
		e.Hash, e.Train = r.hash(), train
		if r.now.Step%max(r.LossEvery, 1) == 0 {
			e.Loss = r.model.Loss(params, r.valid)
		}
	})
	if r.Checkpoint != "" && r.now.Step%max(r.CheckpointEvery, 1) == 0 {
		_, left, err := r.state.SaveCheckpoint(r.Checkpoint, nil, 3)
		for _, err := range left {
			r.warn("an old checkpoint could not be removed", err)
		}
		return err
	}
	return nil
}

// tell reports an event with the loss and hash of the shared state.
func (r *run) tell(kind string, params []float32) {
	r.report(kind, func(e *Event) { e.Hash, e.Loss = r.hash(), r.model.Loss(params, r.valid) })
}

func (r *run) hash() string { return fmt.Sprintf("%016x", core.StateHash(r.state)) }

func (r *run) report(kind string, fill func(*Event)) {
	e := r.now
	e.Kind, e.World = kind, r.world()
	if fill != nil {
		fill(&e)
	}
	r.Report(e)
}
