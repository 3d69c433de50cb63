package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
)

// way is how all-reduces of device memory are done.
type way struct {
	name     string
	settings device.Settings
	quantize core.Quantize
}

// ways are all of them. One byte of pinned memory is not enough for anything.
func ways() []way {
	const plenty = 8 << 30
	minmax := core.Quantize{Algorithm: "minmax", Type: dtype.Uint8}
	return []way{
		{"pinned, host", device.Settings{Staging: plenty, Reduce: "host"}, core.Quantize{}},
		{"pinned, device", device.Settings{Staging: plenty, Reduce: "device"}, core.Quantize{}},
		{"pageable, host", device.Settings{Staging: 1, Reduce: "host"}, core.Quantize{}},
		{"pageable, device", device.Settings{Staging: 1, Reduce: "device"}, core.Quantize{}},
		{"minmax", device.Settings{Staging: plenty, Reduce: "host"}, minmax},
	}
}

// sample is tensors of one size: what the peers reduce, and what they get.
type sample struct {
	src, want [world][]byte
	host      float64 // seconds that it takes in the host's memory
}

// allSizes times all-reduces between two peers of this process, of device
// memory in every way, in place and not, beside the host's, and compares every
// result with that of the host's memory, bit by bit.
func allSizes(j *job) (err error) {
	list := pick(j, []int{4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30}, []int{4 << 10, 20_000})
	if list, err = fitting(j, list); err != nil {
		return err
	}
	took := make([]map[string]any, len(list))
	for i := range took {
		took[i] = map[string]any{}
	}
	wrong, operations := 0, 0
	for _, w := range ways() {
		p, err := newPair(j, j.driver, w.settings)
		if err != nil {
			return err
		}
		for i, n := range list {
			ms, bad, err := p.size(j, w, n)
			if err != nil {
				return errors.Join(fmt.Errorf("%s, %d bytes: %w", w.name, n, err), p.close())
			}
			for name, v := range ms {
				took[i][name] = v
				operations++
			}
			wrong += bad
		}
		if n := p.platform.Stats().Pageable; n > 0 {
			j.say("%s: %d times in ordinary memory", w.name, n)
		}
		if err := p.close(); err != nil {
			return err
		}
	}
	for i, n := range list {
		name := fmt.Sprintf("all-reduce of %d bytes, out of place", n)
		ms, _ := took[i]["pinned, host, out"].(float64)
		if err := j.tell(measured("sizes", name, ms, "ms", took[i])); err != nil {
			return err
		}
	}
	return j.tell(exactly("sizes", fmt.Sprintf("of %d, results that are not those of host memory", operations), wrong, 0, nil))
}

// fitting returns the sizes that the device has room for.
func fitting(j *job, list []int) ([]int, error) {
	o, err := newOwner(j.driver, j.device)
	if err != nil {
		return nil, err
	}
	free := uint64(0)
	err = o.do(func() (err error) {
		free, _, err = j.driver.MemInfo()
		return err
	})
	fits := slices.DeleteFunc(list, func(n int) bool { return uint64(n)*3*world > free })
	return fits, errors.Join(err, o.release())
}

// size does all of one size in one way, and returns the milliseconds of each
// form, and how many of them had a wrong result.
func (p *pair) size(j *job, w way, n int) (ms map[string]float64, wrong int, err error) {
	s := sample{}
	for i := range s.src {
		v := make([]float32, n/4)
		for k := range v {
			v[k] = float32(uint32(k*(i+3))*2654435761>>8)/1024 - 5000
		}
		s.src[i], s.want[i] = dtype.AsBytes(v), make([]byte, n)
	}
	rounds := pick(j, 7, 1)
	if n >= 64<<20 {
		rounds = 2
	}
	ms = map[string]float64{}
	if s.host, err = p.times(rounds, func(i int) core.Reduce {
		return core.Reduce{Src: s.src[i], Dst: s.want[i], DType: dtype.Float32, Op: core.Sum, Quantize: w.quantize}
	}, nil); err != nil {
		return nil, 0, err
	}
	ms[w.name+", in host memory"] = 1e3 * s.host
	for _, form := range []string{"out", "in"} {
		t, ok, err := p.form(w, &s, rounds, form == "in")
		if err != nil {
			return nil, wrong, err
		}
		if !ok {
			wrong++
			j.say("%s, %s of place, %d bytes: the result is wrong", w.name, form, n)
		}
		ms[w.name+", "+form] = 1e3 * t
	}
	return ms, wrong, nil
}

// form times all-reduces of device memory, and says whether the bits are right.
func (p *pair) form(w way, s *sample, rounds int, inPlace bool) (seconds float64, right bool, err error) {
	n := len(s.src[0])
	var from, to [world]core.DeviceBuffer
	var all []core.DeviceBuffer
	defer func() { err = errors.Join(err, p.owner.free(all...)) }()
	for i := range world {
		if from[i], err = p.owner.alloc(n); err != nil {
			return 0, false, err
		}
		all = append(all, from[i])
		if to[i] = from[i]; !inPlace {
			if to[i], err = p.owner.alloc(n); err != nil {
				return 0, false, err
			}
			all = append(all, to[i])
		}
	}
	seconds, err = p.times(rounds, func(i int) core.Reduce {
		r := core.ReduceDevice(to[i], from[i], dtype.Float32, core.Sum)
		r.Quantize = w.quantize
		return r
	}, func(i int) error { return p.owner.write(from[i], s.src[i]) })
	if err != nil {
		return 0, false, err
	}
	got := make([]byte, n)
	for i := range to {
		if err := p.owner.read(got, to[i]); err != nil {
			return 0, false, err
		}
		if !bytes.Equal(got, s.want[i]) {
			return seconds, false, nil
		}
	}
	return seconds, true, nil
}

// times returns how long the all-reduce takes, the median of some rounds after
// one that warms up. prepare is called for every peer before each.
func (p *pair) times(rounds int, reduce func(i int) core.Reduce, prepare func(i int) error) (float64, error) {
	var list []float64
	for round := range rounds + 1 {
		if prepare != nil {
			if err := p.each(prepare); err != nil {
				return 0, err
			}
		}
		begin := time.Now()
		if err := p.each(func(i int) error {
			_, err := p.comms[i].AllReduce(p.ctx, reduce(i))
			return err
		}); err != nil {
			return 0, err
		}
		if round > 0 {
			list = append(list, time.Since(begin).Seconds())
		}
	}
	return median(list), nil
}
