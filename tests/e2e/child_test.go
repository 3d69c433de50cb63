// Package e2e runs real processes on loopback: this test binary starts itself
// again as masters and peers, kills, stops and cuts them, and compares what
// the survivors report with a model.
package e2e

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/process"
)

const childEnv = "GOPCCL_E2E_CHILD"

// patience bounds what a test waits for. It ends a hang and nothing else: beside others, with the
// race detector and on a slow disk, everything takes as long as it takes.
const patience = 4 * time.Minute

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
	Phases bool  // update and optimize in every step
	Ports  []int // where it listens; nil: where the system says

	Credential, Revoked string // files; "": none

	Patience time.Duration // without a master
	Silence  time.Duration // HeartbeatTimeout, 0: the default
	State    string        // directory of a master; "": none

	Peers, Self string // all masters of the run, where they talk, and which of them it is
	Listen      string // where it listens for the others; "": at Self
}

// report is one line that a child prints.
type report struct {
	Event string // "listening", "connected", "step", "error", "done", ...
	ID    int
	Addr  string   `json:",omitempty"`
	Step  uint64   `json:",omitempty"`
	Mask  uint64   `json:",omitempty"`
	Hash  uint64   `json:",omitempty"`
	World int      `json:",omitempty"`
	Sec   float64  `json:",omitempty"`
	Bytes uint64   `json:",omitempty"`
	Text  string   `json:",omitempty"`
	Ring  string   `json:",omitempty"`
	Ends  []int64  `json:",omitempty"` // of calls, of a master when it listened, in microseconds since 1970
	Calls []string `json:",omitempty"` // ... which they were
}

var roles = map[string]func(ctx context.Context, o order, say func(report)) error{}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ringPlugin {
		serveRingPlugin()
	}
	var o order
	ordered, err := process.Ordered(childEnv, &o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if !ordered {
		// Those that run beside each other wait more than they compute, for silence and bounds.
		flag.Parse()
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
		os.Exit(m.Run())
	}
	tell := process.Reporter[report]()
	say := func(r report) {
		r.ID = o.ID
		tell(r)
	}
	ctx := process.Context() // a child whose parent is gone must not go on
	if err := roles[o.Role](ctx, o, say); err != nil {
		say(report{Event: "error", Text: err.Error()})
		os.Exit(1)
	}
	say(report{Event: "done"})
	os.Exit(0)
}

// child is a running process.
type child struct {
	*process.Child[report]
	t     testing.TB
	cmd   *exec.Cmd
	order order
	lines <-chan report
}

// start runs a child; it is killed at the end of the test at the latest.
func start(t testing.TB, o order) *child {
	t.Helper()
	issued.Share()
	c, err := process.Start[report](childEnv, o, "GOMAXPROCS=2")
	require.NoError(t, err)
	t.Cleanup(c.Kill)
	return &child{Child: c, t: t, cmd: c.Cmd, order: o, lines: c.Reports}
}

func (c *child) log() string { return c.Log() }

// says waits until one of the children has logged a text: lines come later than what they tell of.
func says(t testing.TB, text string, cs ...*child) {
	t.Helper()
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(cs, func(c *child) bool { return strings.Contains(c.log(), text) })
	}, patience, time.Millisecond, "nobody logs %q: %s", text, logs(cs))
}

// logs has those of all when it is printed.
type logs []*child

func (l logs) String() string {
	var b strings.Builder
	for _, c := range l {
		fmt.Fprintf(&b, "== child %d (%s)\n%s\n", c.order.ID, c.order.Role, c.log())
	}
	return b.String()
}

func (c *child) kill() { c.Kill() }

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
		if process.Dump(c.cmd.Process) == nil {
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
	return m, m.await("listening", patience).Addr
}

func init() {
	roles["master"] = func(ctx context.Context, o order, say func(report)) error {
		opt := core.MasterOptions{Listen: cmp.Or(o.Master, "127.0.0.1:0"), State: o.State, Logger: childLogger(o.ID)}
		opt.Security.File, opt.Security.Revoked = o.Credential, o.Revoked
		if o.Silence > 0 {
			opt.HeartbeatInterval, opt.HeartbeatTimeout = o.Silence/4, o.Silence
		}
		m, err := newMaster(opt)
		if err != nil {
			return err
		}
		say(report{Event: "listening", Addr: m.Addr().String(), Ends: []int64{time.Now().UnixMicro()}})
		return m.Run(ctx)
	}
}

// join connects a peer and grows the world to o.World.
func join(ctx context.Context, o order) (*core.Communicator, error) {
	opt := core.Options{}
	opt.Master, opt.Group, opt.Logger = o.Master, o.Group, childLogger(o.ID)
	opt.PortBase, opt.Security.File, opt.ReattachTimeout = -1, o.Credential, o.Patience
	if o.Ports != nil {
		opt.PortBase, opt.Ports = 0, o.Ports
	}
	if o.Silence > 0 {
		opt.HeartbeatInterval, opt.HeartbeatTimeout = o.Silence/4, o.Silence
	}
	if o.Phases {
		opt.Probe.Duration, opt.Probe.Connections = 2*time.Millisecond, 1
	}
	comm, err := connect(ctx, opt)
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
