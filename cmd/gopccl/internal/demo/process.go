package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gopccl/gopccl/examples/trainers"
)

// message is what arrives from a peer process: an event, or its end.
type message struct {
	peer  int
	event trainers.Event
	ended bool
	err   error // of the end; nil if the process ended well
}

// process is a peer process. It reports events on its standard output and takes
// "stop STEP" on its standard input, whose end makes it leave.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	live  bool
}

// spawn starts a peer; its messages go to out until the one with ended set,
// which is the last.
func spawn(peer int, cmd *exec.Cmd, out chan<- message) (*process, error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	last := &tail{}
	cmd.Stderr = last
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var e trainers.Event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				out <- message{peer: peer, event: e}
			}
		}
		err := cmd.Wait()
		if text := last.String(); err != nil && text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		out <- message{peer: peer, ended: true, err: err}
	}()
	return &process{cmd: cmd, stdin: stdin, live: true}, nil
}

// stopAt asks the process to end when the shared state has taken so many steps.
func (p *process) stopAt(step uint64) { fmt.Fprintf(p.stdin, "stop %d\n", step) }

// kill ends the process as hard as the system can (SIGKILL).
func (p *process) kill() { p.cmd.Process.Kill() }

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if extra := len(t.b) - 2000; extra > 0 {
		t.b = append(t.b[:0], t.b[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}

// Peer is the body of a peer process: the DiLoCo trainer, reporting in JSON to
// out and told by in when to stop.
func Peer(ctx context.Context, o trainers.Options, in io.Reader, out io.Writer) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	var last atomic.Uint64
	last.Store(o.Steps)
	o.Until = last.Load
	o.Report = trainers.Lines(out, true)
	go func() {
		defer leave() // the demo is gone
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "stop "); ok {
				if step, err := strconv.ParseUint(text, 10, 64); err == nil {
					last.Store(step)
				}
			}
		}
	}()
	return trainers.DiLoCo(ctx, o)
}
