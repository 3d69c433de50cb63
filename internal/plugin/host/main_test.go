//go:build unix

package host

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/plugins/sdk"
)

// TestMain runs tests, or is the plugin that a test asked for.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "plugin" {
		actAs(os.Args[2])
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// actAs is a plugin with a character.
func actAs(mode string) {
	forever := make(chan struct{})
	switch mode {
	case "crash at start":
		os.Exit(7)
	case "hang at start":
		<-forever
	case "garbage":
		for range 100 {
			fmt.Println("7f454c46|\x00|garbage|garbage")
		}
		<-forever
	case "long garbage":
		line := make([]byte, 1<<20)
		for {
			if _, err := os.Stdout.Write(line); err != nil {
				os.Exit(0)
			}
		}
	case "remote":
		fmt.Println("1|1|tcp|192.0.2.1:80|grpc|")
		<-forever
	case "nobody there":
		fmt.Println("1|1|unix|/nonexistent/socket|grpc|")
		<-forever
	case "host":
		actAsHost()
	case "map":
		actAsMapper()
	default:
		sdk.ServeSolver(&character{mode: mode})
	}
}

// actAsHost runs a plugin and prints its process id until it is killed.
func actAsHost() {
	p, err := StartSolver(self("fine"), nil)
	if err == nil {
		err = p.Wait(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.PID())
	bufio.NewScanner(os.Stdin).Scan()
}

// self is this program as a plugin.
func self(mode string) Spec {
	return Spec{Name: "test", Kind: Solver, Command: os.Args[0], Args: []string{"plugin", mode}}
}

// character is a solver that does what its mode says.
type character struct{ mode string }

func (c *character) Name() string { return c.mode }

func (c *character) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	identity := make([]int, p.Matrix.N)
	for i := range identity {
		identity[i] = i
	}
	worst, _ := p.Solution(identity)
	switch c.mode {
	case "crash":
		os.Exit(9)
	case "crash after a ring":
		better(worst)
		os.Exit(9)
	case "panic":
		panic("the solver's own mistake")
	case "hang":
		better(worst)
		select {}
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case "missing peer":
		better(topo.Solution{Ring: identity[1:]})
	case "twice":
		identity[0] = identity[1]
		better(topo.Solution{Ring: identity})
	case "out of range":
		identity[0] = math.MaxUint32
		better(topo.Solution{Ring: identity})
	case "lie about optimality":
		return p.Proved(worst), nil
	case "lie about the sum":
		best, _ := tryAll{}.Solve(ctx, p, func(topo.Solution) {})
		worst.SumLowerBound = best.Sum * 1.001
		return worst, nil
	case "lie about the bottleneck":
		worst.BottleneckBound = worst.Bottleneck
		return worst, nil
	case "lie about its own ring":
		worst.BottleneckBound = worst.Bottleneck / 2
		return worst, nil
	case "not a number":
		worst.SumLowerBound = math.NaN()
		return worst, nil
	case "no ring":
		return topo.Solution{}, &topo.NoRingError{Proved: true, Reason: "I say so", Remove: []int{1, 99}}
	case "memory":
		var hog [][]byte
		for {
			b := make([]byte, 16<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			hog = append(hog, b)
			if len(hog) == 40 {
				select {}
			}
		}
	case "children":
		// One in the group, which holds on to the pipes.
		cmd := exec.Command("sleep", "1000")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			return topo.Solution{}, err
		}
		os.Exit(9)
	case "talk":
		for i := range 1000 {
			fmt.Println("line", i)
		}
		fmt.Println("\xff\xfe no text")
	case "run away":
		better(worst)
		<-ctx.Done()
		go func() {
			for n := 0; ; n++ {
				if n == math.MaxInt {
					fmt.Println("never")
				}
			}
		}()
		return worst, nil
	case "slow":
		better(worst)
		<-ctx.Done()
		return worst, nil
	}
	return tryAll{}.Solve(ctx, p, better)
}

// tryAll tries all rings: the oracle, and what is built in as far as these
// tests are concerned.
type tryAll struct{}

func (tryAll) Name() string { return "try-all" }

func (tryAll) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	ring := make([]int, p.Matrix.N)
	for i := range ring {
		ring[i] = i
	}
	var best topo.Solution
	var try func(k int)
	try = func(k int) {
		if k == len(ring) {
			if s, ok := p.Solution(append([]int(nil), ring...)); ok && p.Objective.Better(s, best) {
				best = s
				better(s)
			}
			return
		}
		for i := k; i < len(ring); i++ {
			ring[k], ring[i] = ring[i], ring[k]
			try(k + 1)
			ring[k], ring[i] = ring[i], ring[k]
		}
	}
	if len(ring) > 0 {
		try(1)
	}
	if len(best.Ring) == 0 {
		return best, &topo.NoRingError{Proved: true, Reason: "all were tried"}
	}
	return p.Proved(best), nil
}

// patient knows the best ring at once, proves nothing and uses all its time, so
// that a plugin is heard.
type patient struct{ tryAll }

func (patient) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	best, err := tryAll{}.Solve(ctx, p, better)
	<-ctx.Done()
	plain, _ := p.Solution(best.Ring)
	return plain, err
}
