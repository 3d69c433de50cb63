package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

//go:embed gloo.py
var glooSource []byte

// torchPython returns an interpreter that has PyTorch: $GOPCCL_TORCH_PYTHON, the
// one in the cache directory, where the tests of the Python package have theirs,
// too, or python3; if none has it, it is installed in the cache directory.
func torchPython(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	venv := filepath.Join(cache, "gopccl", "py", "venv")
	mine := filepath.Join(venv, "bin", "python")
	for _, python := range []string{os.Getenv("GOPCCL_TORCH_PYTHON"), mine, "python3"} {
		if python != "" && exec.CommandContext(ctx, python, "-c", "import torch.distributed").Run() == nil {
			return python, nil
		}
	}
	fmt.Fprintln(os.Stderr, "installing PyTorch, once")
	if err := script(ctx, "python3", "-m", "venv", venv); err != nil {
		return "", err
	}
	return mine, script(ctx, filepath.Join(venv, "bin", "pip"), "install", "-q", "numpy", "torch")
}

func gloo(ctx context.Context) (func(context.Context, int) (session, error), error) {
	python, err := torchPython(ctx)
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
		if err := os.WriteFile(program, glooSource, 0o600); err != nil {
			s.close()
			return nil, err
		}
		for rank := range world {
			w, err := startWorker(ctx, []string{"env", "GLOO_SOCKET_IFNAME=" + loopback(), python, program}, strconv.Itoa(rank), strconv.Itoa(world), filepath.Join(dir, "store"))
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
