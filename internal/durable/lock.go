package durable

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"
)

// ErrTaken says that somebody else has the lock.
var ErrTaken = errors.New("locked")

// retry is between two looks at a lock that another process has.
const retry = 10 * time.Millisecond

// Lock is the lock of a file, which stays: without it two could each lock one of their own.
// It ends with the process at the latest. Processes that this one forks do not have it. On
// Unix it also ends when this process closes another file that it has opened at the path.
type Lock struct {
	file *os.File
	info os.FileInfo
	over chan struct{} // closed when it is given back
}

// locks are those of this process. The system tells processes apart, and not what is in
// them; and what closes a file gives back every lock of the process on it.
type locks struct {
	mu   sync.Mutex
	held []*Lock
}

var own locks

// TryLock takes the lock of the file at path, which is made if it does not exist. Errors:
// ErrTaken, or those of the system.
func TryLock(path string) (*Lock, error) {
	l, _, err := own.take(path)
	return l, err
}

// AwaitLock is TryLock, but waits for who has the lock, or the end of ctx.
func AwaitLock(ctx context.Context, path string) (*Lock, error) {
	for {
		l, holder, err := own.take(path)
		if !errors.Is(err, ErrTaken) {
			return l, err
		}
		var over chan struct{} // nil: another process has it
		if holder != nil {
			over = holder.over
		}
		t := time.NewTimer(retry)
		select {
		case <-over:
		case <-t.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		t.Stop()
		if !errors.Is(err, ErrTaken) {
			return nil, err
		}
	}
}

// take returns who has the lock if that is in this process.
func (o *locks) take(path string) (l, holder *Lock, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if info, err := os.Stat(path); err == nil {
		for _, l := range o.held {
			if os.SameFile(l.info, info) {
				return nil, l, ErrTaken
			}
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = lock(f)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	l = &Lock{file: f, info: info, over: make(chan struct{})}
	o.held = append(o.held, l)
	return l, nil, nil
}

// Unlock gives the lock back.
func (l *Lock) Unlock() error {
	own.mu.Lock()
	defer own.mu.Unlock()
	i := slices.Index(own.held, l)
	if i < 0 {
		return nil // it was given back
	}
	own.held = slices.Delete(own.held, i, i+1)
	close(l.over)
	return l.file.Close()
}
