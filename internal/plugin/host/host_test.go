//go:build unix

package host

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
)

// record is a log in memory.
type record struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(b)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// long bounds what must happen at some time.
const long = 30 * time.Second

// tick is how often it is looked at.
const tick = 5 * time.Millisecond

func begin(t *testing.T, spec Spec, fallback topo.Solver) (*SolverPlugin, *record) {
	log := &record{}
	spec.Logger = slog.New(slog.NewTextHandler(log, nil))
	p, err := StartSolver(spec, fallback)
	require.NoError(t, err)
	t.Cleanup(func() {
		pid := p.PID()
		p.Close()
		requireGone(t, pid)
	})
	return p, log
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// alive reports whether a process runs or, with a negative number, a group.
func alive(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(max(pid, -pid)) + "/stat")
	return err != nil && !os.IsNotExist(err) || !strings.Contains(string(stat), ") Z ")
}

func requireGone(t *testing.T, pid int) {
	if pid == 0 {
		return
	}
	require.Eventually(t, func() bool { return !alive(-pid) && !alive(pid) }, long, tick, "process group %d is still there", pid)
}

// matrix of n peers on which the ring in the order of numbers is the worst.
func matrix(n int) topo.Problem {
	p := topo.Problem{Matrix: topo.NewMatrix(n)}
	for i := range n {
		for j := range n {
			p.Matrix.Set(i, j, float64(100+(i*31+j*17)%53))
		}
		p.Matrix.Set(i, (i+1)%n, 10+float64(i))
	}
	return p
}

func TestPluginSolves(t *testing.T) {
	p, log := begin(t, self("fine"), nil)
	require.NoError(t, p.Wait(within(t, long)))
	for _, o := range []topo.Objective{"", topo.BottleneckThenSum, topo.Sum} {
		problem := matrix(7)
		problem.Objective = o
		want, err := tryAll{}.Solve(context.Background(), problem, func(topo.Solution) {})
		require.NoError(t, err)
		var last topo.Solution
		got, err := p.Solve(within(t, long), problem, func(s topo.Solution) {
			require.True(t, o.Better(s, last))
			last = s
		})
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, last.Ring, got.Ring)
	}
	_, err := p.Solve(within(t, long), topo.Problem{Matrix: topo.NewMatrix(4)}, func(topo.Solution) {})
	var none *topo.NoRingError
	require.ErrorAs(t, err, &none)
	require.True(t, none.Proved)
	require.Equal(t, "all were tried", none.Reason)
	_, err = p.Solve(within(t, long), topo.Problem{Matrix: topo.Matrix{N: 2}}, func(topo.Solution) {})
	require.ErrorIs(t, err, topo.ErrMatrix)
	require.Equal(t, 1, p.Starts())
	pid := p.PID()
	require.NoError(t, p.Close())
	requireGone(t, pid)
	_, err = p.Solve(within(t, long), matrix(4), func(topo.Solution) {})
	require.ErrorIs(t, err, errClosed)
	require.NoError(t, p.Close())
	require.Contains(t, log.String(), "plugin=test")
}

// Whatever a plugin does, the answer is that of the built-in solver, in time,
// and the log names the plugin and says why.
func TestHostilePlugins(t *testing.T) {
	for mode, want := range map[string]string{
		"crash":                    "EOF|Unavailable|exit status 9",
		"crash after a ring":       "EOF|Unavailable|exit status 9",
		"panic":                    "the solver panicked: the solver's own mistake",
		"missing peer":             "does not visit each of 7 once",
		"twice":                    "does not visit each of 7 once",
		"out of range":             "does not visit each of 7 once",
		"lie about optimality":     "called a ring optimal that is not the best",
		"lie about the sum":        "smaller sum than its bound",
		"lie about the bottleneck": "faster slowest link than its bound",
		"lie about its own ring":   "below the bottleneck",
		"not a number":             "a bound is not a number",
		"no ring":                  "said that there is no ring, and there is one",
		"children":                 "EOF|Unavailable|exit status 9",
		"talk":                     "prints too much",
		"fine":                     "plugin runs",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p, log := begin(t, self(mode), patient{})
			require.NoError(t, p.Wait(within(t, long)))
			pid := p.PID()
			problem := matrix(7)
			want1, err := tryAll{}.Solve(context.Background(), problem, func(topo.Solution) {})
			require.NoError(t, err)
			got, err := p.Solve(within(t, long), problem, func(s topo.Solution) {
				_, ok := problem.Solution(s.Ring)
				require.True(t, ok)
			})
			require.NoError(t, err)
			require.Equal(t, want1.Bottleneck, got.Bottleneck)
			require.InEpsilon(t, want1.Sum, got.Sum, topo.Tolerance)
			require.NoError(t, problem.Verify(got))
			require.Eventually(t, func() bool {
				for w := range strings.SplitSeq(want, "|") {
					if strings.Contains(log.String(), w) {
						return true
					}
				}
				return false
			}, long, tick, "%s", log)
			if strings.HasPrefix(mode, "crash") || mode == "children" {
				requireGone(t, pid)
				require.Eventually(t, func() bool { return p.Starts() > 1 }, long, tick)
			}
		})
	}
}

// Without a built-in solver beside it the faults are the caller's to see.
func TestFaultsWithoutFallback(t *testing.T) {
	for mode, want := range map[string]error{
		"missing peer":           errClaim,
		"lie about its own ring": errClaim,
		"no ring":                topo.ErrNoRing,
	} {
		t.Run(mode, func(t *testing.T) {
			p, _ := begin(t, self(mode), nil)
			require.NoError(t, p.Wait(within(t, long)))
			_, err := p.Solve(within(t, long), matrix(7), func(topo.Solution) {})
			require.ErrorIs(t, err, want)
		})
	}
}

// A call ends with its context, and a plugin that goes on is killed.
func TestHangingPluginIsKilled(t *testing.T) {
	p, log := begin(t, self("hang"), nil)
	require.NoError(t, p.Wait(within(t, long)))
	pid := p.PID()
	got, err := p.Solve(within(t, time.Second), matrix(7), func(topo.Solution) {})
	require.NoError(t, err)
	require.Len(t, got.Ring, 7)
	requireGone(t, pid)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "it hangs") && p.Starts() == 2 }, long, tick, "%s", log)
}

// A call that is cancelled leaves a plugin that listens alone.
func TestCancelledCall(t *testing.T) {
	p, _ := begin(t, self("slow"), tryAll{})
	require.NoError(t, p.Wait(within(t, long)))
	pid := p.PID()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := p.Solve(ctx, matrix(5), func(topo.Solution) {})
	require.NoError(t, err)
	require.Equal(t, pid, p.PID())
	require.Equal(t, 1, p.Starts())
}

// A plugin that goes on computing after its call was canceled is replaced.
func TestRunawayIsKilled(t *testing.T) {
	p, log := begin(t, self("run away"), nil)
	require.NoError(t, p.Wait(within(t, long)))
	pid := p.PID()
	in, err := p.current()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err = p.Solve(ctx, matrix(7), func(topo.Solution) { cancel() })
	require.NoError(t, err)
	if _, counted := in.proc.group.cpu(in.proc.cmd); !counted {
		return // docs/plugins.md: not found there
	}
	requireEventuallyGone(t, p, pid)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "keeps computing") }, long, tick, "%s", log)
}

// tardy finds the best ring only after a while, and only if it is let.
type tardy struct{ tryAll }

func (tardy) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	select {
	case <-ctx.Done():
		return topo.Solution{}, ctx.Err()
	case <-time.After(400 * time.Millisecond):
		return tryAll{}.Solve(ctx, p, better)
	}
}

// A wrong proof ends the plugin's search only: the built-in solver has its whole
// budget to refute it, and a call that has no time for that proves nothing.
func TestWrongProofEndsNoOtherSearch(t *testing.T) {
	problem := matrix(7)
	want, err := tryAll{}.Solve(context.Background(), problem, func(topo.Solution) {})
	require.NoError(t, err)

	p, log := begin(t, self("lie about optimality"), tardy{})
	require.NoError(t, p.Wait(within(t, long)))
	got, err := p.Solve(within(t, long), problem, func(topo.Solution) {})
	require.NoError(t, err)
	require.Equal(t, want.Bottleneck, got.Bottleneck)
	require.InEpsilon(t, want.Sum, got.Sum, topo.Tolerance)
	require.Contains(t, log.String(), "called a ring optimal that is not the best")

	got, err = p.Solve(within(t, 200*time.Millisecond), problem, func(topo.Solution) {})
	require.NoError(t, err)
	require.Len(t, got.Ring, 7)
	require.False(t, got.Optimal)
}

// The plugin's own time limit ends a call without a budget.
func TestTimeLimit(t *testing.T) {
	spec := self("slow")
	spec.TimeLimit = time.Second
	p, _ := begin(t, spec, nil)
	require.NoError(t, p.Wait(within(t, long)))
	got, err := p.Solve(context.Background(), matrix(7), func(topo.Solution) {})
	require.NoError(t, err)
	require.Len(t, got.Ring, 7)
	require.Equal(t, 1, p.Starts())
}

func TestStoppedPluginFailsItsHealthCheck(t *testing.T) {
	spec := self("stop")
	spec.healthEvery, spec.healthTimeout = 10*tick, 300*time.Millisecond
	p, log := begin(t, spec, patient{})
	require.NoError(t, p.Wait(within(t, long)))
	pid := p.PID()
	_, err := p.Solve(within(t, 500*time.Millisecond), matrix(7), func(topo.Solution) {})
	require.NoError(t, err)
	requireGone(t, pid)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "health check") }, long, tick)
}

func TestMemoryLimit(t *testing.T) {
	if !limitsMemory {
		return // docs/plugins.md: not limited there
	}
	spec := self("memory")
	spec.MemoryLimit = 256 << 20
	p, log := begin(t, spec, patient{})
	require.NoError(t, p.Wait(within(t, long)))
	pid := p.PID()
	_, err := p.Solve(within(t, long), matrix(7), func(topo.Solution) {})
	require.NoError(t, err)
	requireEventuallyGone(t, p, pid)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "its limit is 256 MiB") }, long, tick, "%s", log)
}

func requireEventuallyGone(t *testing.T, p *SolverPlugin, pid int) {
	require.Eventually(t, func() bool { return p.PID() != pid }, long, tick)
	requireGone(t, pid)
}

// A program that is not a plugin is named, tried again at growing intervals, and never in
// the way of an answer.
func TestProgramsThatAreNoPlugins(t *testing.T) {
	for mode, want := range map[string]string{
		"crash at start": "handshake of go-plugin",
		"hang at start":  "it did not serve within",
		"garbage":        "7f454c46",
		"long garbage":   "handshake of go-plugin|did not serve|token too long",
		"remote":         "address of another machine",
		"nobody there":   "Unavailable|no such file",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			spec := self(mode)
			spec.StartTimeout = 500 * time.Millisecond
			if mode != "hang at start" && mode != "long garbage" {
				spec.StartTimeout = long
			}
			p, log := begin(t, spec, tryAll{})
			got, err := p.Solve(within(t, long), matrix(6), func(topo.Solution) {})
			require.NoError(t, err)
			require.True(t, got.Optimal)
			require.Eventually(t, func() bool {
				for w := range strings.SplitSeq(want, "|") {
					if strings.Contains(log.String(), w) {
						return true
					}
				}
				return false
			}, long, tick, "%s", log)
			require.Eventually(t, func() bool { return strings.Count(log.String(), "restart_in") >= 2 }, long, tick, "%s", log)
			require.Contains(t, log.String(), "restart_in=200ms")
			require.Zero(t, p.PID())
		})
	}
}

// A plugin does not outlive a host that is killed.
func TestNoOrphanAfterTheHostIsKilled(t *testing.T) {
	host := exec.Command(os.Args[0], "plugin", "host")
	in, err := host.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	out, err := host.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, host.Start())
	line := make([]byte, 32)
	n, err := out.Read(line)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	require.NoError(t, err, "%s", line[:n])
	require.True(t, alive(pid))
	require.NoError(t, host.Process.Kill())
	_ = host.Wait()
	requireGone(t, pid)
}

func TestKilledPluginComesBack(t *testing.T) {
	p, _ := begin(t, self("fine"), nil)
	for i := range 3 {
		require.NoError(t, p.Wait(within(t, long)))
		got, err := p.Solve(within(t, long), matrix(5), func(topo.Solution) {})
		require.NoError(t, err)
		require.True(t, got.Optimal)
		pid := p.PID()
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		require.Eventually(t, func() bool { return p.PID() != pid }, long, tick)
		require.Equal(t, i+1, p.Starts())
	}
}

func TestPinnedDigest(t *testing.T) {
	spec := self("fine")
	sum, err := Digest(spec.Command)
	require.NoError(t, err)
	spec.SHA256 = strings.ToUpper(sum)
	p, _ := begin(t, spec, nil)
	require.NoError(t, p.Wait(within(t, long)))

	spec.SHA256 = strings.Repeat("0", 64)
	_, err = StartSolver(spec, nil)
	require.ErrorIs(t, err, errs.InvalidConfig)
	require.ErrorIs(t, err, errDigest)
	require.ErrorContains(t, err, sum)

	// A file that is replaced while the plugin runs is not started again.
	file := filepath.Join(t.TempDir(), "plugin.sh")
	require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\nexec '"+os.Args[0]+"' plugin fine\n"), 0o755))
	spec.Command, spec.Args = file, nil
	spec.SHA256, err = Digest(file)
	require.NoError(t, err)
	p, log := begin(t, spec, nil)
	require.NoError(t, p.Wait(within(t, long)))
	require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\nexit 1\n"), 0o755))
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGKILL))
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "plugin is not started") }, long, tick)
	require.ErrorIs(t, p.Wait(within(t, long)), errDigest)
}

func TestBadSpecs(t *testing.T) {
	for name, spoil := range map[string]func(*Spec){
		"no name":       func(s *Spec) { s.Name = "" },
		"no executable": func(s *Spec) { s.Command = "/nonexistent/plugin" },
		"empty":         func(s *Spec) { s.Command = "" },
		"short digest":  func(s *Spec) { s.SHA256 = "abcd" },
		"no digest":     func(s *Spec) { s.SHA256 = strings.Repeat("x", 64) },
		"negative":      func(s *Spec) { s.MemoryLimit = -1 },
		"kind":          func(s *Spec) { s.Kind = "router" },
	} {
		spec := self("fine")
		spoil(&spec)
		_, err := Start(spec)
		require.ErrorIs(t, err, errs.InvalidConfig, name)
	}
}

func TestSetAndSwitch(t *testing.T) {
	set := NewSet(tryAll{})
	defer set.Close()
	a, b := self("fine"), self("fine")
	a.Name, b.Name = "a", "b"
	retire, err := set.Apply([]Spec{a, b})
	require.NoError(t, err)
	retire()
	require.Equal(t, []string{"a", "b"}, set.Names())
	first, second := set.Solver("a"), set.Solver("b")
	require.NoError(t, first.Wait(within(t, long)))
	require.NoError(t, second.Wait(within(t, long)))
	pids := []int{first.PID(), second.PID()}

	w := NewSwitch(first)
	require.Equal(t, "a", w.Name())

	// A change that cannot be made changes nothing.
	broken := b
	broken.Name, broken.Command = "c", "/nonexistent/plugin"
	_, err = set.Apply([]Spec{a, broken})
	require.ErrorIs(t, err, errs.InvalidConfig)
	_, err = set.Apply([]Spec{a, a})
	require.ErrorIs(t, err, errs.InvalidConfig)
	require.Equal(t, []string{"a", "b"}, set.Names())
	require.Equal(t, pids, []int{first.PID(), second.PID()})

	changed := b
	changed.TimeLimit = time.Minute
	retire, err = set.Apply([]Spec{changed})
	require.NoError(t, err)
	w.Set(set.Solver("b"))
	require.True(t, alive(pids[0]))
	retire()
	requireGone(t, pids[0])
	requireGone(t, pids[1])
	require.Nil(t, set.Solver("a"))
	got, err := w.Solve(within(t, long), matrix(5), func(topo.Solution) {})
	require.NoError(t, err)
	require.True(t, got.Optimal)
	require.NoError(t, set.Close())
	require.Empty(t, set.Names())
}
