package pccl

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/wire"
)

// Algorithm is a quantization algorithm by its public number.
type Algorithm int

// Quantization algorithms.
const (
	NoQuantization Algorithm = 0
	MinMax         Algorithm = 1
	ZeroPoint      Algorithm = 2
)

// String returns the name of the algorithm as gopccl registers it.
func (a Algorithm) String() string { return [...]string{"none", "minmax", "zeropoint"}[a] }

// Attribute is a communicator attribute by its public number.
type Attribute int

// Attributes.
const (
	GlobalWorldSize  Attribute = 1
	LocalWorldSize   Attribute = 2
	NumGroups        Attribute = 3
	LargestGroupSize Attribute = 4
)

// Reduce is one all-reduce. Data holds whole elements of DType, little-endian;
// it is not changed. QType counts only with an algorithm.
type Reduce struct {
	InPlace   bool
	Tag       uint64
	Op        dtype.Op
	DType     dtype.Type
	Algorithm Algorithm
	QType     dtype.Type
	Data      []byte
}

// Reduced is what an all-reduce left: the destination buffer (in place: the
// buffer itself, after a failure too) and, on success, the counters in bytes.
type Reduced struct {
	World  int
	Tx, Rx uint64
	Data   []byte
}

// Tensor is one entry of a shared state; Data as in Reduce.
type Tensor struct {
	Key             string
	DType           dtype.Type
	AllowInequality bool
	Data            []byte
}

// Synced is what a synchronization left: the revision, the counters in bytes
// and the tensors in their order.
type Synced struct {
	Revision uint64
	Tx, Rx   uint64
	Tensors  [][]byte
}

// Timing is the answer to Bench: one time per round, the processor time of the
// whole process over all rounds and the counters of the last one in bytes.
type Timing struct {
	World  int
	Tx, Rx uint64
	CPU    time.Duration
	Rounds []time.Duration
}

// call runs a command that answers with a result and then len(values) values.
// They are read after a failure, too.
func (p *Process) call(command, args string, values ...any) error {
	f, err := p.roundTrip(command, args, nil, 1+len(values), nil)
	if err != nil {
		return err
	}
	if err := scan(f[1:], values); err != nil {
		return p.fail(command, err)
	}
	return result(f[0])
}

func scan(fields []string, values []any) error {
	for i, v := range values {
		if _, err := fmt.Sscan(fields[i], v); err != nil {
			return fmt.Errorf("value %q: %w", fields[i], err)
		}
	}
	return nil
}

// Master runs a master inside the process.
func (p *Process) Master(ip string, port int) error {
	return p.call("master", fmt.Sprintf("%s %d", ip, port))
}

// StopMaster ends the master.
func (p *Process) StopMaster() error { return p.call("mstop", "") }

// Comm creates the communicator of the process; it does not connect yet.
func (p *Process) Comm(ip string, port int, group uint32, pool int) error {
	return p.call("comm", fmt.Sprintf("%s %d %d %d", ip, port, group, pool))
}

// Connect joins the run; it returns when the members let this peer in.
func (p *Process) Connect() error { return p.call("connect", "") }

// Update lets waiting peers in; all peers must call it.
func (p *Process) Update() error { return p.call("update", "") }

// Optimize measures the links and optimizes the ring; all peers must call it.
func (p *Process) Optimize() error { return p.call("optimize", "") }

// Destroy leaves the run.
func (p *Process) Destroy() error { return p.call("destroy", "") }

// Pending tells whether peers wait to be let in; all peers must call it.
func (p *Process) Pending() (bool, error) {
	var yes int
	err := p.call("pending", "", &yes)
	return yes == 1, err
}

// Attr returns an attribute of the communicator.
func (p *Process) Attr(a Attribute) (int, error) {
	var v int
	err := p.call("attr", fmt.Sprint(int(a)), &v)
	return v, err
}

// Ring returns the ring of the peer's group and the peer's own uuid. The
// original library does not tell them.
func (p *Process) Ring() (ring []wire.UUID, self wire.UUID, err error) {
	f, err := p.roundTrip("ring", "", nil, 2, nil)
	if err != nil {
		return nil, self, err
	}
	if err := result(f[0]); err != nil {
		return nil, self, err
	}
	uuids := make([]wire.UUID, len(f)-1)
	for i, s := range f[1:] {
		var raw []byte
		if _, err := fmt.Sscanf(strings.ReplaceAll(s, "-", ""), "%x", &raw); err != nil || len(raw) != 16 {
			return nil, self, p.fail("ring", fmt.Errorf("bad uuid %q", s))
		}
		copy(uuids[i][:], raw)
	}
	return uuids[1:], uuids[0], nil
}

func (r *Reduce) line() string {
	place := "out"
	if r.InPlace {
		place = "in"
	}
	q := r.QType
	if r.Algorithm == NoQuantization {
		q = r.DType
	}
	op, _ := r.Op.ABI()
	return fmt.Sprintf("%s %d %d %d %d %d %d", place, r.Tag, op, r.DType.ABI(), q.ABI(), r.Algorithm, len(r.Data))
}

// Reduce runs one blocking all-reduce. After a failure that the library
// reported, the result holds the buffer all the same.
func (p *Process) Reduce(r Reduce) (Reduced, error) {
	return p.reduced("reduce", r.line(), [][]byte{r.Data}, func([]string) (int, error) { return len(r.Data), nil })
}

// Launch starts an asynchronous all-reduce.
func (p *Process) Launch(r Reduce) error {
	f, err := p.roundTrip("launch", r.line(), [][]byte{r.Data}, 1, nil)
	if err != nil {
		return err
	}
	return result(f[0])
}

// Await waits for the operation that was launched with the tag.
func (p *Process) Await(tag uint64) (Reduced, error) {
	return p.reduced("await", fmt.Sprint(tag), nil, func(f []string) (n int, err error) {
		_, err = fmt.Sscan(f[4], &n)
		return n, err
	})
}

func (p *Process) reduced(command, args string, payload [][]byte, size func([]string) (int, error)) (Reduced, error) {
	want := 4
	if command == "await" {
		want = 5
	}
	var res Reduced
	f, err := p.roundTrip(command, args, payload, want, func(f []string) error {
		if err := scan(f[1:], []any{&res.World, &res.Tx, &res.Rx}); err != nil {
			return err
		}
		n, err := size(f)
		if err != nil {
			return err
		}
		res.Data = make([]byte, n)
		_, err = io.ReadFull(p.out, res.Data)
		return err
	})
	if err != nil {
		return res, err
	}
	return res, result(f[0])
}

// Retry runs all operations, at most inFlight at a time, until they are done
// or the peer is alone. The counters are sums; the buffers are in order.
func (p *Process) Retry(ops []Reduce, inFlight int) (Reduced, [][]byte, error) {
	payload := make([][]byte, 0, 2*len(ops))
	buffers := make([][]byte, len(ops))
	for i := range ops {
		payload = append(payload, []byte(ops[i].line()+"\n"), ops[i].Data)
		buffers[i] = make([]byte, len(ops[i].Data))
	}
	var res Reduced
	f, err := p.roundTrip("retry", fmt.Sprintf("%d %d", inFlight, len(ops)), payload, 4, func(f []string) error {
		if err := scan(f[1:], []any{&res.World, &res.Tx, &res.Rx}); err != nil {
			return err
		}
		return readAll(p.out, buffers)
	})
	if err != nil {
		return res, nil, err
	}
	return res, buffers, result(f[0])
}

// Sync synchronizes the shared state; all peers of the group must call it.
func (p *Process) Sync(revision uint64, strategy wire.Strategy, tensors []Tensor) (Synced, error) {
	payload := make([][]byte, 0, 2*len(tensors))
	res := Synced{Tensors: make([][]byte, len(tensors))}
	for i, t := range tensors {
		allow := 0
		if t.AllowInequality {
			allow = 1
		}
		payload = append(payload, fmt.Appendf(nil, "%s %d %d %d\n", t.Key, t.DType.ABI(), allow, len(t.Data)), t.Data)
		res.Tensors[i] = make([]byte, len(t.Data))
	}
	args := fmt.Sprintf("%d %d %d", revision, strategy, len(tensors))
	f, err := p.roundTrip("sync", args, payload, 4, func(f []string) error {
		if err := scan(f[1:], []any{&res.Revision, &res.Tx, &res.Rx}); err != nil {
			return err
		}
		return readAll(p.out, res.Tensors)
	})
	if err != nil {
		return res, err
	}
	return res, result(f[0])
}

// BenchOrder says what to time: float32 sums of Count elements, Concurrent at a
// time, on the wire as uint8 if Quantize is minmax or zeropoint.
type BenchOrder struct {
	Count, Warmup, Rounds, Concurrent int
	Quantize                          string
}

// Bench times rounds after warmup rounds that are not counted; all peers of the
// group must call it.
func (p *Process) Bench(o BenchOrder) (Timing, error) {
	var t Timing
	var cpu, n int64
	wire, algorithm := dtype.Float32, NoQuantization
	for _, a := range []Algorithm{MinMax, ZeroPoint} {
		if o.Quantize == a.String() {
			wire, algorithm = dtype.Uint8, a
		}
	}
	args := fmt.Sprintf("%d %d %d %d %d %d %d", dtype.Float32.ABI(), o.Count, o.Warmup, o.Rounds, wire.ABI(), algorithm, max(1, o.Concurrent))
	f, err := p.roundTrip("bench", args, nil, 6, func(f []string) (err error) {
		if err := scan(f[1:], []any{&t.World, &t.Tx, &t.Rx, &cpu, &n}); err != nil {
			return err
		}
		t.Rounds, err = durations(f[6:], int(n))
		return err
	})
	if err != nil {
		return t, err
	}
	t.CPU = time.Duration(cpu)
	return t, result(f[0])
}

// Hash times the library's hash of shared state on bytes bytes of its own.
func (p *Process) Hash(bytes, rounds int) (times []time.Duration, err error) {
	_, err = p.roundTrip("hash", fmt.Sprintf("%d %d", bytes, rounds), nil, 3, func(f []string) (err error) {
		times, err = durations(f[3:], rounds)
		return err
	})
	return times, err
}

func durations(f []string, n int) (d []time.Duration, err error) {
	if len(f) != n {
		return nil, fmt.Errorf("%d times, announced %d", len(f), n)
	}
	for _, s := range f {
		var ns int64
		if _, err := fmt.Sscan(s, &ns); err != nil {
			return nil, err
		}
		d = append(d, time.Duration(ns))
	}
	return d, nil
}

func readAll(r io.Reader, to [][]byte) error {
	for _, b := range to {
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
	}
	return nil
}
