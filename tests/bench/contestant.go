package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/gopccl/gopccl/tests/internal/issued"
)

// maxRounds bounds the rounds of a turn: what comes back is a line of text.
const maxRounds = 200

// The names of the contestants in results.
const (
	nameOurs  = "gopccl"
	nameRival = "rival"
	namePCCL  = "pccl"
	nameGloo  = "gloo"
	nameFloor = "floor"
	nameTLS   = "tls" // gopccl with credentials
	// A Gloo context does one all-reduce at a time: this has one for each.
	nameGroups = "gloo-groups"
)

var rivalNames = []string{nameRival, "rival 2", "rival 3", "rival 4", "rival 5", "rival 6"}

// contestant is something that reduces, or at least moves the bytes.
type contestant struct {
	name  string
	can   func(job) bool
	start func(ctx context.Context, world int) (session, error)
}

// session is a world of processes that wait for jobs and cost nothing meanwhile.
type session interface {
	// run times rounds, after one that warms up.
	run(ctx context.Context, j job, rounds int) (turn, error)
	close() error
}

// turn is what some rounds took: of each the time of the slowest process, in
// seconds, and the processor time of all processes. Root is the time of member 0, for
// which some libraries are done before the others.
type turn struct {
	Seconds []float64
	CPU     float64
	Root    []float64
}

func (t turn) median() float64 { return median(t.Seconds) }

// contestants sets up whom the options name, ours first.
func contestants(ctx context.Context, o options) ([]contestant, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	issued.Share()
	anything := func(job) bool { return true }
	theirs := func(j job) bool { return j.Concurrent <= 8 && j.Pattern == "" }
	plain := func(j job) bool { return j.Quantize == "none" }
	all := []contestant{{nameOurs, anything, ours([]string{self})}}
	for i, r := range strings.Split(o.rival, ";") {
		if r == "" {
			continue
		}
		words := strings.Fields(r)
		if slices.Contains(words, issued.Env+"=require") {
			issued.Command(self) // makes the authority that they share
		}
		all = append(all, contestant{rivalNames[min(i, len(rivalNames)-1)], anything, ours(append([]string{"env"}, words...))})
	}
	for name := range strings.SplitSeq(o.contestants, ",") {
		switch name {
		case "":
		case namePCCL:
			start, err := original(ctx)
			if err != nil {
				return nil, fmt.Errorf("set up the original PCCL (leave it out with -contestants): %w", err)
			}
			// With 12 in flight and more it never came to an end here, and it has
			// no other collectives.
			all = append(all, contestant{namePCCL, theirs, start})
		case nameGloo:
			start, err := glooContestant(ctx)
			if err != nil {
				return nil, fmt.Errorf("set up PyTorch (leave it out with -contestants): %w", err)
			}
			all = append(all, contestant{nameGloo, plain, start})
		case nameGroups:
			start, err := glooContestant(ctx, "groups")
			if err != nil {
				return nil, fmt.Errorf("set up PyTorch (leave it out with -contestants): %w", err)
			}
			all = append(all, contestant{nameGroups, func(j job) bool { return plain(j) && j.Concurrent > 1 }, start})
		case nameTLS:
			all = append(all, contestant{nameTLS, anything, ours(issued.Command(self))})
		case nameFloor:
			// The floor is a number of bytes: one operation of all of them.
			all = append(all, contestant{nameFloor, plain, floorOf([]string{self})})
		default:
			return nil, fmt.Errorf("-contestants %q: want some of %s, %s, %s, %s and %s", o.contestants, namePCCL, nameGloo, nameGroups, nameTLS, nameFloor)
		}
	}
	return all, nil
}

// script runs one of the repository's set-up scripts.
func script(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// slowest combines what the processes of a world measured.
func slowest(reports []turn) (turn, error) {
	var t turn
	for _, r := range reports {
		if t.Seconds == nil {
			t.Seconds = slices.Clone(r.Seconds)
		}
		if len(r.Seconds) != len(t.Seconds) || len(r.Seconds) == 0 {
			return t, errors.New("the processes measured different numbers of rounds")
		}
		for k, s := range r.Seconds {
			t.Seconds[k] = max(t.Seconds[k], s)
		}
		t.CPU += r.CPU
	}
	return t, nil
}
