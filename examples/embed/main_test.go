package main

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-master" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The program in the README is this one, and it is complete.
func TestREADMEShowsThisProgram(t *testing.T) {
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	crlf := strings.NewReplacer("\r\n", "\n")
	require.Contains(t, crlf.Replace(string(readme)), "```go\n"+crlf.Replace(string(program))+"```\n")
}

// Two processes of it end with the same bits (a third could come too late for so
// short a run). All that a peer needs to join is
// the address of the master.
func TestProcessesAgree(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	served := make(chan error, 1)
	mctx, stop := context.WithCancel(ctx)
	go func() { served <- m.Run(mctx) }()
	defer func() { stop(); <-served }()
	self, err := os.Executable()
	require.NoError(t, err)
	type result struct {
		out []byte
		err error
	}
	results := make(chan result, 2)
	for range 2 {
		go func() {
			out, err := exec.CommandContext(ctx, self, "-master", m.Addr().String()).Output()
			results <- result{out, err}
		}()
	}
	seen := map[string]int{}
	for range 2 {
		r := <-results
		require.NoError(t, r.err)
		require.Contains(t, string(r.out), "revision 100, state ")
		seen[string(r.out)]++
	}
	require.Len(t, seen, 1) // S2-51
}

// The licence is MIT, and both files say so.
func TestLicence(t *testing.T) {
	licence, err := os.ReadFile("../../LICENSE")
	require.NoError(t, err)
	require.Contains(t, string(licence), "MIT License") // S2-07
	require.Contains(t, string(licence), "Permission is hereby granted, free of charge")
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "MIT licence")
}

// The engine offers primitives; training algorithms live in examples only.
func TestNoAlgorithmInTheEngine(t *testing.T) {
	for _, dir := range []string{"core", "backends", "quantizers", "solvers", "platform"} {
		err := filepath.WalkDir("../../"+dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, word := range []string{"diloco", "nesterov", "adamw", "optimizer"} {
				require.NotContains(t, strings.ToLower(string(text)), word, path) // S2-58
			}
			return err
		})
		require.NoError(t, err)
	}
}
