// Package gloo runs PyTorch's Gloo, with which measurements compare.
package gloo

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Program is the Python program of one rank: its arguments are the rank, the world
// size and where the ranks meet, a URL as torch.distributed's init_method has it.
// It says "ready", and answers each Order, a line of JSON, with a Timing.
//
//go:embed gloo.py
var Program []byte

// Order has a rank time all-reduces, Concurrent at a time, of Bytes each, or another
// collective, for Rounds rounds after Warmup that are not counted.
type Order struct {
	Bytes, Warmup, Rounds, Concurrent int
	Pattern                           string `json:",omitempty"` // as tests/internal/moves names it; empty: all-reduce
	// Started: all ranks are told at the same moment, and do not meet before a round.
	Started bool `json:",omitempty"`
}

// Timing is what each round took, and the processor time of all of them.
type Timing struct {
	Seconds []float64
	CPU     float64
}

// Python returns an interpreter that has PyTorch: $GOPCCL_TORCH_PYTHON, the
// one in the cache directory, where the tests of the Python package have theirs,
// too, or python3; if none has it, it is installed in the cache directory.
func Python(ctx context.Context) (string, error) {
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
	if err := install(ctx, "python3", "-m", "venv", venv); err != nil {
		return "", err
	}
	return mine, install(ctx, filepath.Join(venv, "bin", "pip"), "install", "-q", "numpy", "torch")
}

func install(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}
