package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// TestMain lets the test binary stand in for the program, which starts itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == peerCommand {
		main()
	}
	goleak.VerifyTestMain(m)
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
		require.Equal(t, m.Part != "hash" && m.Part != "reduce", m.Judged, "%v", m)
	}
	require.Equal(t, map[string]int{"suites": 2, "hash": 1, "determinism": 1, "reduce": 1, "aborts": 3}, seen)
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
	drivers["broken"] = func() (driver.Driver, error) {
		return &broken{Device: ptxtest.New(ptxtest.Options{})}, nil
	}
	t.Cleanup(func() { delete(drivers, "broken") })
	code, out, marks := run(t, "-driver", "broken", "-small", "-only", "determinism,aborts")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "NOT all marks hold")
	failed := map[string]bool{}
	for _, m := range marks {
		failed[m.Part] = failed[m.Part] || !m.OK
	}
	require.Equal(t, map[string]bool{"determinism": true, "aborts": true}, failed, out)

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

func TestWhatCannotRun(t *testing.T) {
	for want, args := range map[string][]string{
		`is none of [interpreter system]`:          {"-driver", "toolkit"},
		`there is no part "speed"`:                 {"-driver", "interpreter", "-only", "hash,speed"},
		`there is no device 3: this machine has 1`: {"-driver", "interpreter", "-device", "3"},
	} {
		code, out, marks := run(t, args...)
		require.Equal(t, 1, code)
		require.Contains(t, out, want)
		require.Empty(t, marks)
	}
	if _, err := systemDriver(); err != nil {
		code, out, _ := run(t)
		require.Equal(t, 1, code)
		require.True(t, strings.HasPrefix(out, "gpucheck: "), out)
	}
	code := execute(context.Background(), []string{peerCommand, "127.0.0.1:1"}, strings.NewReader("{\"Driver\": \"toolkit\"}\n"), &bytes.Buffer{}, &bytes.Buffer{})
	require.Equal(t, 1, code)
}
