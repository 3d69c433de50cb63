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
	"runtime/pprof"
	"sync"
	"time"
)

// Each part runs in a process of its own: a call of the driver that does not
// return can be ended only with its process, a device that a part has lost is
// lost for its process, and a part must not cost the others theirs.

// partCommand is the first argument of such a process.
const partCommand = "gpu-part"

// Exit codes of such a process, beside 0 and 1.
const (
	exitHangs  = 4 // the watchdog has ended it
	exitOrphan = 5 // the program that started it is gone
)

// patience is how much longer than its limit a part may take to end itself.
const patience = 10 * time.Second

// assignment tells a process which part to run; it is a line of JSON.
type assignment struct {
	Part     string // none: describe the device
	Driver   string
	Device   int
	Small    bool
	Limit    time.Duration
	Patience time.Duration // how long it may take to leave
}

// message is what such a process says, a line of JSON each.
type message struct {
	Say  string `json:"say,omitempty"`
	Mark *Mark  `json:"mark,omitempty"`
	// End is the last one of a part that has ended by itself; Error why it failed.
	End   bool   `json:"end,omitempty"`
	Error string `json:"error,omitempty"`
}

// serve is the body of a process that runs one part. When the part takes too
// long it prints what all goroutines do, and ends the process.
func serve(ctx context.Context, in io.Reader, out, errOut io.Writer) int {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	var a assignment
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err != nil {
		fmt.Fprintln(errOut, "gpu part: no assignment:", err)
		return 1
	}
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		leave()
		time.AfterFunc(a.Patience/2, func() { os.Exit(exitOrphan) })
	}()
	var mu sync.Mutex
	report := json.NewEncoder(out)
	tell := func(m message) error {
		mu.Lock()
		defer mu.Unlock()
		return report.Encode(m)
	}
	dog := time.AfterFunc(a.Limit, func() {
		fmt.Fprintf(errOut, "gpu part: %s has not ended within %v; its goroutines:\n", a.Part, a.Limit)
		_ = pprof.Lookup("goroutine").WriteTo(errOut, 2)
		os.Exit(exitHangs)
	})
	defer dog.Stop()
	end := message{End: true}
	if err := a.run(ctx, tell); err != nil {
		end.Error = err.Error()
	}
	if tell(end) != nil || end.Error != "" {
		return 1
	}
	return 0
}

// run runs the part.
func (a assignment) run(ctx context.Context, tell func(message) error) (err error) {
	j := &job{
		ctx: ctx, name: a.Driver, device: a.Device, small: a.Small,
		tell: func(m Mark) error { return tell(message{Mark: &m}) },
		say:  func(format string, args ...any) { _ = tell(message{Say: fmt.Sprintf(format, args...)}) },
	}
	open, err := opener(a.Driver)
	if err != nil {
		return err
	}
	if j.driver, err = open(); err != nil {
		return err
	}
	if a.Part == "" {
		return j.describe()
	}
	for _, p := range parts {
		if p.name == a.Part {
			return p.run(j)
		}
	}
	return fmt.Errorf("there is no part %q", a.Part)
}

// heard takes the lines that a part writes.
type heard struct {
	mu   sync.Mutex
	hear func(message) // nil: nobody listens any more
	rest []byte
	end  *message
}

func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rest = append(h.rest, b...)
	for h.hear != nil {
		line, rest, whole := bytes.Cut(h.rest, []byte("\n"))
		if !whole {
			break
		}
		var m message
		if json.Unmarshal(line, &m) != nil {
			m = message{Say: string(line)} // not the part's own
		}
		if m.End {
			h.end = &m
		} else {
			h.hear(m)
		}
		h.rest = rest
	}
	return len(b), nil
}

// close returns the last message, nil if the part has not come to it.
func (h *heard) close() *message {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hear = nil
	return h.end
}

// start runs a part in a process, and returns when that has ended. hear gets
// what it says. The error says why the part failed; marks are the caller's.
func (a assignment) start(ctx context.Context, hear func(message), errOut io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.Limit+a.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, partCommand)
	in, err := cmd.StdinPipe() // stays open: its end makes the part leave
	if err != nil {
		return err
	}
	said := &heard{hear: hear}
	cmd.Stdout = said
	cmd.Stderr = errOut
	cmd.Cancel = in.Close
	cmd.WaitDelay = a.Patience
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := in.Write(append(text, '\n')); err != nil {
		_ = cmd.Process.Kill()
	}
	err = cmd.Wait()
	end := said.close()
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == exitHangs:
		return fmt.Errorf("it has not ended within %v", a.Limit)
	case ctx.Err() != nil:
		return fmt.Errorf("it has not ended within %v, and its watchdog did not end it either", a.Limit)
	case end != nil && end.Error != "":
		return errors.New(end.Error)
	case end == nil:
		return fmt.Errorf("its process ended in the middle: %v", cmd.ProcessState)
	}
	return err
}
