package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gopccl/gopccl/tests/internal/process"
)

// An abortable collective has to wake and to be woken: it costs calls of futex
// (Linux) and, as each depends on the scheduler, variance. Both are counted here.

const futexEvent = "syscalls:sys_enter_futex"

// pids of the ranks of a session.
type pids interface{ pids() []int }

func (c *crew) pids() (out []int) {
	for _, w := range c.ranks {
		out = append(out, w.cmd.Process.Pid)
	}
	return out
}

func (s *originalSession) pids() []int { return s.w.PIDs() }

// counter counts calls of futex of some processes, with perf.
type counter struct {
	cmd *exec.Cmd
	ctl *os.File
	ack *bufio.Reader
	out bytes.Buffer
	end []*os.File
}

// startCounter attaches to the processes with all their threads, present and future.
func startCounter(ctx context.Context, ids []int) (c *counter, err error) {
	c = &counter{}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	orders, ctl, err := os.Pipe()
	if err != nil {
		return c, err
	}
	c.ctl, c.end = ctl, append(c.end, ctl)
	answers, ack, err := os.Pipe()
	if err != nil {
		orders.Close()
		return c, err
	}
	c.ack, c.end = bufio.NewReader(answers), append(c.end, answers)
	var list []string
	for _, id := range ids {
		list = append(list, strconv.Itoa(id))
	}
	c.cmd = exec.CommandContext(ctx, "perf", "stat", "-x,", "-e", futexEvent, "--delay=-1", "--control=fd:3,4", "-p", strings.Join(list, ","))
	c.cmd.ExtraFiles = []*os.File{orders, ack}
	c.cmd.Stderr = &c.out
	err = process.Begin(c.cmd)
	orders.Close() // an end of perf is an end of both
	ack.Close()
	if err != nil {
		c.cmd = nil
		return c, err
	}
	return c, c.say("enable")
}

func (c *counter) say(what string) error {
	if _, err := c.ctl.WriteString(what + "\n"); err != nil {
		return err
	}
	timer := time.AfterFunc(10*time.Second, func() { c.cmd.Process.Kill() })
	defer timer.Stop()
	line, err := c.ack.ReadString('\n')
	if err == nil && !strings.Contains(line, "ack") {
		err = fmt.Errorf("perf answered %q to %s", line, what)
	}
	return err
}

// stop returns the number of calls since the start.
func (c *counter) stop() (int, error) {
	err := c.say("disable")
	c.cmd.Process.Signal(os.Interrupt)
	c.ctl.Close()
	timer := time.AfterFunc(10*time.Second, func() { c.cmd.Process.Kill() })
	c.cmd.Wait()
	timer.Stop()
	c.cmd = nil
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(c.out.String()) {
		if f := strings.Split(line, ","); len(f) > 2 && f[2] == futexEvent {
			return strconv.Atoi(f[0])
		}
	}
	return 0, fmt.Errorf("perf counted nothing: %s", strings.TrimSpace(c.out.String()))
}

func (c *counter) close() {
	if c.cmd != nil {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	}
	for _, f := range c.end {
		f.Close()
	}
}

// spread is the standard deviation by the mean.
func spread(v []float64) float64 {
	var mean, sum float64
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		sum += (x - mean) * (x - mean)
	}
	if len(v) < 2 || mean == 0 {
		return 0
	}
	return math.Sqrt(sum/float64(len(v)-1)) / mean
}

// measureFutexes prints, for the jobs of one operation at a time, calls of futex
// and the spread of the times of those that let themselves be counted.
func measureFutexes(ctx context.Context, o options) error {
	jobs, err := o.jobs()
	if err != nil {
		return err
	}
	all, err := contestants(ctx, o)
	if err != nil {
		return err
	}
	fmt.Println("| | | futex calls per MB | per all-reduce | median | p99 | spread |\n|---|---|---:|---:|---:|---:|---:|")
	for _, j := range jobs {
		for _, c := range all {
			if !c.can(j) || c.name == nameFloor {
				continue
			}
			if err := countFutexes(ctx, o, j, c); err != nil {
				return fmt.Errorf("%s, %v: %w", c.name, j, err)
			}
		}
	}
	return nil
}

func countFutexes(ctx context.Context, o options, j job, c contestant) (err error) {
	s, err := c.start(ctx, j.World)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	p, ok := s.(pids)
	if !ok {
		return nil
	}
	probe, err := s.run(ctx, j, 1)
	if err != nil {
		return err
	}
	rounds := min(max(20, int(o.turn.Seconds()*float64(o.turns)/max(probe.median(), 1e-6))), maxRounds)
	n, err := startCounter(ctx, p.pids())
	if err != nil {
		return fmt.Errorf("count calls (perf, and the right to use it, are needed): %w", err)
	}
	defer n.close()
	t, err := s.run(ctx, j, rounds)
	if err != nil {
		return err
	}
	calls, err := n.stop()
	if err != nil {
		return err
	}
	// The ranks do one round more, which warms up, and a small one before each.
	done := float64(rounds + 1)
	megabytes := float64(j.Bytes) * float64(j.Concurrent) * float64(j.World) * done / 1e6
	slices.Sort(t.Seconds)
	milli := func(i int) string { return time.Duration(t.Seconds[i] * 1e9).Round(time.Microsecond).String() }
	fmt.Printf("| %v | %s | %.2f | %.1f | %s | %s | %.2f |\n", j, c.name, float64(calls)/megabytes, float64(calls)/done/float64(j.World),
		milli(len(t.Seconds)/2), milli(min(len(t.Seconds)*99/100, len(t.Seconds)-1)), spread(t.Seconds))
	return nil
}
