package lead

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/durable"
)

const (
	stateName = "master.state"
	lockName  = "master.lock"
	opName    = "lead"
)

// File is the authority of masters that run one after the other on one machine, or on
// a directory that moves with them. The master that has the lock of the directory leads.
type File struct {
	dir  string
	lock *durable.Lock // nil: it does not lead
	term uint32
	kept []byte // committed last
}

// NewFile returns the authority of a directory, which Lead makes if it does not exist.
func NewFile(dir string) *File { return &File{dir: dir} }

// Lead implements Authority. It does not wait for a master that has the directory, and
// the lead is never lost.
// Errors: *errs.Error with code InvalidUsage, of a directory that cannot be used or is
// another master's, or CorruptFile, of a state that this package has not written so; it
// stays as it is.
func (f *File) Lead(context.Context) (term uint32, kept []byte, lost <-chan error, err error) {
	fail := func(code errs.Code, err error, hint string) (uint32, []byte, <-chan error, error) {
		return 0, nil, nil, errs.New(code, opName, err).WithHint(hint)
	}
	if f.lock != nil {
		return fail(errs.InvalidUsage, errors.New("it leads already"), "")
	}
	if err := durable.MakeDir(f.dir, 0o700); err != nil {
		return fail(errs.InvalidUsage, err, "name a directory that the master may write to")
	}
	lock, err := durable.TryLock(filepath.Join(f.dir, lockName))
	switch {
	case errors.Is(err, durable.ErrTaken):
		return fail(errs.InvalidUsage, fmt.Errorf("another master leads with %s", f.dir), "end it first, or name another directory")
	case err != nil:
		return fail(errs.InvalidUsage, err, "name a directory that the master may write to")
	}
	durable.Clean(f.dir, 0, stateName)
	if term, kept, err = f.next(); err != nil {
		lock.Unlock()
		return fail(errs.CorruptFile, err, "restore it from a copy, or move it away to begin without what it says")
	}
	if err := f.write(term, kept); err != nil {
		lock.Unlock()
		return fail(errs.InvalidUsage, err, "name a directory that the master may write to")
	}
	f.lock, f.term, f.kept = lock, term, slices.Clone(kept)
	return term, kept, nil, nil
}

// next reads what the last master has left and returns it with the term of the next.
func (f *File) next() (term uint32, kept []byte, err error) {
	path := filepath.Join(f.dir, stateName)
	b, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil, nil // the first
	}
	if err != nil {
		return 0, nil, err
	}
	if term, kept, err = decode(b); err == nil {
		_, err = Decode(kept)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", path, err)
	}
	if term >= MaxTerm {
		return 0, nil, fmt.Errorf("%s: term %d is the last one", path, term)
	}
	return term + 1, kept, nil
}

// Read returns what the directory of a master says. It changes and locks nothing.
// Errors: *errs.Error with code InvalidUsage or CorruptFile.
func Read(dir string) (term uint32, k Kept, err error) {
	path := filepath.Join(dir, stateName)
	b, err := readState(path)
	if err != nil {
		return 0, k, errs.New(errs.InvalidUsage, opName, err).WithHint("name the directory of a master (master.state)")
	}
	term, kept, err := decode(b)
	if err == nil {
		k, err = Decode(kept)
	}
	if err != nil {
		return 0, k, errs.New(errs.CorruptFile, opName, fmt.Errorf("%s: %w", path, err)).WithHint("restore it from a copy")
	}
	return term, k, nil
}

// readState reads a file of a size that a state can have.
func readState(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKept+1))
	if err == nil && len(b) > maxKept {
		err = fmt.Errorf("%s: it is too large for the state of a master", path)
	}
	return b, err
}

// Confirm implements Authority: nobody else can lead while this master has the lock.
func (f *File) Confirm(context.Context) error {
	if f.lock == nil {
		return notLeading()
	}
	return nil
}

// Commit implements Authority. When it returns nil, kept survives a crash of the machine.
func (f *File) Commit(_ context.Context, kept []byte) error {
	if f.lock == nil {
		return notLeading()
	}
	if err := f.write(f.term, kept); err != nil {
		return errs.New(errs.Internal, opName, err).WithHint("free space in " + f.dir + ", and start the master again")
	}
	f.kept = kept
	return nil
}

// Raise has the next master come after one of a term that the directory did not know: it
// is an old copy. This master keeps its own.
func (f *File) Raise(term uint32) error {
	if f.lock == nil {
		return notLeading()
	}
	if term <= f.term || term >= MaxTerm {
		return nil // the next one comes after this one anyway, or none can
	}
	f.term = term
	if err := f.write(term, f.kept); err != nil {
		return errs.New(errs.Internal, opName, err).WithHint("free space in " + f.dir + ", and start the master again")
	}
	return nil
}

func notLeading() error {
	return errs.New(errs.NotLeading, opName, errors.New("this master has not taken the lead, or has given it up"))
}

// write replaces the state as a whole.
func (f *File) write(term uint32, kept []byte) error {
	return durable.Replace(filepath.Join(f.dir, stateName), encode(term, kept), 0o600)
}

// Resign implements Authority.
func (f *File) Resign() error {
	if f.lock == nil {
		return nil
	}
	lock := f.lock
	f.lock = nil
	return lock.Unlock()
}
