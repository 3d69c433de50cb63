package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// process is the operating system's side of a plugin: go-plugin's
// runner.Runner. It belongs to a process group of its own, which is killed as a
// whole, and is tied to this process as far as the system can (sys_*.go).
type process struct {
	cmd            *exec.Cmd
	stdin          *os.File // its end of file tells the plugin that the host is gone
	stdout, stderr *os.File
	theirs         []*os.File // ends that belong to the plugin
	exited         chan struct{}
	state          error // of the exit, valid after exited
	group          group
	memoryLimit    int64
	shared         *os.File // the host's memory that the program maps, nil if it maps none

	mu      sync.Mutex
	started bool
	killed  bool
	gone    bool // nothing is left to kill
}

// drain is how long pipes stay open after the plugin's exit, should a program
// outside its group hold the other end.
const drain = time.Second

func newProcess(cmd *exec.Cmd, memoryLimit int64, shared *os.File) (*process, error) {
	p := &process{cmd: cmd, memoryLimit: memoryLimit, shared: shared, exited: make(chan struct{})}
	var err error
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	var in, out, errOut *os.File
	in, p.stdin = pipe()
	p.stdout, out = pipe()
	p.stderr, errOut = pipe()
	p.theirs = append([]*os.File{in, out, errOut}, cmd.ExtraFiles...)
	if err != nil {
		p.closeAll()
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, errOut
	return p, nil
}

func (p *process) closeAll() {
	for _, f := range append(p.theirs, p.stdin, p.stdout, p.stderr) {
		f.Close() // nil is refused, not followed
	}
}

// Start starts the program, and the goroutine that waits for its end.
func (p *process) Start(context.Context) error {
	started := make(chan error, 1)
	go func() {
		// Linux ties the program to the life of this thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.mu.Lock()
		err := errors.New("it was ended before it started")
		if !p.killed {
			err = p.group.start(p.cmd, p.memoryLimit)
			p.started = err == nil
		}
		p.mu.Unlock()
		started <- err
		if err != nil {
			return
		}
		p.state = p.group.wait(p.cmd, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.group.kill(p.cmd) // what the plugin has started
			p.gone = true
		})
		close(p.exited)
		p.stdin.Close()
		time.AfterFunc(drain, func() {
			p.stdout.Close()
			p.stderr.Close()
		})
	}()
	err := <-started
	if err != nil {
		p.closeAll()
		close(p.exited)
		return err
	}
	for _, f := range p.theirs {
		f.Close()
	}
	return nil
}

// stop asks the plugin to end, by the end of its input, and kills it after grace.
func (p *process) stop(grace time.Duration) {
	p.stdin.Close()
	select {
	case <-p.exited:
	case <-time.After(grace):
		_ = p.Kill(context.Background())
		<-p.exited
	}
}

// Kill ends the whole group.
func (p *process) Kill(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = true
	if p.started && !p.gone {
		p.group.kill(p.cmd)
	}
	return nil
}

// Wait waits for the exit.
func (p *process) Wait(context.Context) error {
	<-p.exited
	return p.state
}

// exit describes the end of the program.
func (p *process) exit() string {
	if p.cmd.ProcessState == nil {
		return "it did not start"
	}
	return p.cmd.ProcessState.String()
}

// Stdout carries the handshake.
func (p *process) Stdout() io.ReadCloser { return p.stdout }

// Stderr carries what the plugin prints.
func (p *process) Stderr() io.ReadCloser { return p.stderr }

// Name is the path of the executable.
func (p *process) Name() string { return p.cmd.Path }

// ID is the process id, "" before the start.
func (p *process) ID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.started {
		return ""
	}
	return fmt.Sprint(p.cmd.Process.Pid)
}

// Diagnose says what a plugin that printed something else should have done.
func (p *process) Diagnose(context.Context) string {
	return "its first line of output must be the handshake of go-plugin"
}

// PluginToHost refuses addresses of other machines.
func (p *process) PluginToHost(network, address string) (string, string, error) {
	switch network {
	case "unix":
		return network, address, nil
	case "tcp":
		host, _, err := net.SplitHostPort(address)
		if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsLoopback() {
			return network, address, nil
		}
	}
	return "", "", errors.New("the plugin names an address of another machine")
}

// HostToPlugin changes nothing.
func (p *process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}
