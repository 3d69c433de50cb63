// Command gpu runs on a CUDA device what the other tests run through the
// interpreter, at full size and speed, and says whether it holds: the kernels
// beside the processor's, the speed of the hash, exp over all float32 patterns,
// all-reduces of device memory beside those of host memory, many aborts after
// which device memory has to be as before, and a device that is lost. It
// measures what calls of the driver cost, and all-reduces of all sizes.
// tools/gpucheck builds it and runs it.
//
// Each part has a process and a time limit, and one that fails, hangs or dies
// does not keep the next from running. The exit code is 0 if all marks hold, 1 if
// nothing could be run, and otherwise 10 plus the number of the first part that
// failed, in the order in which they run; the last line names all of them.
//
// With -driver interpreter -small it goes through the same motions on any
// machine, and times count for nothing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
)

// peerCommand is the first argument of a process that the all-reduces are measured with.
const peerCommand = "gpu-peer"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	if len(args) == 2 && args[0] == peerCommand {
		if err := peer(ctx, args[1], in, out); err != nil {
			fmt.Fprintln(errOut, "gpu peer:", err)
			return 1
		}
		return 0
	}
	if len(args) == 1 && args[0] == partCommand {
		return serve(ctx, in, out, errOut)
	}
	if len(args) == 1 && args[0] == loadCommand {
		if err := loadAll(in, out); err != nil {
			fmt.Fprintln(errOut, "gpu load:", err)
			return 1
		}
		return 0
	}
	failed, err := check(ctx, args, out, errOut)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(errOut, "gpucheck:", err)
		return 1
	case len(failed) > 0:
		return firstFailed + slices.IndexFunc(parts, func(p part) bool { return p.name == failed[0] })
	}
	return 0
}

// Mark is one thing that has to hold.
type Mark struct {
	Part  string  `json:"part"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// Limit is what Value is held against; Least says that it is a lower bound.
	Limit float64 `json:"limit"`
	Least bool    `json:"least,omitempty"`
	// Judged: small sizes and the interpreter say nothing about speed.
	Judged bool `json:"judged"`
	OK     bool `json:"ok"`
	// Unit is that of a value which is only measured: nothing limits it.
	Unit string `json:"unit,omitempty"`
	// Detail is what else was measured.
	Detail map[string]any `json:"detail,omitempty"`
}

// job is what the parts are told.
type job struct {
	ctx    context.Context
	driver driver.Driver
	name   string // of the driver
	device int
	small  bool
	tell   func(Mark) error
	say    func(format string, args ...any)
}

// pick returns the size of a part: that of a device, or a small one.
func pick[T any](j *job, full, small T) T {
	if j.small {
		return small
	}
	return full
}

// exactly is a mark for a count that has one right value.
func exactly(part, name string, value, want int, detail map[string]any) Mark {
	return Mark{Part: part, Name: name, Value: float64(value), Limit: float64(want), Judged: true, OK: value == want, Detail: detail}
}

// measured is a mark for a value that nothing is asked of.
func measured(part, name string, value float64, unit string, detail map[string]any) Mark {
	return Mark{Part: part, Name: name, Value: value, Unit: unit, OK: true, Detail: detail}
}

type part struct {
	name  string
	run   func(*job) error
	limit time.Duration // on a device
}

// parts in the order in which they run: what takes the device from its process
// is the last one.
var parts = []part{
	{"hash", hashSpeed, 90 * time.Second},
	{"calls", driverCalls, 2 * time.Minute},
	{"reduce", reduceSpeed, 3 * time.Minute},
	{"sizes", allSizes, 5 * time.Minute},
	{"suites", suites, 4 * time.Minute},
	{"determinism", bits, 3 * time.Minute},
	{"aborts", aborts, 4 * time.Minute},
	{"lost", lostDevice, time.Minute},
}

// firstFailed is the exit code when the first part has failed; that of the
// others follow in their order.
const firstFailed = 10

// selected returns the parts that are named, all if none is.
func selected(only string) ([]part, error) {
	if only == "" {
		return parts, nil
	}
	wanted := strings.Split(only, ",")
	for _, w := range wanted {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == w }) {
			return nil, fmt.Errorf("-only: there is no part %q", w)
		}
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !slices.Contains(wanted, p.name) }), nil
}

// check runs the parts that are asked for, each in a process, whatever becomes
// of those before. failed names those that do not hold. The error says why none
// could be run.
func check(ctx context.Context, args []string, out, errOut io.Writer) (failed []string, err error) {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	fs := flag.NewFlagSet("gpucheck", flag.ContinueOnError)
	fs.SetOutput(out)
	name := fs.String("driver", "system", "system, or interpreter: the kernels executed in Go")
	device := fs.Int("device", 0, "number of the CUDA device")
	small := fs.Bool("small", false, "small sizes; times are not judged")
	asJSON := fs.String("json", "", "write the marks to `FILE` as well, one JSON object a line")
	only := fs.String("only", "", "comma separated parts: "+strings.Join(names, ", "))
	limits := map[string]time.Duration{}
	fs.Func("limit", "what a part may take, `NAME=DURATION`, or DURATION for all; may be repeated", func(text string) (err error) {
		name, value, one := strings.Cut(text, "=")
		if !one {
			name, value = "", text
		} else if !slices.Contains(names, name) {
			return fmt.Errorf("there is no part %q", name)
		}
		limits[name], err = time.ParseDuration(value)
		return err
	})
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	list, err := selected(*only)
	if err != nil {
		return nil, err
	}
	if _, err := opener(*name); err != nil {
		return nil, err
	}
	a := assignment{Driver: *name, Device: *device, Small: *small, Limit: time.Minute, Patience: patience}
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	if err := a.start(ctx, func(m message) { say("%s", m.Say) }, errOut); err != nil {
		return nil, err
	}
	file := json.NewEncoder(io.Discard)
	if *asJSON != "" {
		f, err := os.Create(*asJSON)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		file = json.NewEncoder(f)
	}
	var summary []string
	for _, p := range list {
		a.Part, a.Limit = p.name, p.limit
		for _, name := range []string{"", p.name} {
			if t := limits[name]; t > 0 {
				a.Limit = t
			}
		}
		say("== %s", p.name)
		holds, begin := true, time.Now()
		tell := func(m Mark) {
			holds = holds && m.OK
			say("%s", m)
			err = errors.Join(err, file.Encode(m))
		}
		failure := a.start(ctx, func(m message) {
			if m.Mark == nil {
				say("%s", m.Say)
				return
			}
			tell(*m.Mark)
		}, errOut)
		tell(ended(p.name, time.Since(begin), a.Limit, failure))
		if err != nil {
			return nil, err
		}
		verdict := "ok"
		if !holds {
			verdict = "FAILED"
			failed = append(failed, p.name)
		}
		summary = append(summary, fmt.Sprintf("%-11s %-6s %7.1f s", p.name, verdict, time.Since(begin).Seconds()))
		if ctx.Err() != nil {
			break
		}
	}
	say("== in short")
	for _, line := range summary {
		say("%s", line)
	}
	if len(failed) > 0 {
		say("NOT all marks hold: %s", strings.Join(failed, ", "))
	} else {
		say("all marks hold")
	}
	return failed, ctx.Err()
}

// ended is the mark that a part gets for coming to its end.
func ended(part string, took, limit time.Duration, failure error) Mark {
	m := Mark{Part: part, Name: "seconds until it ended", Value: took.Seconds(), Limit: limit.Seconds(), Judged: true, OK: failure == nil}
	if failure != nil {
		m.Detail = map[string]any{"error": failure.Error()}
	}
	return m
}

// String is the mark as a line.
func (m Mark) String() string {
	verdict, relation := "ok", "="
	switch {
	case !m.Judged:
		verdict = "not judged"
	case !m.OK:
		verdict = "FAILED"
	}
	if m.Least {
		relation = ">="
	} else if m.Value != m.Limit {
		relation = "<="
	}
	line := fmt.Sprintf("%-11s %-46s %12.6g  (%s %g)  %s", m.Part, m.Name, m.Value, relation, m.Limit, verdict)
	if m.Unit != "" {
		line = fmt.Sprintf("%-11s %-46s %12.6g %s", m.Part, m.Name, m.Value, m.Unit)
	}
	if len(m.Detail) > 0 {
		b, err := json.Marshal(m.Detail)
		if err == nil {
			line += "  " + string(b)
		}
	}
	return line
}

// drivers are what -driver chooses from.
var drivers = map[string]func() (driver.Driver, error){
	"system":      systemDriver,
	"interpreter": func() (driver.Driver, error) { return ptxtest.New(ptxtest.Options{}), nil },
}

// opener returns how a driver is opened.
func opener(name string) (func() (driver.Driver, error), error) {
	if open, ok := drivers[name]; ok {
		return open, nil
	}
	return nil, fmt.Errorf("-driver %q is none of %v", name, slices.Sorted(maps.Keys(drivers)))
}

// describe says what the marks were made on.
func (j *job) describe() error {
	version, err := j.driver.Version()
	if err != nil {
		return err
	}
	count, err := j.driver.Devices()
	if err != nil {
		return err
	}
	if j.device < 0 || j.device >= count {
		return fmt.Errorf("there is no device %d: this machine has %d; see nvidia-smi and CUDA_VISIBLE_DEVICES", j.device, count)
	}
	device, err := j.driver.DeviceName(j.device)
	if err != nil {
		return err
	}
	major, err := j.driver.DeviceAttribute(driver.CapabilityMajor, j.device)
	if err != nil {
		return err
	}
	minor, err := j.driver.DeviceAttribute(driver.CapabilityMinor, j.device)
	if err != nil {
		return err
	}
	j.say("device %d: %s, compute capability %d.%d, driver for CUDA %d.%d", j.device, device, major, minor, version/1000, version%1000/10)
	return nil
}
