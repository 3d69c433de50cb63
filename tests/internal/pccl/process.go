package pccl

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/tests/internal/process"
)

// Process is one child that obeys the line protocol: a master, a peer, or both.
// Its methods may be called by one goroutine at a time, except Kill, Stop,
// Cont and Log. Every call returns within the time limit of the process.
//
// An error of type errs.Code is the result of the library (Success is nil);
// any other error says that the child died, hung or answered nonsense.
type Process struct {
	Name string

	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	limit time.Duration
	log   tail
	ended chan struct{} // closed when the child has been reaped
	err   error         // how it ended; valid once ended is closed
}

// Start starts a child that speaks the protocol and waits until it is ready.
// No call may take longer than limit: the child is killed then. The caller
// must Close it.
func Start(name string, cmd *exec.Cmd, limit time.Duration) (*Process, error) {
	return StartBy(process.Begin, name, cmd, limit)
}

// StartBy is Start by another function than process.Begin: that of a network namespace, say.
func StartBy(begin func(*exec.Cmd) error, name string, cmd *exec.Cmd, limit time.Duration) (*Process, error) {
	p := &Process{Name: name, cmd: cmd, limit: limit, ended: make(chan struct{})}
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(stdout, 1<<16)
	cmd.Stderr = &p.log
	if err := begin(cmd); err != nil {
		return nil, err
	}
	f, err := p.roundTrip("init", "", nil, 1, nil)
	if err == nil {
		err = result(f[0])
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Close ends the child and reaps it. It returns how the child ended: nil after
// exit status 0, which is the answer to Quit.
func (p *Process) Close() error {
	select {
	case <-p.ended:
	default:
		p.in.Close()
		p.Kill()
		p.err = p.cmd.Wait()
		close(p.ended)
	}
	return p.err
}

// Quit asks the child to end by itself and returns nil if it did, with status 0.
func (p *Process) Quit() error {
	timer := time.AfterFunc(p.limit, p.Kill)
	defer timer.Stop()
	if _, err := io.WriteString(p.in, "quit\n"); err != nil {
		return p.fail("quit", err)
	}
	io.Copy(io.Discard, p.out)
	p.err = p.cmd.Wait()
	close(p.ended)
	if p.err != nil {
		return p.fail("quit", p.err)
	}
	return nil
}

// Kill ends the child at once (SIGKILL); the kernel closes its connections.
func (p *Process) Kill() { p.cmd.Process.Kill() }

// PID returns the process id of the child.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log returns the last part of what the child wrote to standard error.
func (p *Process) Log() string { return p.log.String() }

// roundTrip sends one command line with the payloads after it and reads the
// answer: its values (at least want of them), and then the payload sizes that
// sizes computes from them.
func (p *Process) roundTrip(command, args string, payload [][]byte, want int, read func([]string) error) ([]string, error) {
	timedOut := make(chan struct{})
	timer := time.AfterFunc(p.limit, func() { close(timedOut); p.Kill() })
	defer timer.Stop()
	fields, err := p.exchange(command, args, payload, want, read)
	select {
	case <-timedOut:
		err = fmt.Errorf("no answer within %v", p.limit)
	default:
	}
	if err != nil {
		return nil, p.fail(command, err)
	}
	return fields, nil
}

func (p *Process) exchange(command, args string, payload [][]byte, want int, read func([]string) error) ([]string, error) {
	if command != "init" {
		if _, err := io.WriteString(p.in, strings.TrimSpace(command+" "+args)+"\n"); err != nil {
			return nil, err
		}
	}
	for _, b := range payload {
		if _, err := p.in.Write(b); err != nil {
			return nil, err
		}
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(line)
	if len(fields) < want+1 || fields[0] != command {
		return nil, fmt.Errorf("unexpected answer %q", line)
	}
	if read != nil {
		if err := read(fields[1:]); err != nil {
			return nil, err
		}
	}
	return fields[1:], nil
}

func (p *Process) fail(command string, err error) error {
	if errors.Is(err, io.EOF) {
		err = errors.New("the process ended")
	}
	return fmt.Errorf("%s: %s: %w\n%s", p.Name, command, err, p.Log())
}

// result turns the first value of an answer into an error: nil or an errs.Code.
func result(field string) error {
	var code int
	if _, err := fmt.Sscan(field, &code); err != nil {
		return fmt.Errorf("unexpected result %q", field)
	}
	if code == 0 {
		return nil
	}
	return errs.Code(code)
}

// tail keeps the last 32 KiB that were written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if over := len(t.b) - 32<<10; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
