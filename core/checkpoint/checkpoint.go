package checkpoint

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/durable"
)

// Tensor is one entry of a state. It has the fields of core.Tensor, so that one
// converts to the other.
type Tensor struct {
	// Key names the tensor within the state; unique, UTF-8.
	Key string
	// Data is the content in host byte order.
	Data []byte
	// Device is the content if it lies on a device; Data is empty then. What Load
	// returns lies on the host.
	Device device.Buffer
	// DType is the element type.
	DType dtype.Type
	// AllowInequality exempts the content from comparison between peers.
	AllowInequality bool
}

// State is what a checkpoint holds. Meta is the caller's: step counts, names
// of data sets, whatever a resuming program has to know. UTF-8.
type State struct {
	Revision uint64
	Tensors  []Tensor
	Meta     map[string]string
}

const (
	suffix = ".gopccl"
	// stale is the age at which what a crashed Save has left is removed.
	stale = time.Hour
)

// Save writes s to a new file in dir, which is created if need be, and
// returns its path. When it returns without error the file is complete and
// on stable storage, with its directory; a crash before leaves older checkpoints
// as they were. The process's umask decides who may read it.
// With keep > 0 only the keep newest checkpoints of dir remain; what could not
// be removed does not fail Save: left has an *errs.Error for each, for the
// log. The tensors are read while Save runs and must not change.
//
// Errors are *errs.Error: InvalidArgument (a key twice or not UTF-8, an
// invalid element type) before anything is written, Internal (the system),
// DeviceFailed (the device of a tensor).
func Save(dir string, s State, keep int) (path string, left []error, err error) {
	const op = "save checkpoint"
	head, err := makeHeader(&s)
	if err != nil {
		return "", nil, errs.New(errs.InvalidArgument, op, err).WithPeer(dir)
	}
	fail := func(phase string, err error) (string, []error, error) {
		code := errs.Internal
		if errors.Is(err, errs.DeviceFailed) {
			code = errs.DeviceFailed
		}
		return "", nil, errs.New(code, op, err).WithPhase(phase).WithPeer(dir)
	}
	if err := durable.MakeDir(dir, 0o777); err != nil {
		return fail("create directory", err)
	}
	files, err := list(dir)
	if err != nil {
		return fail("list", err)
	}
	seq := uint64(0)
	if len(files) > 0 {
		seq = files[0].seq
	}
	var tie [4]byte
	_, _ = rand.Read(tie[:]) // it never fails
	name := fmt.Sprintf("%010d-r%d-%s", seq+1, s.Revision, hex.EncodeToString(tie[:]))
	path = filepath.Join(dir, name+suffix)

	f, err := durable.Begin(path, 0o666)
	if err != nil {
		return fail("create", err)
	}
	if err := write(f.File, head, &s); err != nil {
		f.Drop()
		return fail("write", err)
	}
	if err := f.Keep(); err != nil {
		return fail("keep", err)
	}
	for _, err := range prune(dir, files, keep) {
		left = append(left, errs.New(errs.Internal, op, err).WithPhase("remove old checkpoints").WithPeer(dir))
	}
	return path, left, nil
}

// prune removes what is too old: all but the keep-1 newest of files (a new
// one has just joined them) and temporary files of crashed processes. It
// returns what it could not do.
func prune(dir string, files []found, keep int) (left []error) {
	if keep > 0 && len(files) > keep-1 {
		for _, f := range files[keep-1:] {
			if err := os.Remove(f.path); err != nil && !errors.Is(err, os.ErrNotExist) {
				left = append(left, err)
			}
		}
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return append(left, err)
	}
	for _, n := range names {
		of, ok := durable.Leaving(n.Name())
		if (!ok || !strings.HasSuffix(of, suffix)) && !formerLeaving(n.Name()) {
			continue
		}
		// Best effort: another process may be writing or removing it.
		if info, err := n.Info(); err == nil && time.Since(info.ModTime()) > stale {
			_ = os.Remove(filepath.Join(dir, n.Name()))
		}
	}
	return left
}

// formerLeaving reports whether an earlier version was writing a file of that name.
func formerLeaving(name string) bool {
	return strings.HasPrefix(name, ".gopccl-") && strings.HasSuffix(name, ".tmp")
}

// Overwriting is the phase of errors of LoadInto after it has begun to write.
const Overwriting = "overwrite"

// Load reads a checkpoint into new buffers. Errors are *errs.Error:
// CorruptFile (damaged, cut, or no checkpoint at all), InvalidArgument (no
// such file), Internal (the system).
func Load(path string) (State, error) {
	f, err := open(path)
	if err != nil {
		return State{}, err
	}
	defer f.Close()
	s := State{Revision: f.head.Revision, Meta: f.head.Meta, Tensors: make([]Tensor, len(f.head.Tensors))}
	for i, e := range f.head.Tensors {
		s.Tensors[i] = Tensor{Key: e.Key, Data: make([]byte, e.Size), DType: f.types[i], AllowInequality: e.AllowInequality}
		if err := f.read(i, &s.Tensors[i]); err != nil {
			return State{}, err
		}
	}
	return s, nil
}

// LoadInto reads a checkpoint into the memory of ts, which has to hold the
// same tensors: keys, element types, flags and sizes, in any order. It
// returns the state's revision and meta, and no tensors. Nothing is written
// before the file is known to be sound and to fit; only if the system fails
// to read what it has just read, or a device fails, can ts be left overwritten
// in part: the error's phase is Overwriting then.
//
// Errors are those of Load, Mismatch (the tensors are not those of ts), and
// DeviceFailed (the device of a tensor).
func LoadInto(path string, ts []Tensor) (State, error) {
	f, err := open(path)
	if err != nil {
		return State{}, err
	}
	defer f.Close()
	misfit := func(format string, args ...any) (State, error) {
		return State{}, errs.New(errs.Mismatch, "load checkpoint", fmt.Errorf(format, args...)).WithPeer(path).
			WithHint("it is the checkpoint of another model or of another version of it")
	}
	at := make(map[string]int, len(f.head.Tensors))
	for i, e := range f.head.Tensors {
		at[e.Key] = i
	}
	if len(at) != len(ts) {
		return misfit("%d tensors in the file, %d here", len(at), len(ts))
	}
	order := make([]int, len(ts))
	for j := range ts {
		t := &ts[j]
		i, ok := at[t.Key]
		if !ok {
			return misfit("no tensor %q in the file, or twice here", t.Key)
		}
		delete(at, t.Key)
		e := &f.head.Tensors[i]
		switch {
		case f.types[i] != t.DType:
			return misfit("tensor %q has type %s in the file, %s here", t.Key, f.types[i], t.DType)
		case e.Size != t.bytes():
			return misfit("tensor %q has %d bytes in the file, %d here", t.Key, e.Size, t.bytes())
		case e.AllowInequality != t.AllowInequality:
			return misfit("tensor %q may differ between peers: %t in the file, %t here", t.Key, e.AllowInequality, t.AllowInequality)
		}
		order[j] = i
	}
	for j := range ts {
		if err := f.read(order[j], &ts[j]); err != nil {
			return State{}, errs.New(errs.CodeOf(err), "load checkpoint", err).WithPhase(Overwriting).WithPeer(path).
				WithHint("the tensors are a mixture now: load again")
		}
	}
	return State{Revision: f.head.Revision, Meta: f.head.Meta}, nil
}

// Latest returns the path of the newest sound checkpoint in dir, and one
// *errs.Error for each newer one that is not: CorruptFile if it is damaged,
// Internal if the system could not read it, which a later try may find intact.
// A program that continues from an older one should say so. If there is none the error has
// code NoSharedStateAvailable (also if dir does not exist), Internal if the
// directory cannot be read.
func Latest(dir string) (path string, skipped []error, err error) {
	const op = "find checkpoint"
	files, err := list(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", nil, errs.New(errs.Internal, op, err).WithPeer(dir)
	}
	for _, f := range files {
		c, err := open(f.path)
		if err == nil {
			c.Close()
			return f.path, skipped, nil
		}
		skipped = append(skipped, err)
	}
	return "", skipped, errs.New(errs.NoSharedStateAvailable, op, errors.Join(skipped...)).WithPeer(dir)
}

// found is a checkpoint by its name alone.
type found struct {
	path string
	seq  uint64
}

// list returns the checkpoints of dir, newest first.
func list(dir string) ([]found, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []found
	for _, n := range names {
		number, _, ok := strings.Cut(n.Name(), "-r")
		if !ok || !strings.HasSuffix(n.Name(), suffix) {
			continue
		}
		if seq, err := strconv.ParseUint(number, 10, 62); err == nil {
			files = append(files, found{path: filepath.Join(dir, n.Name()), seq: seq})
		}
	}
	slices.SortFunc(files, func(a, b found) int {
		if a.seq != b.seq {
			if a.seq > b.seq {
				return -1
			}
			return 1
		}
		return strings.Compare(b.path, a.path)
	})
	return files, nil
}
