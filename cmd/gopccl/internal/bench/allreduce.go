package bench

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
)

// Reduction is one job: all-reduce sums of Count elements, Concurrent of them
// at a time.
type Reduction struct {
	Count      int
	DType      dtype.Type
	Quantize   core.Quantize
	Rounds     int // timed, after one that warms up and is verified
	Concurrent int
	InPlace    bool
}

// Bytes of one operation's buffer.
func (j Reduction) Bytes() int { return j.Count * j.DType.Size() }

func (j Reduction) run(ctx context.Context, comm *core.Communicator, index int) (Report, error) {
	var rep Report
	world := comm.Attributes().LocalWorldSize
	ops := make([]core.Reduce, j.Concurrent)
	for k := range ops {
		src := make([]byte, j.Bytes())
		for i := range j.Count {
			put(j.DType, src, i, element(i, index))
		}
		dst := src
		if !j.InPlace {
			dst = make([]byte, len(src))
		}
		ops[k] = core.Reduce{Tag: uint64(k), Src: src, Dst: dst, DType: j.DType, Op: core.Sum, Quantize: j.Quantize}
	}
	handles := make([]*core.Handle, len(ops))
	round := func() error {
		rep.Tx, rep.Rx = 0, 0
		if len(ops) == 1 {
			info, err := comm.AllReduce(ctx, ops[0])
			rep.Tx, rep.Rx = info.TxBytes, info.RxBytes
			return err
		}
		for k, op := range ops {
			h, err := comm.AllReduceAsync(ctx, op)
			if err != nil {
				return err
			}
			handles[k] = h
		}
		for _, h := range handles {
			info, err := h.Wait(ctx)
			if err != nil {
				return err
			}
			rep.Tx, rep.Rx = rep.Tx+info.TxBytes, rep.Rx+info.RxBytes
		}
		return nil
	}
	if err := round(); err != nil {
		return rep, err
	}
	for _, op := range ops {
		if err := j.verify(op.Dst, world); err != nil {
			return rep, err
		}
		rep.Hash = rep.Hash*31 + uint64(digest.SimpleHash(op.Dst))
	}
	for range j.Rounds {
		if err := barrier(ctx, comm); err != nil {
			return rep, err
		}
		c := startClock()
		if err := round(); err != nil {
			return rep, err
		}
		c.stop(&rep)
	}
	return rep, nil
}

// element is 0 or 1, so that sums are exact in every type; which one depends on
// the place in the buffer and the process.
func element(i, index int) int {
	return int(uint32(i)*2654435761+uint32(index)*40503) >> 9 & 1
}

func put(t dtype.Type, b []byte, i, v int) {
	switch t {
	case dtype.Float16:
		dtype.View[uint16](b)[i] = dtype.Float16FromFloat32(float32(v))
	case dtype.BFloat16:
		dtype.View[uint16](b)[i] = dtype.BFloat16FromFloat32(float32(v))
	case dtype.Float32:
		dtype.View[float32](b)[i] = float32(v)
	case dtype.Float64:
		dtype.View[float64](b)[i] = float64(v)
	default:
		if t.IsFloat() {
			dtype.Unhandled("bench", t)
		}
		for k := range t.Size() {
			b[i*t.Size()+k] = byte(v >> (8 * k))
		}
	}
}

// get is element i as a number; integers are not negative here, sums that wrap
// around are the caller's.
func get(t dtype.Type, b []byte, i int) float64 {
	switch t {
	case dtype.Float16:
		return float64(dtype.Float16ToFloat32(dtype.View[uint16](b)[i]))
	case dtype.BFloat16:
		return float64(dtype.BFloat16ToFloat32(dtype.View[uint16](b)[i]))
	case dtype.Float32:
		return float64(dtype.View[float32](b)[i])
	case dtype.Float64:
		return dtype.View[float64](b)[i]
	}
	if t.IsFloat() {
		dtype.Unhandled("bench", t)
	}
	v := uint64(0)
	for k := range t.Size() {
		v |= uint64(b[i*t.Size()+k]) << (8 * k)
	}
	return float64(v)
}

// lost is how much quantization may change a sum of elements over a ring.
func lost(z core.Quantize, world int) float64 {
	if z.Algorithm == "none" || z.Algorithm == "" {
		return 0
	}
	w := float64(world)
	steps := math.Ldexp(1, z.Type.Bits()-1) - 1
	if z.Type.Packed() { // half a step in every step of the ring, or nothing would be found
		return w*(w+1)/4/steps + 1e-2*w
	}
	return math.Max(w*w, 4*math.Pow(w, 1.5))/steps + 1e-4*w
}

// verify compares the sums of the warm-up round with what they must be, exactly
// or within what quantization may lose in a ring.
func (j Reduction) verify(got []byte, world int) error {
	tolerance := lost(j.Quantize, world)
	for i := range j.Count {
		want := 0
		for p := range world {
			want += element(i, p)
		}
		if s := j.DType.Size(); s == 1 { // world sizes above 255 wrap
			want &= 0xff
		}
		if v := get(j.DType, got, i); !(math.Abs(v-float64(want)) <= tolerance) {
			return fmt.Errorf("wrong result: element %d of %d is %v, want %d", i, j.Count, v, want)
		}
	}
	return nil
}

// Result is one line of `gopccl bench allreduce`. Seconds are those of the
// slowest peer in each round; cpu_s_per_gb is the processor time of all peers
// by peer and by 10^9 bytes of their buffers; rx_bytes and tx_bytes are the
// payload bytes of one peer in one round, the largest over the peers. The rates
// are those of PCCL's report: what a peer contributes by the median time, and
// all that it sends and receives by the median time.
type Result struct {
	World      int     `json:"world"`
	Bytes      int     `json:"bytes"`
	DType      string  `json:"dtype"`
	Quantize   string  `json:"quantize"`
	Wire       string  `json:"wire,omitempty"`
	Concurrent int     `json:"concurrent"`
	InPlace    bool    `json:"in_place"`
	Secure     bool    `json:"secure"`
	Pool       int     `json:"pool"`
	FrameBytes int     `json:"frame_bytes"`
	Rounds     int     `json:"rounds"`
	Median     float64 `json:"median_s"`
	Min        float64 `json:"min_s"`
	Max        float64 `json:"max_s"`
	CPUPerGB   float64 `json:"cpu_s_per_gb"`
	Rx         uint64  `json:"rx_bytes"`
	Tx         uint64  `json:"tx_bytes"`
	Contribute float64 `json:"mb_per_s"`
	Network    float64 `json:"gbit_per_s"`
}

// AllReduce measures jobs in a world of processes and calls emit for each result.
func (w World) AllReduce(ctx context.Context, jobs []Reduction, emit func(Result) error) error {
	return w.run(ctx, Order{AllReduce: jobs}, func(k int, reports []Report) error {
		j := jobs[k]
		for i, r := range reports {
			if r.Hash != reports[0].Hash {
				return fmt.Errorf("peers 0 and %d hold different results", i)
			}
		}
		t := combine(reports)
		gigabytes := float64(j.Bytes()) * float64(j.Concurrent) * float64(j.Rounds) / 1e9
		res := Result{
			World: w.Size, Bytes: j.Bytes(), DType: j.DType.String(), Quantize: j.Quantize.Algorithm,
			Concurrent: j.Concurrent, InPlace: j.InPlace, Secure: w.Secure, Pool: w.Peer.PoolSize, FrameBytes: w.Peer.FrameBytes, Rounds: j.Rounds,
			Median: t.median, Min: t.min, Max: t.max,
			CPUPerGB: t.cpu.Seconds() / float64(w.Size) / gigabytes, Rx: t.rx, Tx: t.tx,
		}
		res.Contribute = float64(j.Bytes()) * float64(j.Concurrent) / 1e6 / t.median
		res.Network = float64(t.rx+t.tx) * 8 / 1e9 / t.median
		if res.Quantize != "none" {
			res.Wire = j.Quantize.Type.String()
		}
		return emit(res)
	})
}

// median of times in any order; 0 of none.
func median(times []float64) float64 {
	if len(times) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(times))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
