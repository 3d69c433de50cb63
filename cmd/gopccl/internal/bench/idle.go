package bench

import (
	"context"
	"errors"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core"
)

// IdleResult is one line of `gopccl bench idle`: what communicators of one
// process cost while nothing is reduced, the masters of their worlds of two
// not counted in the memory, but in the processor time.
type IdleResult struct {
	Communicators int     `json:"communicators"`
	Threads       int     `json:"threads"`    // of the process, those of the masters and of Go included
	Goroutines    float64 `json:"goroutines"` // of one communicator
	KiB           float64 `json:"kib"`        // of heap and stacks, of one communicator
	Core          float64 `json:"core"`       // share of one core, of one communicator
	Seconds       float64 `json:"seconds"`    // of the measurement
}

// Idle connects count communicators, in worlds of two under masters of their
// own, reduces once in each, and measures for the given time.
func Idle(ctx context.Context, count int, threads string, span time.Duration) (r IdleResult, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var masters []*core.Master
	var all []*core.Communicator
	defer func() {
		for _, c := range all {
			c.Close()
		}
		for _, m := range masters {
			m.Close()
		}
	}()
	for range (count + 1) / 2 {
		m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
		if err != nil {
			return r, err
		}
		masters = append(masters, m)
		go m.Run(ctx)
	}
	bytes, goroutines := usage()
	for k := range count {
		opt := core.Options{Master: masters[k/2].Addr().String(), ListenHost: "127.0.0.1", PortBase: -1, Threads: threads}
		c, err := connectTo(ctx, opt, all[k-k%2:])
		if err != nil {
			return r, err
		}
		all = append(all, c)
	}
	var wg sync.WaitGroup
	fails := make([]error, count)
	for k, c := range all {
		if count%2 == 1 && k == count-1 {
			break // alone in its world
		}
		wg.Go(func() {
			if fails[k] = gather(ctx, c, 2); fails[k] == nil {
				v := make([]float32, 1000)
				_, fails[k] = core.AllReduceSlice(ctx, c, v, v, core.Sum)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(fails...); err != nil {
		return r, err
	}
	after, now := usage()
	began, used := time.Now(), cpuTime()
	select {
	case <-time.After(span):
	case <-ctx.Done():
		return r, ctx.Err()
	}
	took := time.Since(began)
	n := float64(count)
	return IdleResult{
		Communicators: count, Threads: pprof.Lookup("threadcreate").Count(), Goroutines: float64(now-goroutines) / n,
		KiB: (after - bytes) / 1024 / n, Core: (cpuTime() - used).Seconds() / took.Seconds() / n, Seconds: took.Seconds(),
	}, nil
}

// usage returns the bytes of heap and stacks in use, and the goroutines.
func usage() (bytes float64, goroutines int) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse) + float64(m.StackInuse), runtime.NumGoroutine()
}
