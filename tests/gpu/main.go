// Command gpu runs on a CUDA device what the other tests run through the
// interpreter, at full size and speed, and says whether it holds: the kernels
// beside the processor's, the speed of the hash, exp over all float32 patterns,
// all-reduces of device memory beside those of host memory, and many aborts
// after which device memory has to be as before. tools/gpucheck builds it with
// the tag cuda and runs it.
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
	ok, err := check(ctx, args, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(errOut, "gpucheck:", err)
		return 1
	case !ok:
		return 1
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
	// Detail is what else was measured.
	Detail map[string]any `json:"detail,omitempty"`
}

// job is what the parts are told.
type job struct {
	ctx    context.Context
	open   func() (driver.Driver, error)
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

type part struct {
	name string
	run  func(*job) error
}

// parts in the order in which they run.
var parts = []part{
	{"suites", suites},
	{"hash", hashSpeed},
	{"determinism", bits},
	{"reduce", reduceSpeed},
	{"aborts", aborts},
}

func check(ctx context.Context, args []string, out io.Writer) (ok bool, err error) {
	fs := flag.NewFlagSet("gpucheck", flag.ContinueOnError)
	fs.SetOutput(out)
	name := fs.String("driver", "system", "system, or interpreter: the kernels executed in Go")
	device := fs.Int("device", 0, "number of the CUDA device")
	small := fs.Bool("small", false, "small sizes; times are not judged")
	asJSON := fs.String("json", "", "write the marks to `FILE` as well, one JSON object a line")
	only := fs.String("only", "", "comma separated parts: suites, hash, determinism, reduce, aborts")
	if err := fs.Parse(args); err != nil {
		return false, err
	}
	j := &job{ctx: ctx, name: *name, device: *device, small: *small}
	if j.open, err = opener(*name); err != nil {
		return false, err
	}
	var wanted []string
	if *only != "" {
		wanted = strings.Split(*only, ",")
	}
	for _, w := range wanted {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == w }) {
			return false, fmt.Errorf("-only: there is no part %q", w)
		}
	}
	if j.driver, err = j.open(); err != nil {
		return false, err
	}
	if n, err := j.driver.Devices(); err != nil {
		return false, err
	} else if j.device < 0 || j.device >= n {
		return false, fmt.Errorf("there is no device %d: this machine has %d; see nvidia-smi and CUDA_VISIBLE_DEVICES", j.device, n)
	}
	var file *json.Encoder
	if *asJSON != "" {
		f, err := os.Create(*asJSON)
		if err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		file = json.NewEncoder(f)
	}
	j.say = func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	ok = true
	j.tell = func(m Mark) error {
		ok = ok && m.OK
		j.say("%s", m)
		if file != nil {
			return file.Encode(m)
		}
		return nil
	}
	if err := j.describe(); err != nil {
		return false, err
	}
	for _, p := range parts {
		if len(wanted) > 0 && !slices.Contains(wanted, p.name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		j.say("== %s", p.name)
		if err := p.run(j); err != nil {
			return false, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if ok {
		j.say("all marks hold")
	} else {
		j.say("NOT all marks hold")
	}
	return ok, nil
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
