// Package kernels is the arithmetic of the CUDA backend: kernels in CUDA C
// (directory _ptx), committed as PTX for compute capability 5.2 and version 6.0
// of the instruction set, which drivers since CUDA 9.0 compile for their
// device, and typed launches of them.
//
// The bits are those of the implementations for processors: no operation is
// contracted, flushed or approximated, and a NaN that arithmetic makes is the
// one that amd64 makes. tools/ci/ptx.sh -w writes the PTX.
package kernels

import (
	_ "embed"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

//go:embed _ptx/reduce.ptx
var reducePTX []byte

//go:embed _ptx/hash.ptx
var hashPTX []byte

//go:embed _ptx/quantize.ptx
var quantizePTX []byte

//go:embed _ptx/params.ptx
var paramsPTX []byte

//go:embed _ptx/verify.ptx
var verifyPTX []byte

// Names of files: what Load is asked for.
const (
	Reduction    = "reduce"   // Reduce, Finalize
	Hashing      = "hash"     // Hash
	Quantization = "quantize" // Quantize, Dequantize
	Parameters   = "params"   // MinMaxBounds, ZeroPointMoments
	Verification = "verify"   // ExpTally, ReadParity
)

// File is one module of PTX and the kernels in it.
type File struct {
	Name    string
	PTX     []byte // not to be changed
	Kernels []string
}

// Files returns all modules.
func Files() []File {
	return []File{
		{Reduction, reducePTX, reduceNames()},
		{Hashing, hashPTX, []string{hashBlocks, hashFinish}},
		{Quantization, quantizePTX, quantizeNames()},
		{Parameters, paramsPTX, paramsNames()},
		{Verification, verifyPTX, []string{expTally, readParity}},
	}
}

// Set is the kernels of some files, loaded in one context. Its methods queue work on a
// stream of that context, which must be current, and return before it is done;
// they are safe for concurrent use. Errors are *errs.Error for arguments and
// *driver.Error for launches.
type Set struct {
	driver    driver.Driver
	modules   []driver.Module
	functions map[string]driver.Function
	// blocks of 256 threads are resident at once on the device.
	blocks uint64
}

// block is the number of threads of a block, for all kernels.
const block = 256

// Load compiles the kernels of the files called names, all if none is given, for
// the current context's device, whose ordinal is device. The driver takes some
// seconds for all, once: it keeps what it compiled. Unload gives the memory back.
func Load(d driver.Driver, device int, names ...string) (*Set, error) {
	processors, err := d.DeviceAttribute(driver.Processors, device)
	if err != nil {
		return nil, err
	}
	k := &Set{driver: d, functions: map[string]driver.Function{}, blocks: max(1, uint64(processors)) * (2048 / block)}
	for _, f := range Files() {
		if len(names) > 0 && !slices.Contains(names, f.Name) {
			continue
		}
		if err := k.load(f); err != nil {
			_ = k.Unload()
			return nil, err
		}
	}
	return k, nil
}

func (k *Set) load(f File) error {
	m, log, err := k.driver.ModuleLoad(f.PTX)
	if err != nil {
		return fmt.Errorf("kernels %s: %w%s", f.Name, err, said(log))
	}
	k.modules = append(k.modules, m)
	for _, name := range f.Kernels {
		if k.functions[name], err = k.driver.Function(m, name); err != nil {
			return fmt.Errorf("kernel %s: %w", name, err)
		}
	}
	return nil
}

func said(log string) string {
	if log == "" {
		return ""
	}
	return ": " + log
}

// Unload unloads the modules from the current context, which is the one that
// they were loaded in. No work of the Set may be queued.
func (k *Set) Unload() error {
	var first error
	for _, m := range k.modules {
		if err := k.driver.ModuleUnload(m); err != nil && first == nil {
			first = err
		}
	}
	k.modules = nil
	return first
}

// grid is the number of blocks for so many independent steps of a thread; not
// more than the device holds at once, as threads take several.
func (k *Set) grid(steps uint64) uint32 {
	return uint32(min(max(1, (steps+block-1)/block), k.blocks))
}

func (k *Set) launch(name string, blocks uint32, s driver.Stream, a *arguments) error {
	f, ok := k.functions[name]
	if !ok {
		return errs.New(errs.NotInitialized, "launch", fmt.Errorf("kernel %s is not loaded", name))
	}
	return k.driver.Launch(f, driver.Dim{X: blocks, Y: 1, Z: 1}, driver.Dim{X: block, Y: 1, Z: 1}, 0, s, a.bytes)
}

// groups bounds the blocks of kernels that write one result per block.
const groups = 1024

// aligned refuses addresses of elements that lie between elements: the device
// reads at multiples of the element's size only.
func aligned(op string, t dtype.Type, pointers ...driver.Ptr) error {
	for _, p := range pointers {
		if uint64(p)%uint64(t.Size()) != 0 {
			return errs.New(errs.InvalidArgument, op, fmt.Errorf("device address %#x is not a multiple of the size of %v", uint64(p), t)).
				WithHint("pass a tensor whose storage begins with a whole element, or a contiguous copy")
		}
	}
	return nil
}
