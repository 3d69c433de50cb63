package platform

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/gopccl/gopccl/core/errs"
)

// maxCPU bounds processor numbers.
const maxCPU = 1 << 16

// ParseCPUs reads a list of processors such as "0-3,8", ascending and without
// repetition in the result; "" is none. Errors: errs.InvalidArgument.
func ParseCPUs(list string) ([]int, error) {
	bad := func(part string) ([]int, error) {
		return nil, errs.New(errs.InvalidArgument, "read list of processors", fmt.Errorf("%q in %q is neither a processor number nor a range", part, list)).
			WithHint("write it like 0-3,8")
	}
	if list == "" {
		return nil, nil
	}
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		if !ranged {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		if err != nil {
			return bad(part)
		}
		last, err := strconv.ParseUint(to, 10, 16)
		if err != nil || last < first {
			return bad(part)
		}
		for c := first; c <= last; c++ {
			cpus = append(cpus, int(c))
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// FormatCPUs writes an ascending list of processors as ParseCPUs reads it.
func FormatCPUs(cpus []int) string {
	var b strings.Builder
	for i := 0; i < len(cpus); {
		k := i
		for k+1 < len(cpus) && cpus[k+1] == cpus[k]+1 {
			k++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(cpus[i]))
		if k > i {
			b.WriteString("-" + strconv.Itoa(cpus[k]))
		}
		i = k + 1
	}
	return b.String()
}

// SetAffinity binds the calling thread, which the goroutine must own
// (runtime.LockOSThread), to processors; none leaves it alone. Errors:
// errs.InvalidArgument, for processors that this system does not have or that
// it does not let us choose; it is errors.ErrUnsupported where it lets nobody
// choose (macOS).
func SetAffinity(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	if slices.Min(cpus) < 0 || slices.Max(cpus) >= maxCPU {
		return errs.New(errs.InvalidArgument, "set affinity", fmt.Errorf("processor number out of range in %v", cpus))
	}
	if err := native.SetAffinity(cpus); err != nil {
		e := errs.New(errs.InvalidArgument, "set affinity", err).WithPhase("processors " + FormatCPUs(cpus))
		if errors.Is(err, errors.ErrUnsupported) {
			return e.WithHint("leave the affinity empty on this system")
		}
		return e.WithHint("name processors that this process may use")
	}
	return nil
}

// TryAffinity reports what SetAffinity would say, on a thread that ends then.
func TryAffinity(cpus []int) error {
	said := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		said <- SetAffinity(cpus)
	}()
	return <-said
}

// Affinity returns the processors that the calling thread may use, ascending.
// The error is errors.ErrUnsupported where the system does not tell.
func Affinity() ([]int, error) { return native.Affinity() }

// Thread describes the calling thread as far as the system tells.
type Thread struct {
	ID   int    // 0: unknown
	Name string // "": none or unknown
	CPUs []int  // it may run on; nil: unknown
	Node int    // memory node of the first of CPUs; -1: unknown
}

// NameThread names the calling thread for debuggers and tools, as far as the
// system can (15 bytes on Linux), and describes it. The goroutine must own it.
func NameThread(name string) Thread {
	t := Thread{ID: native.ThreadID(), Node: -1}
	// A thread without a name works as well.
	_ = native.SetThreadName(name)
	t.Name, _ = native.ThreadName()
	if t.CPUs, _ = native.Affinity(); len(t.CPUs) > 0 {
		if node, err := native.Node(t.CPUs[0]); err == nil {
			t.Node = node
		}
	}
	return t
}
