package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/internal/cuda/cudatest"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// TestMain lets the test binary stand in for the program, which starts itself.
func TestMain(m *testing.M) {
	for name, open := range testDrivers {
		drivers[name] = open
	}
	if len(os.Args) > 1 && slices.Contains([]string{peerCommand, partCommand, loadCommand}, os.Args[1]) {
		main()
	}
	goleak.VerifyTestMain(m)
}

// testDrivers are those with faults, in this process and in those of the parts.
var testDrivers = map[string]func() (driver.Driver, error){
	"broken": func() (driver.Driver, error) { return &broken{Device: ptxtest.New(ptxtest.Options{})}, nil },
	"faulty": func() (driver.Driver, error) { return faulty{ptxtest.New(ptxtest.Options{})}, nil },
}

// faulty is a device on which one part hangs and another one takes its process
// along.
type faulty struct{ *ptxtest.Device }

func (f faulty) MemInfo() (free, total uint64, err error) { select {} }

func (f faulty) HostFree(b []byte) error {
	if len(b) == 4<<10 {
		panic("a fault in the library")
	}
	return f.Device.HostFree(b)
}

func run(t *testing.T, args ...string) (code int, out string, marks []Mark) {
	t.Helper()
	var o, e bytes.Buffer
	file := filepath.Join(t.TempDir(), "marks.json")
	code = execute(context.Background(), append(args, "-json", file), nil, &o, &e)
	f, err := os.Open(file)
	if err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var m Mark
			require.NoError(t, json.Unmarshal(lines.Bytes(), &m))
			marks = append(marks, m)
		}
	}
	return code, o.String() + e.String(), marks
}

// What runs on a device runs here, but for sizes and speed, so that it works
// when there is one.
func TestThroughTheInterpreter(t *testing.T) {
	code, out, marks := run(t, "-driver", "interpreter", "-small")
	require.Zero(t, code, out)
	require.Contains(t, out, "all marks hold")
	seen := map[string]int{}
	for _, m := range marks {
		seen[m.Part]++
		require.True(t, m.OK)
		if m.Name == "seconds until it ended" {
			require.Positive(t, m.Value)
			require.Contains(t, out, fmt.Sprintf("%-11s ok ", m.Part))
		} else if m.Part == "hash" || m.Part == "reduce" {
			require.False(t, m.Judged, "%v", m)
		}
	}
	require.Equal(t, map[string]int{
		"hash": 2, "calls": 6, "reduce": 2, "sizes": 4, "suites": 3, "determinism": 2, "aborts": 4, "lost": 5,
	}, seen, out)
}

// broken is a device with one wrong bit now and then, and a leak.
type broken struct {
	*ptxtest.Device
	copies atomic.Int64
}

func (b *broken) CopyToHost(dst []byte, src driver.Ptr, s driver.Stream) error {
	err := b.Device.CopyToHost(dst, src, s)
	if n := b.copies.Add(1); err == nil && n%3 == 0 && len(dst) > 0 {
		err = b.Device.StreamSynchronize(s)
		dst[len(dst)/2] ^= 0x10
	}
	return err
}

func (b *broken) EventDestroy(driver.Event) error { return nil }

// A mark with a wrong bit or a leak does not hold.
func TestMarksCanFail(t *testing.T) {
	code, out, marks := run(t, "-driver", "broken", "-small", "-only", "determinism,aborts,sizes")
	require.Equal(t, numberOf(t, "sizes"), code, out)
	require.Contains(t, out, "NOT all marks hold: sizes, determinism, aborts\n")
	failed := map[string]bool{}
	for _, m := range marks {
		failed[m.Part] = failed[m.Part] || !m.OK
	}
	require.Equal(t, map[string]bool{"determinism": true, "aborts": true, "sizes": true}, failed, out)

	c := newCounting(&broken{Device: ptxtest.New(ptxtest.Options{})})
	context, err := c.Retain(0)
	require.NoError(t, err)
	require.NoError(t, c.Push(context))
	_, err = c.StreamCreate()
	require.NoError(t, err)
	n, detail := c.leaks()
	require.Equal(t, 2, n)
	require.Equal(t, map[string]any{"contexts": 1, "streams": 1}, detail)
	_, err = c.Pop()
	require.NoError(t, err)
}

// numberOf is the exit code when a part is the first one that failed.
func numberOf(t *testing.T, name string) int {
	t.Helper()
	i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
	require.GreaterOrEqual(t, i, 0)
	return firstFailed + i
}

// A part that hangs is ended, with what its goroutines do, and so is one whose
// process dies; what comes after runs all the same, and the end names both.
func TestAPartCostsNoOther(t *testing.T) {
	code, out, marks := run(t, "-driver", "faulty", "-small", "-only", "hash,calls,lost", "-limit", "hash=200ms")
	require.Equal(t, numberOf(t, "hash"), code, out)
	require.Contains(t, out, "gpu part: hash has not ended within 200ms; its goroutines:")
	require.Contains(t, out, "faulty.MemInfo")
	require.Contains(t, out, "a fault in the library")
	require.Contains(t, out, "NOT all marks hold: hash, calls\n")
	why := map[string]string{}
	lost := 0
	for _, m := range marks {
		if !m.OK {
			why[m.Part], _ = m.Detail["error"].(string)
		} else if m.Part == "lost" {
			lost++
		}
	}
	require.Equal(t, 5, lost, out)
	require.Len(t, why, 2)
	require.Equal(t, "it has not ended within 200ms", why["hash"])
	require.Contains(t, why["calls"], "its process ended in the middle: ")
}

// A part whose program is gone does not stay behind.
func TestNoPartIsLeftBehind(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	order, err := json.Marshal(assignment{Part: "hash", Driver: "faulty", Small: true, Limit: time.Hour, Patience: time.Millisecond})
	require.NoError(t, err)
	cmd := exec.Command(self, partCommand)
	cmd.Stdin = bytes.NewReader(append(order, '\n')) // and then its end
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, exitOrphan, cmd.ProcessState.ExitCode(), "%s", out)
}

func TestWhatCannotRun(t *testing.T) {
	for want, args := range map[string][]string{
		`-driver "toolkit" is none of [`:           {"-driver", "toolkit"},
		`there is no part "speed"`:                 {"-driver", "interpreter", "-only", "hash,speed"},
		`there is no device 3: this machine has 1`: {"-driver", "interpreter", "-device", "3"},
		`there is no part "slow"`:                  {"-limit", "slow=3s"},
	} {
		code, out, marks := run(t, args...)
		require.Equal(t, 1, code)
		require.Contains(t, out, want)
		require.Empty(t, marks)
	}
	if _, err := systemDriver(); err != nil {
		code, out, _ := run(t)
		require.Equal(t, 1, code)
		require.Contains(t, out, "gpucheck: ")
	}
	code := execute(context.Background(), []string{peerCommand, "127.0.0.1:1"}, strings.NewReader("{\"Driver\": \"toolkit\"}\n"), &bytes.Buffer{}, &bytes.Buffer{})
	require.Equal(t, 1, code)
}

// The tests of the backend need nothing that a device of the system's driver
// does not have, and no file beside the binary. They are skipped where they do.
func TestWhatTravels(t *testing.T) {
	for _, p := range []string{"internal/cuda", "internal/cuda/kernels", "tests/device"} {
		t.Run(p, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			build := exec.Command("go", "test", "-c", "-o", dir+"/tests", "github.com/gopccl/gopccl/"+p)
			out, err := build.CombinedOutput()
			require.NoError(t, err, "%s", out)
			run := exec.Command("./tests", "-test.short", "-test.v")
			run.Dir, run.Env = dir, append(os.Environ(), cudatest.Variable+"=interpreter")
			out, err = run.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "--- PASS: ")
			require.NotContains(t, string(out), "no such file")
		})
	}
}
