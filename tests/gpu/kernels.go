package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/backend/backendtest"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/quant/quanttest"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
	"github.com/gopccl/gopccl/internal/determinism"
)

// reducer is the device as a backend. It panics with errors of the device,
// which have no other way through a suite.
type reducer struct{ *determinism.GPU }

func (r reducer) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	if err := r.GPU.Reduce(t, op, dst, a, b); err != nil {
		panic(err)
	}
}

func (r reducer) Finalize(t dtype.Type, dst []byte, world int) {
	if err := r.GPU.Finalize(t, dst, world); err != nil {
		panic(err)
	}
}

// coder is a quantizer whose arithmetic the device does; it panics likewise.
type coder struct {
	quant.Quantizer
	gpu *determinism.GPU
}

func (c coder) Params(t, q dtype.Type, src []byte) quant.Meta {
	m, err := c.gpu.Params(c.Quantizer, t, q, src)
	if err != nil {
		panic(err)
	}
	return m
}

func (c coder) Quantize(t, q dtype.Type, m *quant.Meta, dst, src []byte) {
	if err := c.gpu.Quantize(c.Quantizer, t, q, m, dst, src); err != nil {
		panic(err)
	}
}

func (c coder) Dequantize(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, q []byte) {
	if err := c.gpu.Dequantize(c.Quantizer, t, qt, m, op, dst, q); err != nil {
		panic(err)
	}
}

// suites holds the device against the checksums of the suites that backends and
// quantizers pass, and against the oracle at every length.
func suites(j *job) (err error) {
	gpu, err := determinism.OpenGPU(j.driver, j.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gpu.Close()) }()
	defer func() {
		if failure, ok := recover().(error); ok {
			err = failure
		}
	}()
	oracle, _, err := backend.Select("cpu_generic")
	if err != nil {
		return err
	}
	differ := map[string]any{}
	ran := 1
	if got, want := backendtest.Fingerprint(reducer{gpu}), backendtest.Fingerprint(oracle); got != want {
		differ["backend"] = fmt.Sprintf("%#x, not %#x", got, want)
	}
	for _, name := range quant.Names() {
		q, err := quant.Lookup(name)
		if err != nil {
			return err
		}
		if _, own := q.(quant.Formed); q == nil || own {
			continue // no kernel of a device knows forms of a quantizer's own
		}
		ran++
		got, err := quanttest.Fingerprint(coder{q, gpu})
		if err != nil {
			return err
		}
		if want, err := quanttest.Fingerprint(q); err != nil || got != want {
			differ[name] = fmt.Sprintf("%#x, not %#x (%v)", got, want, err)
		}
	}
	if err := j.tell(exactly("suites", fmt.Sprintf("checksums of %d suites that differ", ran), len(differ), 0, differ)); err != nil {
		return err
	}
	cases, wrong, err := everyLength(j, gpu, oracle)
	if err != nil {
		return err
	}
	return j.tell(exactly("suites", fmt.Sprintf("%d lengths and addresses that differ", cases), wrong, 0, nil))
}

// everyLength compares operations on short vectors of all lengths, at changing
// addresses, bit by bit.
func everyLength(j *job, gpu *determinism.GPU, oracle backend.Backend) (cases, wrong int, err error) {
	rng := rand.New(rand.NewPCG(5, 6))
	vector := func(t dtype.Type, n int) []byte {
		offset := rng.IntN(4) * t.Size()
		b := make([]byte, offset+n*t.Size()+16)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b[offset : offset+n*t.Size()]
	}
	for t := range dtype.Type(dtype.NumTypes) {
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			for n := range pick(j, 2100, 8) {
				if err := j.ctx.Err(); err != nil {
					return cases, wrong, err
				}
				a, b, want, got := vector(t, n), vector(t, n), vector(t, n), vector(t, n)
				oracle.Reduce(t, op, want, a, b)
				if err := gpu.Reduce(t, op, got, a, b); err != nil {
					return cases, wrong, err
				}
				cases++
				if !bytes.Equal(want, got) {
					wrong++
				}
			}
		}
	}
	return cases, wrong, nil
}

// bits is `gopccl verify determinism`.
func bits(j *job) (err error) {
	gpu, err := determinism.OpenGPU(j.driver, j.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gpu.Close()) }()
	list, _, err := determinism.CPUs()
	if err != nil {
		return err
	}
	plan := determinism.Plan{
		Reference: list[0], Others: []determinism.Machine{gpu},
		Elements: pick(j, 1<<20, 12), Step: pick(j, uint64(1), uint64(1<<24)),
	}
	rows, different := 0, 0
	_, err = plan.Run(j.ctx, func(r determinism.Row) error {
		rows++
		if !r.OK {
			different++
		}
		if !r.OK || r.Check == "exp" {
			j.say("%-10s %-32s on %-28s %22s  wanted %s (%s), %d differ", r.Check, r.Case, r.On, r.Value, r.Want, r.Against, r.Differ)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return j.tell(exactly("determinism", "comparisons that differ", different, 0, map[string]any{"comparisons": rows}))
}

// hashLimit is what the hash reaches of the bandwidth of a kernel that only reads.
const hashLimit = 0.85

// hashSpeed times the hash and a kernel that reads the same bytes, in turns,
// with events on the device, and compares the hash of a part with the processor's.
func hashSpeed(j *job) (err error) {
	o, err := newOwner(j.driver, j.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.release()) }()
	n := pick(j, 8<<30, 100_000)
	free := uint64(0)
	if err := o.do(func() (err error) {
		free, _, err = j.driver.MemInfo()
		return err
	}); err != nil {
		return err
	}
	for uint64(n)+1<<28 > free && n > 1<<20 { // smaller devices have to do with less
		n /= 2
	}
	memory, err := o.alloc(n + kernels.HashScratch + kernels.ParityBytes + 64)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.free(memory)) }()
	host := make([]byte, pick(j, 64<<20, n))
	for i := range host {
		host[i] = byte(i * i >> 7)
	}
	var hashes, reads []float64
	sum := uint32(0)
	err = o.do(func() (err error) {
		for at := 0; at < n; at += len(host) {
			part := host[:min(len(host), n-at)]
			if err := j.driver.CopyToDevice(driver.Ptr(memory.Ptr)+driver.Ptr(at), part, 0); err != nil {
				return err
			}
		}
		k, err := kernels.Load(j.driver, j.device, kernels.Hashing, kernels.Verification)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, k.Unload()) }()
		src := driver.Ptr(memory.Ptr)
		work := (src + driver.Ptr(n) + 15) / 16 * 16
		for range pick(j, 7, 2) {
			h, err := timed(j.driver, func() error { return k.Hash(work+kernels.HashScratch, work, src, uint64(n), 0) })
			if err != nil {
				return err
			}
			r, err := timed(j.driver, func() error {
				_, err := k.ReadParity(work, src, uint64(n), 0)
				return err
			})
			if err != nil {
				return err
			}
			hashes, reads = append(hashes, h), append(reads, r)
		}
		if err := k.Hash(work+kernels.HashScratch, work, src, uint64(len(host)), 0); err != nil {
			return err
		}
		var word [4]byte
		if err := j.driver.CopyToHost(word[:], work+kernels.HashScratch, 0); err != nil {
			return err
		}
		err = j.driver.StreamSynchronize(0)
		sum = binary.LittleEndian.Uint32(word[:])
		return err
	})
	if err != nil {
		return err
	}
	if want := digest.SimpleHash(host); sum != want {
		return fmt.Errorf("hash of %d bytes is %#x, the processor's %#x", len(host), sum, want)
	}
	hashes, reads = hashes[1:], reads[1:] // the first ones warm up
	ratios := make([]float64, len(hashes))
	for i := range ratios {
		ratios[i] = reads[i] / hashes[i]
	}
	rate := func(s []float64) float64 { return float64(n) / 1e9 / max(median(s), 1e-12) }
	ratio := median(ratios)
	return j.tell(Mark{
		Part: "hash", Name: fmt.Sprintf("bandwidth of the hash / of reading, %d bytes", n), Value: ratio, Limit: hashLimit, Least: true,
		Judged: !j.small, OK: j.small || ratio >= hashLimit,
		Detail: map[string]any{"hash_gb_s": rate(hashes), "read_gb_s": rate(reads)},
	})
}

// timed returns the seconds that the device took for what f queues.
func timed(d driver.Driver, f func() error) (seconds float64, err error) {
	var events [2]driver.Event
	for i := range events {
		if events[i], err = d.EventCreate(true); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, d.EventDestroy(events[i])) }()
	}
	if err := d.EventRecord(events[0], 0); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	if err := d.EventRecord(events[1], 0); err != nil {
		return 0, err
	}
	if err := d.EventSynchronize(events[1]); err != nil {
		return 0, err
	}
	t, err := d.Elapsed(events[0], events[1])
	return t.Seconds(), err
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return 0
	}
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}
