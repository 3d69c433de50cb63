package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core"
)

// PostSettings is one line's setting of `gopccl bench post`.
type PostSettings struct {
	Preset    string `json:"preset"`
	Frequency int    `json:"append_frequency"` // 0: the preset's
	Batch     int    `json:"append_batch"`     // 0: the preset's
	Burst     int    `json:"burst"`            // all-reduces that are posted one after the other
	Bytes     int    `json:"bytes"`            // of each
	Rounds    int    `json:"rounds"`
}

// PostResult is one line of `gopccl bench post`, in microseconds of the first
// of two peers in this process.
type PostResult struct {
	PostSettings
	Post50  float64 `json:"post_p50_us"`  // a call of Post
	Post99  float64 `json:"post_p99_us"`  //
	Start50 float64 `json:"start_p50_us"` // from the call to the begin of the data phase, the vote included
	Start99 float64 `json:"start_p99_us"`
	End50   float64 `json:"end_p50_us"`   // from the call to the verdict
	Burst50 float64 `json:"burst_p50_us"` // from the first call of a burst to the last verdict
}

// Post measures settings in turns, a few rounds of each at a time.
func Post(ctx context.Context, settings []PostSettings, emit func(PostResult) error) error {
	const turns = 4
	type times struct{ post, start, end, burst []float64 }
	got := make([]times, len(settings))
	for turn := range turns {
		for i, set := range settings {
			share := set.Rounds*(turn+1)/turns - set.Rounds*turn/turns
			if err := postTurn(ctx, set, share, func(post, start, end []float64, burst float64) {
				t := &got[i]
				t.post, t.start, t.end = append(t.post, post...), append(t.start, start...), append(t.end, end...)
				t.burst = append(t.burst, burst)
			}); err != nil {
				return err
			}
		}
	}
	for i, set := range settings {
		t := &got[i]
		for _, l := range [][]float64{t.post, t.start, t.end, t.burst} {
			slices.Sort(l)
		}
		if err := emit(PostResult{
			set, quantile(t.post, 0.5), quantile(t.post, 0.99), quantile(t.start, 0.5), quantile(t.start, 0.99),
			quantile(t.end, 0.5), quantile(t.burst, 0.5),
		}); err != nil {
			return err
		}
	}
	return nil
}

// postTurn makes a world of two, and hands the microseconds of each round to say.
func postTurn(ctx context.Context, set PostSettings, rounds int, say func(post, start, end []float64, burst float64)) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	defer m.Close()
	go m.Run(ctx)
	began := time.Now()
	type start struct { // as the first peer's listener hears of it
		tag uint64
		at  time.Duration
	}
	started, starts := make([]time.Duration, set.Burst), make(chan start, set.Burst)
	var comms [2]*core.Communicator
	var wg sync.WaitGroup
	var fails [2]error
	for i := range comms {
		opt := core.Options{
			Master: m.Addr().String(), ListenHost: "127.0.0.1", PortBase: -1,
			Post: core.PostOptions{Preset: set.Preset, Frequency: set.Frequency, Batch: set.Batch},
		}
		if i == 0 {
			opt.Trace = &core.Listener{OpStarted: func(tag, _ uint64) { starts <- start{tag, time.Since(began)} }}
		}
		if comms[i], err = connectTo(ctx, opt, comms[:i]); err != nil {
			return err
		}
		defer comms[i].Close()
	}
	for i, c := range comms {
		wg.Go(func() { fails[i] = gather(ctx, c, len(comms)) })
	}
	wg.Wait()
	if err := errors.Join(fails[:]...); err != nil {
		return err
	}
	const warm = 3
	next := make(chan struct{})
	wg.Go(func() { // the second peer follows
		var r postRound
		for range next {
			if fails[1] = r.run(ctx, comms[1], set, began); fails[1] != nil {
				stop()
				return
			}
		}
	})
	var r postRound
	for k := range rounds + warm {
		select {
		case next <- struct{}{}:
		case <-ctx.Done():
		}
		if fails[0] = r.run(ctx, comms[0], set, began); fails[0] != nil {
			break
		}
		for range set.Burst { // the listener may be behind
			select {
			case s := <-starts:
				started[s.tag] = s.at
			case <-ctx.Done():
			}
		}
		if k < warm {
			continue
		}
		var post, start, end []float64
		for i := range r.posted {
			post = append(post, micro(r.returned[i]-r.posted[i]))
			start = append(start, micro(started[i]-r.posted[i]))
			end = append(end, micro(r.ended[i]-r.posted[i]))
		}
		say(post, start, end, micro(slices.Max(r.ended)-r.posted[0]))
	}
	close(next)
	wg.Wait()
	return errors.Join(fails[:]...)
}

func micro(d time.Duration) float64 { return float64(d) / 1e3 }

// connectTo joins a run whose members so far have to let the new one in.
func connectTo(ctx context.Context, opt core.Options, members []*core.Communicator) (*core.Communicator, error) {
	if len(members) == 0 {
		return core.Connect(ctx, opt)
	}
	type joined struct {
		c   *core.Communicator
		err error
	}
	in := make(chan joined, 1)
	go func() {
		c, err := core.Connect(ctx, opt)
		in <- joined{c, err}
	}()
	before := members[0].Attributes().LocalWorldSize
	for {
		// Once it is in, it would have to ask, too.
		if members[0].Attributes().LocalWorldSize == before {
			if err := letIn(ctx, members); err != nil {
				return nil, err
			}
		}
		select {
		case j := <-in:
			return j.c, j.err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// letIn lets those in that wait, if any do.
func letIn(ctx context.Context, members []*core.Communicator) error {
	var wg sync.WaitGroup
	fails := make([]error, len(members))
	for i, c := range members {
		wg.Go(func() {
			pending, err := c.PeersPending(ctx)
			if err == nil && pending {
				err = c.UpdateTopology(ctx)
			}
			fails[i] = err
		})
	}
	wg.Wait()
	return errors.Join(fails...)
}

// postRound is one burst of a peer, with the times of its operations since the
// beginning of the turn.
type postRound struct {
	buf                     []float32
	handles                 []*core.Handle
	posted, returned, ended []time.Duration
}

func (r *postRound) run(ctx context.Context, c *core.Communicator, set PostSettings, began time.Time) error {
	n := max(1, set.Bytes/4)
	if r.buf == nil {
		r.buf = make([]float32, n*set.Burst)
		r.posted, r.returned, r.ended = make([]time.Duration, set.Burst), make([]time.Duration, set.Burst), make([]time.Duration, set.Burst)
	}
	r.handles = r.handles[:0]
	for k := range set.Burst {
		v := r.buf[k*n : (k+1)*n]
		red := core.ReduceOf(v, v, core.Max)
		red.Tag = uint64(k)
		r.posted[k] = time.Since(began)
		h, err := c.Post(red)
		r.returned[k] = time.Since(began)
		if err != nil {
			return err
		}
		r.handles = append(r.handles, h)
	}
	for k, h := range r.handles {
		select {
		case <-h.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
		r.ended[k] = time.Since(began)
	}
	for _, h := range r.handles {
		if _, err := h.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
