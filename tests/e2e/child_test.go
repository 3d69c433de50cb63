// Package e2e runs real processes on loopback: this test binary starts itself
// again as masters and peers, kills, stops and cuts them, and compares what
// the survivors report with a model.
package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
)

const childEnv = "GOPCCL_E2E_CHILD"

// order is what a parent tells a child, in its environment.
type order struct {
	Role   string
	Master string
	ID     int // 0..62, the child's bit in masks
	Count  int // elements
	Steps  int // 0: until killed
	World  int // wait for this world before starting, 0: do not
	Extra  int
	Group  uint32
	Flag   bool
	Phases bool // update and optimize in every step
}

// report is one line that a child prints.
type report struct {
	Event string // "listening", "connected", "step", "error", "done", ...
	ID    int
	Addr  string  `json:",omitempty"`
	Step  uint64  `json:",omitempty"`
	Mask  uint64  `json:",omitempty"`
	Hash  uint64  `json:",omitempty"`
	World int     `json:",omitempty"`
	Sec   float64 `json:",omitempty"`
	Bytes uint64  `json:",omitempty"`
	Text  string  `json:",omitempty"`
}

var roles = map[string]func(ctx context.Context, o order, say func(report)) error{}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ringPlugin {
		serveRingPlugin()
	}
	spec := os.Getenv(childEnv)
	if spec == "" {
		os.Exit(m.Run())
	}
	var o order
	if err := json.Unmarshal([]byte(spec), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var mu sync.Mutex
	say := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		r.ID = o.ID
		b, _ := json.Marshal(r)
		os.Stdout.Write(append(b, '\n'))
	}
	// A child whose parent is gone must not go on.
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
		time.AfterFunc(5*time.Second, func() { os.Exit(3) })
	}()
	if err := roles[o.Role](ctx, o, say); err != nil {
		say(report{Event: "error", Text: err.Error()})
		os.Exit(1)
	}
	say(report{Event: "done"})
	os.Exit(0)
}

// child is a running process.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.Closer
	order order
	lines chan report
	mu    sync.Mutex
	err   *strings.Builder
}

// start runs a child; it is killed at the end of the test at the latest.
func start(t testing.TB, o order) *child {
	t.Helper()
	spec, _ := json.Marshal(o)
	c := &child{t: t, order: o, lines: make(chan report, 4096), err: &strings.Builder{}}
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(spec), "GOMAXPROCS=2")
	stdin, err := c.cmd.StdinPipe()
	require.NoError(t, err)
	c.stdin = stdin
	stdout, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.cmd.Stderr = c
	require.NoError(t, c.cmd.Start())
	go func() {
		defer close(c.lines)
		sc := bufio.NewScanner(stdout)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			var r report
			if json.Unmarshal(sc.Bytes(), &r) == nil && r.Event != "" {
				c.lines <- r
			}
		}
		c.cmd.Wait()
	}()
	t.Cleanup(c.kill)
	return c
}

// Write keeps what the child logs, for failures.
func (c *child) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err.Len() < 64<<10 {
		c.err.Write(p)
	}
	return len(p), nil
}

func (c *child) log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err.String()
}

func (c *child) kill() { c.cmd.Process.Kill() }

// await returns the next report of the kind, failing the test after limit, at
// an error report and at the end of the child.
func (c *child) await(event string, limit time.Duration) report {
	c.t.Helper()
	deadline := time.After(limit)
	for {
		select {
		case r, ok := <-c.lines:
			switch {
			case !ok:
				c.t.Fatalf("child %d (%s) ended before %q\n%s", c.order.ID, c.order.Role, event, c.log())
			case r.Event == event:
				return r
			case r.Event == "error":
				c.t.Fatalf("child %d (%s) failed before %q: %s\n%s", c.order.ID, c.order.Role, event, r.Text, c.log())
			}
		case <-deadline:
			c.t.Fatalf("child %d (%s) did not report %q within %v\n%s", c.order.ID, c.order.Role, event, limit, c.log())
		}
	}
}

// autopsy returns the logs of children that hang, and what their goroutines
// wait for where the system can make them tell.
func autopsy(cs []*child) string {
	var b strings.Builder
	for _, c := range cs {
		if c.cmd.Process.Signal(syscall.SIGQUIT) == nil {
			for range c.lines { // until it ended
			}
		}
		fmt.Fprintf(&b, "== child %d (%s)\n%s\n", c.order.ID, c.order.Role, c.log())
	}
	return b.String()
}

// childLogger logs to the child's standard error, which the parent keeps for
// failures; in the parent itself it logs nothing.
func childLogger(id int) *slog.Logger {
	if os.Getenv(childEnv) == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("child", id)
}

func startMaster(t testing.TB) (*child, string) {
	t.Helper()
	m := start(t, order{Role: "master", ID: 63})
	return m, m.await("listening", 30*time.Second).Addr
}

func init() {
	roles["master"] = func(ctx context.Context, o order, say func(report)) error {
		m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0", Logger: childLogger(o.ID)})
		if err != nil {
			return err
		}
		say(report{Event: "listening", Addr: m.Addr().String()})
		return m.Run(ctx)
	}
}

// join connects a peer and grows the world to o.World.
func join(ctx context.Context, o order) (*core.Communicator, error) {
	opt := core.Options{}
	opt.Master, opt.Group, opt.Logger = o.Master, o.Group, childLogger(o.ID)
	opt.PortBase = -1
	if o.Phases {
		opt.ProbeDuration, opt.ProbeConnections = 2*time.Millisecond, 1
	}
	comm, err := core.Connect(ctx, opt)
	if err != nil {
		return nil, err
	}
	for comm.Attributes().LocalWorldSize < o.World {
		pending, err := comm.PeersPending(ctx)
		if err == nil && pending {
			err = comm.UpdateTopology(ctx)
		} else if err == nil {
			time.Sleep(2 * time.Millisecond)
		}
		if err != nil {
			return comm, err
		}
	}
	return comm, nil
}
