package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gopccl/gopccl/tests/internal/process"
)

// runLimit bounds the wait for one answer of a process.
const runLimit = 3 * time.Minute

// worker is a child process that speaks lines of JSON.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	log bytes.Buffer
}

func startWorker(ctx context.Context, command []string, args ...string) (*worker, error) {
	w := &worker{}
	w.cmd = exec.CommandContext(ctx, command[0], append(command[1:len(command):len(command)], args...)...)
	w.cmd.Stderr = &w.log
	w.cmd.WaitDelay = time.Second
	in, inErr := w.cmd.StdinPipe()
	out, outErr := w.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return nil, err
	}
	w.in, w.out = in, bufio.NewReader(out)
	return w, process.Begin(w.cmd)
}

func (w *worker) tell(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.in.Write(append(line, '\n'))
	return err
}

// hear reads the next line into v. A process that says nothing is killed.
func (w *worker) hear(v any) error {
	timer := time.AfterFunc(runLimit, func() { w.cmd.Process.Kill() })
	defer timer.Stop()
	line, err := w.out.ReadBytes('\n')
	if err != nil {
		w.end(true)
		return fmt.Errorf("a process ended: %w: %s", err, strings.TrimSpace(w.log.String()))
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("a process said %q: %w", line, err)
	}
	return nil
}

// end closes the input, which asks the process to leave, and waits for it.
func (w *worker) end(hard bool) {
	if w.cmd.ProcessState != nil {
		return
	}
	w.in.Close()
	if hard {
		w.cmd.Process.Kill()
	}
	timer := time.AfterFunc(5*time.Second, func() { w.cmd.Process.Kill() })
	defer timer.Stop()
	w.cmd.Wait()
}

// leaveGrace is how long a worker whose input has ended may go on.
const leaveGrace = 2 * time.Second

// inbox is what the parent has said and nobody has read.
type inbox struct {
	chunks chan []byte
	rest   []byte
}

// orders returns what the parent says on in. When the parent is gone, however
// it ended, so is this process: with the answer to its last order, or without
// if that takes too long, for the others of its world may be gone, too.
func orders(in io.Reader) io.Reader {
	b := &inbox{chunks: make(chan []byte, 1024)}
	go func() {
		for {
			p := make([]byte, 4096)
			n, err := in.Read(p)
			if n > 0 {
				b.chunks <- p[:n]
			}
			if err != nil {
				break
			}
		}
		time.AfterFunc(leaveGrace, func() { os.Exit(3) })
		close(b.chunks)
	}()
	return b
}

// Read implements io.Reader.
func (b *inbox) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		var ok bool
		if b.rest, ok = <-b.chunks; !ok {
			return 0, io.EOF
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// order is a job for a worker, answer what it says to it.
type order struct {
	Bytes, Rounds, Concurrent int
	Quantize                  string
	Pattern                   string
}

type answer struct {
	Seconds []float64
	CPU     float64
	Pattern string // that of the order: other builds may not know it
	Root    bool   // this is member 0
	Error   string `json:",omitempty"`
}

// crew is a session of workers, one for each rank; helpers (a master) end after them.
type crew struct {
	ranks, helpers []*worker
}

func (c *crew) run(_ context.Context, j job, rounds int) (turn, error) {
	for _, w := range c.ranks {
		if err := w.tell(order{j.Bytes, rounds, j.Concurrent, j.Quantize, j.Pattern}); err != nil {
			return turn{}, fmt.Errorf("%w: %s", err, strings.TrimSpace(w.log.String()))
		}
	}
	reports := make([]turn, len(c.ranks))
	var root []float64
	for i, w := range c.ranks {
		var a answer
		if err := w.hear(&a); err != nil {
			return turn{}, err
		}
		if a.Error != "" {
			return turn{}, fmt.Errorf("rank %d: %s", i, a.Error)
		}
		if a.Pattern != j.Pattern {
			return turn{}, fmt.Errorf("rank %d does not know the pattern %s", i, j.Pattern)
		}
		if a.Root {
			root = a.Seconds
		}
		reports[i] = turn{Seconds: a.Seconds, CPU: a.CPU}
	}
	t, err := slowest(reports)
	t.Root = root
	return t, err
}

func (c *crew) close() error {
	for _, w := range c.ranks {
		w.in.Close()
	}
	for _, w := range append(c.ranks, c.helpers...) {
		w.end(false)
	}
	return nil
}

// serve answers the orders on in until it ends.
func serve(in io.Reader, out io.Writer, do func(order) (answer, error)) error {
	lines, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := lines.Decode(&o); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		a, err := do(o)
		a.Pattern = o.Pattern
		if err != nil {
			a.Error = err.Error()
		}
		if err := errors.Join(err, answers.Encode(a)); err != nil {
			return err
		}
	}
}
