package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda"
)

const world = 2

// runMaster starts a master on the loopback interface.
func runMaster(ctx context.Context) (addr string, stop func(), err error) {
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	return m.Addr().String(), func() {
		cancel()
		<-done
		m.Close()
	}, nil
}

// join connects to a master and lets others in until all are there.
func join(ctx context.Context, addr string) (*core.Communicator, error) {
	c, err := core.Connect(ctx, core.Options{Master: addr, ListenHost: "127.0.0.1", PortBase: -1})
	for err == nil && c.Attributes().LocalWorldSize < world {
		err = c.UpdateTopology(ctx)
	}
	if err != nil && c != nil {
		err = errors.Join(err, c.Close())
	}
	return c, err
}

// order tells a peer process what to measure, report what it measured: a line
// of JSON each.
type order struct {
	Driver        string
	Device        int
	Bytes, Rounds int
}

type report struct{ Host, Device []float64 } // seconds of each round

// reduceLimit is how much longer an all-reduce of device memory takes than one of host memory.
const reduceLimit = 1.15

// reduceSpeed times all-reduces of float32 between two processes, of host and
// device memory in turns. A round takes as long as its slower peer.
func reduceSpeed(j *job) (err error) {
	addr, stop, err := runMaster(j.ctx)
	if err != nil {
		return err
	}
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o := order{j.name, j.device, pick(j, 256<<20, 64<<10), pick(j, 9, 2)}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(j.ctx, 10*time.Minute)
	defer cancel()
	type result struct {
		report
		err error
	}
	results := make(chan result, world)
	for range world {
		go func() {
			var r result
			var out bytes.Buffer
			cmd := exec.CommandContext(ctx, self, peerCommand, addr)
			cmd.Stdout, cmd.Stderr = &out, os.Stderr
			in, err := cmd.StdinPipe() // stays open: its end makes the peer leave
			if err == nil {
				err = cmd.Start()
			}
			if err == nil {
				_, err = in.Write(append(slices.Clone(text), '\n'))
				err = errors.Join(err, cmd.Wait())
			}
			if err == nil {
				err = json.Unmarshal(out.Bytes(), &r.report)
			}
			if r.err = err; err != nil {
				cancel()
			}
			results <- r
		}()
	}
	var reports []report
	for range world {
		r := <-results
		err = errors.Join(err, r.err)
		reports = append(reports, r.report)
	}
	if err != nil {
		return err
	}
	var host, dev, ratios []float64
	for i := range o.Rounds {
		h, d := 0.0, 0.0
		for _, r := range reports {
			h, d = max(h, r.Host[i]), max(d, r.Device[i])
		}
		host, dev, ratios = append(host, h), append(dev, d), append(ratios, d/h)
	}
	ratio := median(ratios)
	return j.tell(Mark{
		Part: "reduce", Name: fmt.Sprintf("time on device / host, %d bytes, 2 processes", o.Bytes), Value: ratio, Limit: reduceLimit,
		Judged: !j.small, OK: j.small || ratio <= reduceLimit,
		Detail: map[string]any{"host_s": median(host), "device_s": median(dev)},
	})
}

// peer is the body of a process of reduceSpeed.
func peer(ctx context.Context, addr string, in io.Reader, out io.Writer) (err error) {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("no order: %w", err)
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, lines)
		leave()
	}()
	open, err := opener(o.Driver)
	if err != nil {
		return err
	}
	d, err := open()
	if err != nil {
		return err
	}
	platform := cuda.On(d, device.Settings{})
	defer device.Replace(device.CUDA, platform)()
	defer func() { err = errors.Join(err, platform.Close()) }()
	mine, err := newOwner(d, o.Device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mine.release()) }()
	src, dst := make([]float32, o.Bytes/4), make([]float32, o.Bytes/4)
	for i := range src {
		src[i] = float32(i%1000) / 8
	}
	var buffers [2]core.DeviceBuffer
	for i := range buffers {
		if buffers[i], err = mine.alloc(4 * len(src)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, mine.free(buffers[i])) }()
	}
	if err := mine.write(buffers[0], dtype.AsBytes(src)); err != nil {
		return err
	}
	c, err := join(ctx, addr)
	if err != nil {
		return err
	}
	defer c.Close()

	ways := []core.Reduce{
		core.ReduceOf(dst, src, core.Sum),
		core.ReduceDevice(buffers[1], buffers[0], dtype.Float32, core.Sum),
	}
	var r report
	start := make([]float32, 1)
	for round := range o.Rounds + 1 {
		for way, reduce := range ways {
			if _, err := core.AllReduceSlice(ctx, c, start, start, core.Max); err != nil { // all begin together
				return err
			}
			begin := time.Now()
			if _, err := c.AllReduce(ctx, reduce); err != nil {
				return err
			}
			took := time.Since(begin).Seconds()
			if round == 0 { // warms up, and is verified
				if way == 1 {
					if err := mine.read(dtype.AsBytes(dst), buffers[1]); err != nil {
						return err
					}
				}
				for i, v := range dst {
					if v != world*src[i] {
						return fmt.Errorf("element %d is %v, want %v", i, v, world*src[i])
					}
				}
				clear(dst)
				continue
			}
			if way == 0 {
				r.Host = append(r.Host, took)
			} else {
				r.Device = append(r.Device, took)
			}
		}
	}
	return json.NewEncoder(out).Encode(r)
}

// aborts cancels in-place all-reduces of device memory at random moments and
// looks at what is on the device afterwards, until so many were aborted. Then
// nothing may be left that belongs to the engine.
func aborts(j *job) (err error) {
	target, n := pick(j, 1000, 6), pick(j, 1<<20, 5000)
	d := newCounting(j.driver)
	p, err := newPair(j, d, device.Settings{})
	if err != nil {
		return err
	}
	var buffers [world]core.DeviceBuffer
	for i := range buffers {
		if buffers[i], err = p.owner.alloc(4 * n); err != nil {
			return errors.Join(err, p.close())
		}
	}
	aborted, passed, wrong, err := j.abortAll(p.owner, p.comms, buffers, target, n)
	if err = errors.Join(err, p.owner.free(buffers[:]...), p.close()); err != nil {
		return err
	}
	counts := map[string]any{"aborted": aborted, "not_aborted": passed}
	if err := j.tell(exactly("aborts", fmt.Sprintf("aborted operations, %d bytes", 4*n), aborted, target, counts)); err != nil {
		return err
	}
	if err := j.tell(exactly("aborts", "buffers that are not as before, or not the sum", wrong, 0, nil)); err != nil {
		return err
	}
	left, detail := d.leaks()
	return j.tell(exactly("aborts", "things left on the device", left, 0, detail))
}

func (j *job) abortAll(mine *owner, comms [world]*core.Communicator, buffers [world]core.DeviceBuffer, target, n int) (aborted, passed, wrong int, err error) {
	rng := rand.New(rand.NewPCG(1, 2))
	var before [world][]float32
	for i := range before {
		before[i] = make([]float32, n)
	}
	after := make([]float32, n)
	usual := 2 * time.Millisecond // that an operation takes
	for round := 0; aborted < target && round < 50*target; round++ {
		if err := j.ctx.Err(); err != nil {
			return aborted, passed, wrong, err
		}
		var handles [world]*core.Handle
		for i := range handles {
			for k := range before[i] {
				before[i][k] = math.Float32frombits(rng.Uint32() &^ 0x40000000) // small ones: all sums are numbers
			}
			if err := mine.write(buffers[i], dtype.AsBytes(before[i])); err != nil {
				return aborted, passed, wrong, err
			}
		}
		begin := time.Now()
		launched := make(chan error, world)
		for i := range handles {
			go func() {
				var err error
				r := core.ReduceDevice(buffers[i], buffers[i], dtype.Float32, core.Sum)
				r.Tag = uint64(round)
				handles[i], err = comms[i].AllReduceAsync(j.ctx, r)
				launched <- err
			}()
		}
		for range handles {
			err = errors.Join(err, <-launched)
		}
		if err != nil {
			return aborted, passed, wrong, err
		}
		known := make(chan struct{}, world)
		for _, h := range handles {
			h.Notify(func() { known <- struct{}{} })
		}
		cut := time.AfterFunc(time.Duration(rng.Float64()*float64(usual)), handles[round%world].Cancel)
		for range handles {
			<-known
		}
		// The peer that gives up may do so when the other one's vote stands:
		// then its own operation alone is taken back.
		var summed [world]bool
		for i, h := range handles {
			_, v := h.Wait(context.Background())
			if summed[i] = v == nil; v != nil {
				if c := errs.CodeOf(v); c != errs.RankConnectionLost && c != errs.Canceled {
					err = errors.Join(err, v)
				}
			}
		}
		cut.Stop()
		if err != nil {
			return aborted, passed, wrong, err
		}
		if slices.Contains(summed[:], false) {
			aborted++
		} else {
			passed++
			usual = (3*usual + time.Since(begin)) / 4
		}
		for i := range buffers {
			if err := mine.read(dtype.AsBytes(after), buffers[i]); err != nil {
				return aborted, passed, wrong, err
			}
			if !right(after, before, i, summed[i]) {
				wrong++
			}
		}
	}
	return aborted, passed, wrong, nil
}

// right tells whether peer i's buffer is the sum, or what it was.
func right(after []float32, before [world][]float32, i int, summed bool) bool {
	for k, v := range after {
		want := before[i][k]
		if summed {
			want = before[0][k] + before[1][k]
		}
		if math.Float32bits(v) != math.Float32bits(want) {
			return false
		}
	}
	return true
}
