package cuda

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
)

// Describe implements device.Staging.
func (s *staging) Describe(from, to int) bool {
	t := &s.task
	switch t.Quantizer.(type) {
	case quant.Bounded, quant.Summed:
	default:
		return false
	}
	switch {
	case t.DType != dtype.Float32 && t.DType != dtype.Float64, // they have kernels
		(t.Source.Ptr+uint64(from))%uint64(t.DType.Size()) != 0: // which read whole elements
		return false
	}
	files := []string{kernels.Parameters, kernels.Quantization}
	if !s.encodes() {
		files = files[:1]
	}
	ready := s.dev.compiled(files...)
	if ready == 0 {
		return false
	}
	s.described, s.encoded = device.Range{From: from, To: to}, ready == 2
	return true
}

// Params implements device.Staging.
func (s *staging) Params() quant.Meta { return s.params }

// compiled returns how many of the files, from the first on, have their kernels
// ready. It has the others compiled, and does not wait.
func (d *dev) compiled(files ...string) (ready int) {
	if !d.loading.TryLock() {
		return 0
	}
	if d.asked == nil {
		d.asked = map[string]bool{}
	}
	var missing []string
	for i, file := range files {
		if d.sets[file] != nil && ready == i {
			ready++
		}
		if d.sets[file] == nil && !d.asked[file] {
			d.asked[file] = true
			missing = append(missing, file)
		}
	}
	d.loading.Unlock()
	if len(missing) > 0 {
		d.p.spawn(func() {
			for _, file := range missing {
				d.compile(file)
			}
		})
	}
	return ready
}

// measure finds the parameters of what is to be described, and waits for them.
func (s *staging) measure(stream driver.Stream) error {
	r := s.described
	if r.From == r.To {
		return nil
	}
	known := false
	err := s.dev.do(func() (err error) {
		set, err := s.dev.kernels(kernels.Parameters)
		if err != nil {
			return err
		}
		work, err := s.dev.workspace()
		if err != nil {
			return err
		}
		defer s.dev.keepWorkspace(work)
		at, n := driver.Ptr(s.task.Source.Ptr)+driver.Ptr(r.From), uint64(r.To-r.From)/uint64(s.task.DType.Size())
		if q, ok := s.task.Quantizer.(quant.Bounded); ok {
			known = true
			return s.bounds(q, set, work, at, n, stream)
		}
		known, err = s.moments(s.task.Quantizer.(quant.Summed), set, work, at, n, stream)
		return err
	})
	if err != nil || known {
		return err
	}
	// The quantizer has to look at all elements itself.
	all := s.source.bytes[r.From:r.To]
	err = s.dev.do(func() error {
		err := s.p.driver.CopyToHost(all, driver.Ptr(s.task.Source.Ptr)+driver.Ptr(r.From), stream)
		return errors.Join(err, s.dev.await(stream))
	})
	if err == nil {
		s.params = s.task.Quantizer.Params(s.task.DType, s.task.Wire, all)
	}
	return err
}

// bounds has the smallest and the largest of n elements found. The context is current.
func (s *staging) bounds(q quant.Bounded, set *kernels.Set, work, at driver.Ptr, n uint64, stream driver.Stream) error {
	t := &s.task
	var b [kernels.BoundsBytes]byte
	err := set.MinMaxBounds(t.DType, work+kernels.BoundsScratch, work, at, n, stream)
	if err == nil {
		err = s.p.driver.CopyToHost(b[:], work+kernels.BoundsScratch, stream)
	}
	if werr := s.dev.await(stream); err == nil {
		err = werr
	}
	if err == nil {
		m := kernels.MinMaxParams(t.DType, b[:])
		s.params = q.FromBounds(t.DType, t.Wire, m.Min, m.Max)
	}
	return err
}

// moments has the segments of n elements summed, as many at a time as a copy or
// the workspace has room for; false: the sums are of no use. The context is current.
func (s *staging) moments(q quant.Summed, set *kernels.Set, work, at driver.Ptr, n uint64, stream driver.Stream) (known bool, err error) {
	t := &s.task
	host := s.p.pinned.get(int(kernels.MomentsBytes(n)))
	defer s.p.pinned.put(host)
	most := uint64(min(scratchBytes, s.p.pieces) / 16 * kernels.SegmentElements)
	for done := uint64(0); done < n && err == nil; done += most {
		part := min(most, n-done)
		err = set.ZeroPointMoments(t.DType, work, at+driver.Ptr(done)*driver.Ptr(t.DType.Size()), part, stream)
		if err == nil {
			to := kernels.MomentsBytes(done)
			err = s.p.driver.CopyToHost(host.bytes[to:to+kernels.MomentsBytes(part)], work, stream)
		}
	}
	if werr := s.dev.await(stream); err == nil {
		err = werr
	}
	if err != nil {
		return false, err
	}
	sums := make([]float64, len(host.bytes)/8)
	for i := range sums {
		sums[i] = math.Float64frombits(binary.LittleEndian.Uint64(host.bytes[8*i:]))
	}
	s.params, known = q.FromMoments(t.DType, t.Wire, int(n), sums)
	return known, nil
}
