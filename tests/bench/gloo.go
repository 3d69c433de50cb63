package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gopccl/gopccl/tests/internal/gloo"
)

// glooContestant runs Gloo, with words for its program behind the usual arguments.
func glooContestant(ctx context.Context, words ...string) (func(context.Context, int) (session, error), error) {
	python, err := gloo.Python(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, world int) (session, error) {
		dir, err := os.MkdirTemp("", "gopccl-bench")
		if err != nil {
			return nil, err
		}
		s := &glooSession{dir: dir}
		program := filepath.Join(dir, "gloo.py")
		if err := os.WriteFile(program, gloo.Program, 0o600); err != nil {
			s.close()
			return nil, err
		}
		for rank := range world {
			w, err := startWorker(ctx, []string{"env", "GLOO_SOCKET_IFNAME=" + loopback(), python, program}, append([]string{strconv.Itoa(rank), strconv.Itoa(world), "file://" + filepath.Join(dir, "store")}, words...)...)
			if err != nil {
				s.close()
				return nil, err
			}
			s.ranks = append(s.ranks, w)
		}
		for _, w := range s.ranks {
			var ready string
			if err := w.hear(&ready); err != nil {
				s.close()
				return nil, err
			}
		}
		return s, nil
	}, nil
}

type glooSession struct {
	crew
	dir string
}

func (s *glooSession) close() error {
	s.crew.close()
	return os.RemoveAll(s.dir)
}
