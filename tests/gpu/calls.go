package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
)

// driverCalls measures the calls of the driver whose costs decide how staging
// is done, and asks it about addresses on a thread without a context.
func driverCalls(j *job) (err error) {
	if err := loads(j); err != nil {
		return err
	}
	o, err := newOwner(j.driver, j.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.release()) }()
	for _, measure := range []func(*job, *owner) error{pinning, copies, wakeUps, addresses} {
		if err := measure(j, o); err != nil {
			return err
		}
	}
	return nil
}

// loadCommand is the first argument of a process that loads all kernels.
const loadCommand = "gpu-load"

// load is what such a process has taken, in seconds.
type load struct{ Open, Context, Kernels float64 }

// loads loads the kernels in processes of their own: without the cache of the
// driver, with an empty one, and with what that has left there.
func loads(j *job) error {
	cache, err := os.MkdirTemp("", "gpucheck")
	if err != nil {
		return err
	}
	defer os.RemoveAll(cache)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	line, err := json.Marshal(assignment{Driver: j.name, Device: j.device})
	if err != nil {
		return err
	}
	detail := map[string]any{}
	warm := 0.0
	for _, how := range []struct{ name, env string }{
		{"no cache", "CUDA_CACHE_DISABLE=1"}, {"empty cache", "CUDA_CACHE_DISABLE=0"}, {"warm cache", "CUDA_CACHE_DISABLE=0"},
	} {
		cmd := exec.CommandContext(j.ctx, self, loadCommand)
		cmd.Env = append(os.Environ(), how.env, "CUDA_CACHE_PATH="+cache)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		in, err := cmd.StdinPipe() // stays open: its end ends the process
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			_, err = in.Write(append(slices.Clone(line), '\n'))
			err = errors.Join(err, cmd.Wait())
		}
		var l load
		if err == nil {
			err = json.Unmarshal(out.Bytes(), &l)
		}
		if err != nil {
			return fmt.Errorf("load kernels, %s: %w", how.name, err)
		}
		detail[how.name], warm = l, 1e3*l.Kernels
	}
	return j.tell(measured("calls", "kernels loaded from the driver's cache", warm, "ms", detail))
}

// loadAll is the body of such a process.
func loadAll(in io.Reader, out io.Writer) error {
	var a assignment
	lines := json.NewDecoder(in)
	if err := lines.Decode(&a); err != nil {
		return err
	}
	go func() {
		_ = lines.Decode(&struct{}{})
		os.Exit(exitOrphan)
	}()
	open, err := opener(a.Driver)
	if err != nil {
		return err
	}
	var l load
	begin := time.Now()
	lap := func(to *float64) { *to, begin = time.Since(begin).Seconds(), time.Now() }
	d, err := open()
	if err != nil {
		return err
	}
	lap(&l.Open)
	o, err := newOwner(d, a.Device)
	if err != nil {
		return err
	}
	lap(&l.Context)
	err = o.do(func() error {
		k, err := kernels.Load(d, a.Device)
		if err != nil {
			return err
		}
		lap(&l.Kernels)
		return k.Unload()
	})
	return errors.Join(err, o.release(), json.NewEncoder(out).Encode(l))
}

// pinning measures how long pinned memory takes to get and to give back.
func pinning(j *job, o *owner) error {
	get, give := map[string]any{}, map[string]any{}
	last := 0.0
	for _, n := range pick(j, []int{64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30}, []int{4 << 10, 64 << 10}) {
		if err := o.do(func() error {
			begin := time.Now()
			b, err := j.driver.HostAlloc(n)
			if err != nil {
				return err
			}
			last = ms(begin)
			get[fmt.Sprint(n)] = last
			begin = time.Now()
			err = j.driver.HostFree(b)
			give[fmt.Sprint(n)] = ms(begin)
			return err
		}); err != nil {
			return err
		}
	}
	return j.tell(measured("calls", "the largest piece of pinned memory allocated", last, "ms", map[string]any{"alloc_ms": get, "free_ms": give}))
}

func ms(begin time.Time) float64 { return 1e3 * time.Since(begin).Seconds() }

// copies measures the bandwidth of copies by their size, in both directions,
// of pinned and ordinary memory.
func copies(j *job, o *owner) (err error) {
	pieces := pick(j, []int{64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}, []int{4 << 10, 16 << 10})
	total := pick(j, 256<<20, 32<<10)
	area := slices.Max(pieces)
	memory, err := o.alloc(area)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.free(memory)) }()
	detail, best := map[string]any{}, 0.0
	err = o.do(func() (err error) {
		pinned, err := j.driver.HostAlloc(area)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, j.driver.HostFree(pinned)) }()
		at := driver.Ptr(memory.Ptr)
		for kind, host := range map[string][]byte{"pinned": pinned, "pageable": make([]byte, area)} {
			for _, n := range pieces {
				for way, copied := range map[string]func(b []byte) error{
					"to_device": func(b []byte) error { return j.driver.CopyToDevice(at, b, 0) },
					"to_host":   func(b []byte) error { return j.driver.CopyToHost(b, at, 0) },
				} {
					queue := func() error {
						for range total / n {
							if err := copied(host[:n]); err != nil {
								return err
							}
						}
						return nil
					}
					if err := queue(); err != nil { // warms up
						return err
					}
					t, err := timed(j.driver, queue)
					if err != nil {
						return err
					}
					rate := float64(total/n*n) / 1e9 / max(t, 1e-12)
					detail[fmt.Sprintf("%s_%s_%d", kind, way, n)] = rate
					if kind == "pinned" {
						best = max(best, rate)
					}
				}
			}
			runtime.KeepAlive(host)
		}
		return nil
	})
	return errors.Join(err, j.tell(measured("calls", "copies of pinned memory, the fastest", best, "GB/s", detail)))
}

// wakeUps measures how long after a small copy a thread goes on that sleeps
// until its event, and one that asks for it all the time.
func wakeUps(j *job, o *owner) (err error) {
	memory, err := o.alloc(4096)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.free(memory)) }()
	us := map[string]float64{}
	err = o.do(func() (err error) {
		b, err := j.driver.HostAlloc(4096)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, j.driver.HostFree(b)) }()
		e, err := j.driver.EventCreate(false)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, j.driver.EventDestroy(e)) }()
		for name, wait := range map[string]func() error{
			"asleep": func() error { return j.driver.EventSynchronize(e) },
			"asking": func() error {
				for {
					done, err := j.driver.EventDone(e)
					if done || err != nil {
						return err
					}
					if err := j.ctx.Err(); err != nil {
						return err
					}
				}
			},
		} {
			var list []float64
			for range pick(j, 300, 3) {
				begin := time.Now()
				if err := j.driver.CopyToHost(b, driver.Ptr(memory.Ptr), 0); err != nil {
					return err
				}
				if err := j.driver.EventRecord(e, 0); err != nil {
					return err
				}
				if err := wait(); err != nil {
					return err
				}
				list = append(list, 1e3*ms(begin))
			}
			us[name] = median(list)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return j.tell(measured("calls", "4 KiB to the host until a sleeper goes on", us["asleep"], "us", map[string]any{"asking_us": us["asking"]}))
}

// addresses asks the driver, on a thread that has no context, what addresses
// are: the engine is called on any thread of a trainer.
func addresses(j *job, o *owner) (err error) {
	memory, err := o.alloc(8 << 20 >> pick(j, 0, 6))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.free(memory)) }()
	freed, err := o.alloc(32 << 20 >> pick(j, 0, 8))
	if err == nil {
		err = o.free(freed)
	}
	if err != nil {
		return err
	}
	var pinned []byte
	if err := o.do(func() (err error) {
		pinned, err = j.driver.HostAlloc(1 << 16)
		return err
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.do(func() error { return j.driver.HostFree(pinned) })) }()
	plain := make([]byte, 1<<16)
	address := func(b []byte) driver.Ptr { return driver.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

	type answer struct {
		at     driver.Ptr
		want   driver.Kind
		device bool
	}
	detail, wrong := map[string]any{}, 0
	naked := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this function
		c, err := j.driver.Current()
		if err == nil && c != 0 {
			err = fmt.Errorf("this thread has context %#x", uintptr(c))
		}
		for name, a := range map[string]answer{
			"device": {driver.Ptr(memory.Ptr), driver.Device, true}, "inside": {driver.Ptr(memory.Ptr) + 64, driver.Device, true},
			"pinned": {address(pinned), driver.Host, false}, "plain": {address(plain), driver.Unknown, false},
			"freed": {driver.Ptr(freed.Ptr), driver.Unknown, false},
		} {
			const n = 100
			begin := time.Now()
			known, asked := driver.Pointer{}, error(nil)
			for range n {
				known, asked = j.driver.Pointer(a.at)
			}
			detail[name+"_us"] = 1e3 * ms(begin) / n
			if asked != nil && errors.Is(asked, &driver.Error{Result: driver.InvalidValue}) {
				known, asked = driver.Pointer{}, nil // so some drivers say that they do not know
			}
			err = errors.Join(err, asked)
			if known.Kind != a.want || a.device && known.Device != j.device {
				wrong++
				j.say("%s memory is %+v", name, known)
			}
		}
		naked <- err
	}()
	if err := <-naked; err != nil {
		return err
	}
	runtime.KeepAlive(plain)
	return j.tell(exactly("calls", "wrong answers about addresses", wrong, 0, detail))
}
