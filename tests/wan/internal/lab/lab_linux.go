package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/tests/wan/internal/lab/netem"
	"github.com/gopccl/gopccl/tests/wan/internal/netns"
)

// Lab is a running network. Its methods are safe for concurrent use.
type Lab struct {
	Hosts []*netns.Host

	network *netns.Network
	tuns    []int
	epoll   int
	timer   int
	bell    int // an eventfd: something is in do, or it ends
	start   time.Time
	over    chan struct{}

	mu    sync.Mutex
	do    []func(*netem.Net)
	stats Stats
	ended bool
	err   error

	// Owned by the thread that carries packets.
	net   *netem.Net
	free  [][]byte
	hosts map[uint32]int // by address
}

// Start builds the network of a profile. Close ends it.
func Start(p *Profile, seed uint64) (*Lab, error) {
	l := &Lab{
		net: netem.New(p.Config(seed)), start: time.Now(), over: make(chan struct{}),
		hosts: map[uint32]int{}, epoll: -1, timer: -1, bell: -1,
	}
	err := l.build(len(p.Hosts))
	if err != nil {
		l.release()
		if errors.Is(err, netns.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, err
	}
	go l.carry()
	return l, nil
}

func (l *Lab) build(hosts int) (err error) {
	if l.network, err = netns.NewIsolated(hosts); err != nil {
		return err
	}
	l.Hosts = l.network.Hosts
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return err
	}
	if l.bell, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return err
	}
	for _, fd := range []int{l.timer, l.bell} {
		if err := l.watch(fd); err != nil {
			return err
		}
	}
	for i, h := range l.Hosts {
		fd, err := h.Tunnel(MTU)
		if err != nil {
			return err
		}
		l.tuns = append(l.tuns, fd)
		a := h.Addr.As4()
		l.hosts[binary.BigEndian.Uint32(a[:])] = i
		if err := l.watch(fd); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) watch(fd int) error {
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// Close ends the network; programs in it are killed.
func (l *Lab) Close() error {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.ring()
	<-l.over
	return l.err
}

func (l *Lab) release() {
	for _, fd := range append(l.tuns, l.epoll, l.timer, l.bell) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if l.network != nil {
		l.network.Close()
	}
}

func (l *Lab) ring() {
	one := [8]byte{7: 1}
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(l.bell, one[:])
}

// Change changes the network while it runs; it does not wait until that is done.
func (l *Lab) Change(f func(*netem.Net)) {
	l.mu.Lock()
	l.do = append(l.do, f)
	l.mu.Unlock()
	l.ring()
}

// Stats returns the counts so far.
func (l *Lab) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

func (l *Lab) now() time.Duration { return time.Since(l.start) }

// carry moves packets until the network is closed.
func (l *Lab) carry() {
	runtime.LockOSThread() // never unlocked: the thread ends with it, and its priority
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -15)
	defer close(l.over)
	defer l.release()
	events := make([]unix.EpollEvent, 64)
	for {
		l.deliver()
		l.arm()
		n, err := unix.EpollWait(l.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			l.err = fmt.Errorf("epoll: %w", err)
			return
		}
		for _, e := range events[:max(n, 0)] {
			switch fd := int(e.Fd); fd {
			case l.timer, l.bell:
				var b [8]byte
				_, _ = unix.Read(fd, b[:])
				if fd == l.bell && !l.obey() {
					return
				}
			default:
				l.take(fd)
			}
		}
	}
}

// obey does what Change asked for; false: the network is closed.
func (l *Lab) obey() bool {
	l.mu.Lock()
	do := l.do
	l.do = nil
	ended := l.ended
	l.mu.Unlock()
	for _, f := range do {
		f(l.net)
	}
	return !ended
}

// arm has the timer wake the thread when the next packet is due.
func (l *Lab) arm() {
	var at unix.ItimerSpec // zero: off
	if next, ok := l.net.Next(); ok {
		at.Value = unix.NsecToTimespec(int64(max(next-l.now(), time.Microsecond)))
	}
	_ = unix.TimerfdSettime(l.timer, 0, &at, nil)
}

// batch is how many packets are read from a host before what is due is delivered.
const batch = 64

// take reads packets that a host sends.
func (l *Lab) take(fd int) {
	for range batch {
		b := l.buffer()
		n, err := unix.Read(fd, b)
		if err != nil || n <= 0 {
			l.free = append(l.free, b)
			return
		}
		if p := l.packet(b[:n]); p != nil {
			l.net.Send(l.now(), p)
		} else {
			l.free = append(l.free, b)
		}
	}
}

func (l *Lab) buffer() []byte {
	if n := len(l.free); n > 0 {
		b := l.free[n-1]
		l.free = l.free[:n-1]
		return b[:cap(b)]
	}
	return make([]byte, 2048)
}

// packet reads the header of an IPv4 packet; nil if it is for nobody here.
func (l *Lab) packet(b []byte) *netem.Packet {
	if len(b) < 20 || b[0]>>4 != 4 {
		return nil
	}
	from, ok := l.hosts[binary.BigEndian.Uint32(b[12:])]
	to, known := l.hosts[binary.BigEndian.Uint32(b[16:])]
	if !ok || !known || from == to {
		return nil
	}
	p := &netem.Packet{From: from, To: to, Bytes: len(b), Data: b}
	if head := int(b[0]&15) * 4; len(b) >= head+4 && (b[9] == unix.IPPROTO_TCP || b[9] == unix.IPPROTO_UDP) {
		p.Flow = uint64(from)<<48 | uint64(to)<<32 | uint64(binary.BigEndian.Uint32(b[head:]))
	}
	return p
}

// deliver hands over what is due.
func (l *Lab) deliver() {
	now := l.now()
	late, latest := uint64(0), time.Duration(0)
	l.net.Run(now, func(p *netem.Packet, at time.Duration) {
		_, _ = unix.Write(l.tuns[p.To], p.Data) // a host without room loses it
		behind := l.now() - at
		if latest = max(latest, behind); behind > lateness {
			late++
		}
		l.free = append(l.free, p.Data)
	})
	s := l.net.Stats()
	l.mu.Lock()
	l.stats.Delivered, l.stats.Lost, l.stats.Dropped = s.Delivered, s.Lost, s.Dropped
	l.stats.Late += late
	l.stats.Latest = max(l.stats.Latest, latest)
	l.mu.Unlock()
}
