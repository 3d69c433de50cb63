//go:build unix

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/platform"
)

// floorPiece is the most bytes in one system call: smaller ones cost more.
const floorPiece = 1 << 20

// ring passes chunks on, with plain system calls on threads of its own.
type ring struct {
	next, prev int // descriptors
	world      int
	rank       int
	two        bool // a thread for each direction
	buf        []byte
	chunk      int

	mu       sync.Mutex
	moved    sync.Cond
	received int
	err      error
}

func newRing(l floorLinks, world int, two bool) (*ring, error) {
	r := &ring{world: world, rank: l.rank, two: two}
	r.moved.L = &r.mu
	for i, c := range []interface{ File() (*os.File, error) }{l.next, l.prev} {
		f, err := c.File() // in blocking mode
		if err != nil {
			return nil, err
		}
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			return nil, err
		}
		if i == 0 {
			r.next = fd
		} else {
			r.prev = fd
		}
	}
	for _, c := range []error{
		platform.TuneP2P(l.next, platform.Options{Congestion: platform.CongestionAuto}),
		platform.TuneP2P(l.prev, platform.Options{Congestion: platform.CongestionAuto}),
		unix.SetNonblock(r.next, !two), unix.SetNonblock(r.prev, !two),
	} {
		if c != nil {
			return nil, c
		}
	}
	return r, nil
}

func (r *ring) run(o order) (a answer, err error) {
	// One operation of all bytes: nothing is to be gained by more.
	chunk := max(1, o.Bytes*max(1, o.Concurrent)/r.world)
	if chunk != r.chunk {
		r.chunk, r.buf = chunk, make([]byte, chunk*r.world)
		for i := range r.buf {
			r.buf[i] = 1
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for k := range 1 + o.Rounds {
		if err := r.barrier(); err != nil {
			return a, err
		}
		cpu, start := cpuTime(), time.Now()
		if r.two {
			err = r.passTwo()
		} else {
			err = r.passOne()
		}
		if err != nil {
			return a, err
		}
		if k == 0 {
			continue // it warmed up
		}
		a.Seconds = append(a.Seconds, time.Since(start).Seconds())
		a.CPU += (cpuTime() - cpu).Seconds()
	}
	return a, nil
}

// barrier sends one byte around the ring, twice.
func (r *ring) barrier() error {
	b := make([]byte, 1)
	for range 2 * r.world {
		if err := wholly(r.next, unix.POLLOUT, b, unix.Write); err != nil {
			return err
		}
		if err := wholly(r.prev, unix.POLLIN, b, unix.Read); err != nil {
			return err
		}
	}
	return nil
}

func wholly(fd int, events int16, p []byte, call func(int, []byte) (int, error)) error {
	for {
		n, err := attempt(fd, p, call)
		if err != nil || n > 0 {
			return err
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, -1); err != nil && err != unix.EINTR {
			return err
		}
	}
}

// attempt makes one call: 0 if it would have to wait.
func attempt(fd int, p []byte, call func(int, []byte) (int, error)) (int, error) {
	for {
		n, err := call(fd, p)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, nil
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.ErrUnexpectedEOF
		default:
			return n, nil
		}
	}
}

// at is where byte pos of a stream lies that began with chunk first: chunks go
// around the ring downwards. It never extends over the end of a chunk.
func (r *ring) at(first, pos, upTo int) []byte {
	c := ((first-pos/r.chunk)%r.world + r.world) % r.world
	off := pos % r.chunk
	return r.buf[c*r.chunk+off : c*r.chunk+min(r.chunk, off+min(floorPiece, upTo-pos))]
}

// passOne sends and receives in turns and sleeps when neither can go on.
func (r *ring) passOne() error {
	total := 2 * (r.world - 1) * r.chunk
	for sent, got := 0, 0; sent < total || got < total; {
		moved := false
		if may := min(total, r.chunk+got); sent < may {
			n, err := attempt(r.next, r.at(r.rank, sent, may), unix.Write)
			if err != nil {
				return fmt.Errorf("send: %w", err)
			}
			sent += n
			moved = n > 0
		}
		if got < total {
			n, err := attempt(r.prev, r.at(r.rank-1, got, total), unix.Read)
			if err != nil {
				return fmt.Errorf("receive: %w", err)
			}
			got += n
			moved = moved || n > 0
		}
		if moved {
			continue
		}
		var p []unix.PollFd
		if got < total {
			p = append(p, unix.PollFd{Fd: int32(r.prev), Events: unix.POLLIN})
		}
		if sent < min(total, r.chunk+got) {
			p = append(p, unix.PollFd{Fd: int32(r.next), Events: unix.POLLOUT})
		}
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
			return err
		}
	}
	return nil
}

// passTwo receives whole pieces on a thread of its own.
func (r *ring) passTwo() error {
	total := 2 * (r.world - 1) * r.chunk
	r.received, r.err = 0, nil
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for got := 0; got < total; {
			p := r.at(r.rank-1, got, total)
			n, _, err := unix.Recvfrom(r.prev, p, unix.MSG_WAITALL)
			if err == unix.EINTR {
				continue
			}
			if err == nil && n == 0 {
				err = io.ErrUnexpectedEOF
			}
			got += max(n, 0)
			r.mu.Lock()
			r.received, r.err = got, err
			r.mu.Unlock()
			r.moved.Signal()
			if err != nil {
				return
			}
		}
	})
	err := r.sendAll(total)
	if err != nil {
		unix.Shutdown(r.prev, unix.SHUT_RDWR) // wakes the receiver
	}
	wg.Wait()
	return errors.Join(err, r.err)
}

func (r *ring) sendAll(total int) error {
	for sent := 0; sent < total; {
		r.mu.Lock()
		for r.err == nil && sent >= r.chunk+r.received {
			r.moved.Wait()
		}
		may, err := min(total, r.chunk+r.received), r.err
		r.mu.Unlock()
		if err != nil {
			return nil // the receiver's
		}
		n, err := attempt(r.next, r.at(r.rank, sent, may), unix.Write)
		if err != nil {
			return fmt.Errorf("send: %w", err)
		}
		sent += n
	}
	return nil
}

// cpuTime is the processor time of this process so far.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
