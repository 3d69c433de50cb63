package process

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// endGrace is how long a child whose parent is gone may go on.
const endGrace = 5 * time.Second

// keptLog is how much of the end of a child's standard error is kept.
const keptLog = 64 << 10

// Child is another run of this program. It was given an order and reports in
// lines of JSON on its standard output; what it logs to standard error is kept.
type Child[R any] struct {
	Cmd *exec.Cmd
	// Reports is closed when the child has ended. A reader that stops reading stops
	// the child, some thousand reports later.
	Reports <-chan R

	in  io.Closer
	log logTail
}

// Start runs this program again, with the order in the environment variable
// env. The child ends with this process, or before.
func Start[R any](env string, order any, environ ...string) (*Child[R], error) {
	return StartBy[R](Begin, env, order, environ...)
}

// StartBy is Start by another function than Begin, which also has the child end
// with this process: that of a network namespace, say.
func StartBy[R any](begin func(*exec.Cmd) error, env string, order any, environ ...string) (*Child[R], error) {
	spec, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	reports := make(chan R, 4096)
	c := &Child[R]{Cmd: exec.Command(self), Reports: reports}
	c.Cmd.Env = append(append(os.Environ(), env+"="+string(spec)), environ...)
	if c.in, err = c.Cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.Cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.Cmd.Stderr = &c.log
	if err := begin(c.Cmd); err != nil {
		return nil, err
	}
	go func() {
		defer close(reports)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var r R
			if json.Unmarshal(lines.Bytes(), &r) == nil {
				reports <- r
			}
		}
		_, _ = io.Copy(io.Discard, out) // a line that was too long must not stop the child
		_ = c.Cmd.Wait()
	}()
	return c, nil
}

// Log returns the last of what the child wrote to standard error.
func (c *Child[R]) Log() string { return c.log.String() }

// Kill ends the child at once.
func (c *Child[R]) Kill() { _ = c.Cmd.Process.Kill() }

// Dismiss closes the child's input, which ends the context of Context.
func (c *Child[R]) Dismiss() { _ = c.in.Close() }

// Ordered reports whether this process was started by Start with env, and
// reads its order.
func Ordered(env string, order any) (bool, error) {
	spec := os.Getenv(env)
	if spec == "" {
		return false, nil
	}
	return true, json.Unmarshal([]byte(spec), order)
}

// Context returns, in a child, a context that ends when the parent dismisses
// the child or is gone; the process ends five seconds later at the latest.
func Context() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
		time.AfterFunc(endGrace, func() { os.Exit(3) })
	}()
	return ctx
}

// Reporter returns, in a child, a function that sends a report to the parent;
// any goroutine may call it.
func Reporter[R any]() func(R) {
	var mu sync.Mutex
	return func(r R) {
		line, err := json.Marshal(r)
		if err != nil {
			panic(err)
		}
		mu.Lock()
		defer mu.Unlock()
		_, _ = os.Stdout.Write(append(line, '\n'))
	}
}

// logTail keeps the end of what is written to it.
type logTail struct {
	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer.
func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf = append(l.buf, p...); len(l.buf) > 2*keptLog {
		l.buf = append(l.buf[:0], l.buf[len(l.buf)-keptLog:]...)
	}
	return len(p), nil
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ToValidUTF8(string(l.buf), "?")
}
