package digest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/registry"
)

// Hasher computes the hashes of shared states. Peers compare them, so every
// implementation gives the same bits. b is host memory of any length, at any
// address; it is the caller's, is only read, and is not kept. Implementations are
// safe for concurrent use and allocate nothing. What they cannot compute is a
// panic, which fails the operation and no other.
type Hasher interface {
	// Name is the registered name, such as "cpu_generic".
	Name() string
	// SimpleHash returns PCCL's hash of b (hashing spec, section 1).
	SimpleHash(b []byte) uint32
	// CRC32C returns the CRC-32C of b (hashing spec, section 2).
	CRC32C(b []byte) uint32
}

// BlockHasher is a Hasher that also hashes one block of SimpleHash, so that all
// cores share a buffer. Without it a buffer is one call, in which the
// implementation may use what it likes.
type BlockHasher interface {
	Hasher
	// Block returns the hash of one block, H[g] of the hashing spec, section 1. b
	// is all of the block: a whole number of 16 bytes, maybe none.
	Block(b []byte) uint32
}

// Driver makes a Hasher and says whether it runs here.
type Driver interface {
	// Rank orders drivers for "auto", the highest wins; cpu_generic has 0, and the
	// vectors of the processor have 10.
	Rank() int
	// Probe returns nil if the hasher works on this machine, else why not.
	Probe() error
	// New returns the hasher.
	New() (Hasher, error)
}

// Settings say how shared states are hashed.
type Settings struct {
	// Hasher is the registered name; "auto" or "" takes the best that runs here.
	Hasher string
	// Workers bounds the goroutines that hash, from 1 to 1024; 0: one for each core.
	Workers int
}

// Auto is the name that no hasher has: it stands for the best one.
const Auto = "auto"

// ErrWrong is in the chain of an error about a hasher whose values are not those
// of the specification.
var ErrWrong = errors.New("its hashes are not those of PCCL")

// entry is a registered driver. made is the hasher that it made, once that was
// found right.
type entry struct {
	Driver
	made atomic.Pointer[Hasher]
}

var hashers = registry.New[*entry]("hasher", Auto)

// Register makes a driver available under name. It panics on an empty or
// registered name, since that is a programmer's error at start-up. The hasher is
// made and checked when it is selected.
func Register(name string, d Driver) { hashers.Register(name, &entry{Driver: d}) }

// Names returns the registered names in alphabetical order.
func Names() []string { return hashers.Names() }

// Select returns the hasher called name, which has passed [Check]; Auto or ""
// takes the highest ranked driver that can be had. passed says why others were
// passed over. Errors are *errs.Error with code InvalidArgument; of a hasher that
// failed the check, ErrWrong is in the chain.
func Select(name string) (h Hasher, passed []error, err error) {
	if name != Auto && name != "" {
		e, ok := hashers.Lookup(name)
		if !ok {
			return nil, nil, refused(fmt.Errorf("unknown hasher %q (known: %s)", name, strings.Join(Names(), ", ")),
				"import the package that registers it, or take one of these")
		}
		if h, err = e.hasher(); err != nil {
			return nil, nil, refused(fmt.Errorf("hasher %q: %w", name, err), "take another hasher, or auto")
		}
		return h, nil, nil
	}
	type candidate struct {
		name string
		*entry
	}
	var list []candidate
	for _, n := range hashers.Names() {
		if e, ok := hashers.Lookup(n); ok {
			list = append(list, candidate{n, e})
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(b.Rank(), a.Rank()) })
	for _, c := range list {
		h, err := c.hasher()
		if err == nil {
			return h, passed, nil
		}
		passed = append(passed, fmt.Errorf("hasher %q: %w", c.name, err))
	}
	return nil, passed, refused(fmt.Errorf("no hasher works here: %w", errors.Join(passed...)), "check this machine with `gopccl verify determinism`")
}

func refused(err error, hint string) error {
	return errs.New(errs.InvalidArgument, "select hasher", err).WithHint(hint)
}

// hasher returns the hasher of e. It is made and checked once; what fails is
// tried again with the next call.
func (e *entry) hasher() (h Hasher, err error) {
	if made := e.made.Load(); made != nil {
		return *made, nil
	}
	defer errs.Catch("select hasher", func(crash *errs.Error) { h, err = nil, crash })
	if err := e.Probe(); err != nil {
		return nil, fmt.Errorf("it does not run here: %w", err)
	}
	if h, err = e.New(); err != nil {
		return nil, err
	}
	if err := Check(h); err != nil {
		return nil, err
	}
	made := h // not the result, which a return writes
	e.made.CompareAndSwap(nil, &made)
	return *e.made.Load(), nil
}

// processor is the built-in hasher, in plain Go or with the vectors of the
// processor.
type processor struct{ vectors bool }

const generic = "cpu_generic"

// Name returns "cpu_generic", or which vectors there are.
func (p processor) Name() string {
	if p.vectors {
		return vectorName
	}
	return generic
}

// SimpleHash implements Hasher.
func (p processor) SimpleHash(b []byte) uint32 { return simpleHash(b, p.vectors) }

// Block implements BlockHasher.
func (p processor) Block(b []byte) uint32 { return hashBlock(b, p.vectors) }

// CRC32C implements Hasher.
func (processor) CRC32C(b []byte) uint32 { return CRC32C(b) }

// Rank implements Driver.
func (p processor) Rank() int {
	if p.vectors {
		return 10
	}
	return 0
}

// Probe implements Driver.
func (p processor) Probe() error {
	if p.vectors && !byVector {
		return errors.New("the processor does not have " + vectorNeeds)
	}
	return nil
}

// New implements Driver.
func (p processor) New() (Hasher, error) { return p, nil }

func init() {
	Register(generic, processor{})
	if vectorName != "" {
		Register(vectorName, processor{vectors: true})
	}
}
