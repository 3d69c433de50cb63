//go:build unix

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/platform"
)

// meshScratch is how much is read at a time of what is to be added.
const meshScratch = 256 << 10

// mesh moves what plans say with plain system calls on one thread.
type mesh struct {
	out, in   []int // descriptors, by process
	me, world int
	kernels   backend.Backend

	last order
	move *blocks
	ways []*flowOut
	come []*flowIn
	poll []unix.PollFd
}

// stretch is one chunk on its way: where it is taken from, or where it goes.
type stretch struct {
	at    []byte
	adds  bool
	local []byte // what is added to
	done  int    // bytes that are in place, of one that comes
	after *stretch
}

// flowOut and flowIn are the lanes of a plan.
type flowOut struct {
	fd, k, pos int
	list       []*stretch
}

type flowIn struct {
	fd, k   int
	list    []*stretch
	scratch []byte
	held    int // bytes in scratch of an element that has not come whole
}

func newMesh(to, from []*net.TCPConn, me int) (*mesh, error) {
	kernels, _, err := backend.Select("auto")
	if err != nil {
		return nil, err
	}
	m := &mesh{me: me, world: len(to), out: make([]int, len(to)), in: make([]int, len(to)), kernels: kernels}
	for i := range to {
		if i == me {
			continue
		}
		if m.out[i], err = descriptor(to[i]); err != nil {
			return nil, err
		}
		if m.in[i], err = descriptor(from[i]); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// descriptor returns one of its own for c, tuned, which never blocks.
func descriptor(c *net.TCPConn) (int, error) {
	if err := platform.TuneP2P(c, platform.Options{Congestion: platform.CongestionAuto}); err != nil {
		return 0, err
	}
	var f *os.File
	f, err := c.File()
	if err != nil {
		return 0, err
	}
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		return 0, err
	}
	return fd, errors.Join(f.Close(), unix.SetNonblock(fd, true))
}

func (m *mesh) run(o order) (a answer, err error) {
	rounds := o.Rounds
	if o.Rounds = 0; o != m.last {
		m.last = order{}
		if m.move, err = newBlocks(o.Pattern, m.world, m.me, o.Bytes); err != nil {
			return a, err
		}
		if err := m.prepare(); err != nil {
			return a, err
		}
	}
	a.Root = m.me == 0
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for k := range 1 + rounds {
		if err := m.meet(); err != nil {
			return a, err
		}
		cpu, start := cpuTime(), time.Now()
		if m.move.Kind == plan.Barrier {
			err = m.meet()
		} else {
			err = m.pass()
		}
		if err != nil {
			return a, err
		}
		if k == 0 {
			if o != m.last {
				err = m.move.Check()
			}
			if m.last = o; err != nil {
				return a, err
			}
			continue
		}
		a.Seconds = append(a.Seconds, time.Since(start).Seconds())
		a.CPU += (cpuTime() - cpu).Seconds()
	}
	return a, nil
}

// meet returns when all have called it: in each round a byte goes twice as far.
func (m *mesh) meet() error {
	b := make([]byte, 1)
	for far := 1; far < m.world; far *= 2 {
		if err := wholly(m.out[(m.me+far)%m.world], unix.POLLOUT, b, unix.Write); err != nil {
			return err
		}
		if err := wholly(m.in[(m.me-far+m.world)%m.world], unix.POLLIN, b, unix.Read); err != nil {
			return err
		}
	}
	return nil
}

// prepare lays the plan of the collective over the buffers.
func (m *mesh) prepare() error {
	b := m.move
	m.ways, m.come = nil, nil
	p := plan.For(plan.Job{Kind: b.Kind, N: m.world, Me: m.me, Mesh: b.Kind.Direct()})
	for _, l := range p.In {
		f := &flowIn{fd: m.in[l.Peer], scratch: make([]byte, meshScratch)}
		for _, s := range l.Segments {
			if !s.After.None() {
				return fmt.Errorf("%v adds to what comes, which the floor cannot", b.Kind)
			}
			src, dst := b.place(s.Chunk)
			st := &stretch{at: dst, adds: s.Do.Reduces(), local: src}
			if dst == nil || s.Do == plan.Add {
				st.at = make([]byte, b.Chunk())
			}
			f.list = append(f.list, st)
		}
		m.come = append(m.come, f)
	}
	for _, l := range p.Out {
		f := &flowOut{fd: m.out[l.Peer]}
		for _, s := range l.Segments {
			src, _ := b.place(s.Chunk)
			st := &stretch{at: src}
			if !s.After.None() {
				st.after = m.come[s.After.Lane-1].list[s.After.Segment]
				st.at = st.after.at
			}
			f.list = append(f.list, st)
		}
		m.ways = append(m.ways, f)
	}
	return nil
}

// place returns where a chunk is taken from here, and where it goes; nil: nowhere.
func (b *blocks) place(chunk int) (src, dst []byte) {
	from, to := chunk, chunk
	if b.Kind == plan.AllToAll { // that from i to j is i*N+j
		from, to = chunk%b.World, chunk/b.World
		if chunk/b.World != b.Me {
			from = -1
		}
		if chunk%b.World != b.Me {
			to = -1
		}
	}
	n := b.Chunk()
	cut := func(all []float32, at int) []byte {
		bytes := dtype.AsBytes(all)
		if len(bytes) == n && (at == b.Me || b.Kind == plan.Broadcast || b.Kind == plan.Reduce) {
			return bytes
		}
		if at < 0 || (at+1)*n > len(bytes) || len(bytes) == n {
			return nil
		}
		return bytes[at*n : (at+1)*n]
	}
	return cut(b.Src, from), cut(b.Dst, to)
}

// ownBlock copies the block that does not travel.
func (b *blocks) ownBlock() {
	chunk := b.Me
	switch b.Kind {
	case plan.AllToAll:
		chunk = b.Me*b.World + b.Me
	case plan.AllGather, plan.Gather, plan.Scatter:
	default:
		return
	}
	if src, dst := b.place(chunk); src != nil && dst != nil {
		copy(dst, src)
	}
}

// pass moves everything once, and sleeps when nothing can go on.
func (m *mesh) pass() error {
	for _, f := range m.ways {
		f.k, f.pos = 0, 0
	}
	for _, f := range m.come {
		f.k, f.held = 0, 0
		for _, s := range f.list {
			s.done = 0
		}
	}
	copied := false
	for {
		moved := false
		m.poll = m.poll[:0]
		for _, f := range m.ways {
			n, more, err := f.send()
			if err != nil {
				return fmt.Errorf("send: %w", err)
			}
			moved = moved || n > 0
			if more {
				m.poll = append(m.poll, unix.PollFd{Fd: int32(f.fd), Events: unix.POLLOUT})
			}
		}
		for _, f := range m.come {
			n, err := f.receive(m.kernels)
			if err != nil {
				return fmt.Errorf("receive: %w", err)
			}
			moved = moved || n > 0
			if f.k < len(f.list) {
				m.poll = append(m.poll, unix.PollFd{Fd: int32(f.fd), Events: unix.POLLIN})
			}
		}
		switch {
		case moved:
		case !copied:
			m.move.ownBlock()
			copied = true
		case len(m.poll) == 0:
			return nil
		default:
			if _, err := unix.Poll(m.poll, -1); err != nil && err != unix.EINTR {
				return err
			}
		}
	}
}

// send writes what may go. more: the system takes no more at the moment.
func (f *flowOut) send() (n int, more bool, err error) {
	for f.k < len(f.list) {
		s := f.list[f.k]
		if f.pos == len(s.at) {
			f.k, f.pos = f.k+1, 0
			continue
		}
		may := len(s.at)
		if s.after != nil {
			may = s.after.done
		}
		if f.pos == may {
			return 0, false, nil
		}
		n, err = attempt(f.fd, s.at[f.pos:min(may, f.pos+floorPiece)], unix.Write)
		f.pos += n
		return n, true, err
	}
	return 0, false, nil
}

// receive reads what is there, and adds what is to be added.
func (f *flowIn) receive(kernels backend.Backend) (n int, err error) {
	for f.k < len(f.list) && f.list[f.k].done == len(f.list[f.k].at) {
		f.k++
	}
	if f.k == len(f.list) {
		return 0, nil
	}
	s := f.list[f.k]
	left := s.at[s.done:]
	if !s.adds {
		n, err = attempt(f.fd, left[:min(len(left), floorPiece)], unix.Read)
		s.done += n
	} else {
		n, err = attempt(f.fd, f.scratch[f.held:min(len(left), len(f.scratch))], unix.Read)
		f.held += n
		whole := f.held &^ 3
		kernels.Reduce(dtype.Float32, dtype.Sum, left[:whole], s.local[s.done:s.done+whole], f.scratch[:whole])
		f.held = copy(f.scratch, f.scratch[whole:f.held])
		s.done += whole
	}
	for f.k < len(f.list) && f.list[f.k].done == len(f.list[f.k].at) {
		f.k++
	}
	return n, err
}
