package main

import (
	"context"
	"fmt"
	"os"

	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// original sets the original library up where it is not, and returns how to
// start a master and peers of it.
func original(ctx context.Context) (func(context.Context, int) (session, error), error) {
	d, err := originalDriver(ctx)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, world int) (session, error) {
		// It crashes now and then while a world forms (quirk Q25 and others).
		w, err := pccl.NewWorld(d, world, runLimit)
		for try := 1; err != nil && try < 5; try++ {
			fmt.Fprintf(os.Stderr, "the original failed, once more: %v\n", err)
			w, err = pccl.NewWorld(d, world, runLimit)
		}
		if err != nil {
			return nil, err
		}
		return &originalSession{w: w}, nil
	}, nil
}

func originalDriver(ctx context.Context) (*pccl.Driver, error) {
	dir, ok := pccl.Find()
	if !ok {
		root, err := moduleRoot(ctx)
		if err != nil {
			return nil, err
		}
		if err := script(ctx, root+"/tests/internal/pccl/original/setup.sh", dir); err != nil {
			return nil, err
		}
	}
	return pccl.Open(dir)
}

type originalSession struct {
	w *pccl.World
}

func (s *originalSession) run(_ context.Context, j job, rounds int) (turn, error) {
	r, err := s.w.Bench(pccl.BenchOrder{
		Count: j.Bytes / 4, Warmup: 1, Rounds: rounds, Concurrent: j.Concurrent, Quantize: j.Quantize,
	})
	if err != nil {
		return turn{}, err
	}
	t := turn{CPU: r.CPU.Seconds()}
	for _, d := range r.Rounds {
		t.Seconds = append(t.Seconds, d.Seconds())
	}
	return t, nil
}

func (s *originalSession) close() error {
	s.w.Close()
	return nil
}
