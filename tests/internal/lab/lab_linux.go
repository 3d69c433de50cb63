package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/tests/internal/lab/netem"
	"github.com/gopccl/gopccl/tests/internal/netns"
)

// Lab is a running network. Its methods are safe for concurrent use.
type Lab struct {
	Hosts []*netns.Host

	network *netns.Network
	carrier int    // the processor that carries packets; -1: any
	back    func() // has those come back that have left it; nil: there are none
	others  []int  // processors
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
	net     *netem.Net
	scratch []byte          // what a host hands over
	free    [][]byte        // of packetBytes
	packets []*netem.Packet // free ones
	out     []outlets       // by host
	hosts   map[uint32]int  // by address
	slept   time.Duration   // when it last waited
}

// packetBytes is the room that one packet takes.
const packetBytes = 2048

// outlet is what a host is about to get of a flow.
type outlet struct {
	joiner
	flow uint64
	due  []time.Duration // of the packets in it
}

// outlets is what a host is about to get. Flows that take turns on the way are told
// apart, or nothing of theirs could be put together.
type outlets struct {
	all  []outlet
	used int
}

// mostOutlets bounds the memory of outlets.
const mostOutlets = 32

// of returns the outlet of a flow; nil: all are taken by others.
func (o *outlets) of(flow uint64) *outlet {
	for i := range o.all[:o.used] {
		if o.all[i].flow == flow {
			return &o.all[i]
		}
	}
	if o.used == mostOutlets {
		return nil
	}
	if o.used == len(o.all) {
		o.all = append(o.all, outlet{})
	}
	o.used++
	o.all[o.used-1].flow = flow
	return &o.all[o.used-1]
}

// Start builds the network of a profile. Close ends it.
func Start(p *Profile, seed uint64) (*Lab, error) {
	l := &Lab{
		net: netem.New(p.Config(seed)), start: time.Now(), over: make(chan struct{}),
		hosts: map[uint32]int{}, epoll: -1, timer: -1, bell: -1,
		scratch: make([]byte, maxPacket), out: make([]outlets, len(p.Hosts)),
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
	l.carrier, l.others = divide()
	if l.carrier >= 0 {
		l.back = makeRoom(l.carrier)
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
		_ = h.Spread(l.others) // without it the carrier does that, too, and carries less
		// Beside the carrier, which goes first, a program stands still as long as packets come, and
		// nothing says so.
		if err := h.Do(func() error { return bind(l.others) }); err != nil {
			return fmt.Errorf("binding the programs of a host: %w", err)
		}
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
	if l.back != nil {
		l.back()
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
	defer close(l.over)
	defer l.release()
	if l.carrier >= 0 {
		defer stayAwake(append(l.others, l.carrier))()
	}
	prefer(l.carrier)
	events := make([]unix.EpollEvent, 64)
	for {
		l.deliver()
		wait, began := l.arm(), l.now()
		n, err := unix.EpollWait(l.epoll, events, wait)
		if now := l.now(); wait != 0 && now-began >= gasp {
			l.slept = now
		}
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

const (
	// tick is how late a packet may be so that others are delivered with it.
	tick = 250 * time.Microsecond
	// soon is what is not worth sleeping for: a virtual processor that has slept wakes
	// up to a millisecond late.
	soon = 700 * time.Microsecond
	// breath is how often the thread sleeps nevertheless, and gasp for how long at
	// least: the system gives threads of its priority 95 percent of a second, and the
	// rest would be one gap of 50 ms. Its own threads on this core want to run, too.
	breath = 4 * time.Millisecond
	gasp   = 300 * time.Microsecond
)

// arm returns for how long to wait for events: 0, not at all, if packets are due
// soon; -1, until the timer wakes the thread when they are nearly due.
func (l *Lab) arm() int {
	var at unix.ItimerSpec // zero: off
	wait := -1
	if next, ok := l.net.Next(); ok {
		now := l.now()
		left := next + tick - now
		if left < soon && l.carrier >= 0 {
			if now-l.slept >= breath {
				l.sleep()
			}
			return 0
		}
		at.Value = unix.NsecToTimespec(int64(max(left-soon/2, gasp)))
	}
	_ = unix.TimerfdSettime(l.timer, 0, &at, nil)
	return wait
}

// sleep sleeps for a gasp, also while packets come: a thread that they wake has not slept.
func (l *Lab) sleep() {
	for left := unix.NsecToTimespec(int64(gasp)); ; {
		if err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &left, &left); err != unix.EINTR {
			break
		}
	}
	l.slept = l.now()
}

// batch is how many packets are read from a host before what is due is delivered.
const batch = 64

// take reads packets that a host sends.
func (l *Lab) take(fd int) {
	for range batch {
		n, err := unix.Read(fd, l.scratch)
		if err != nil || n < frontBytes {
			return
		}
		segment(l.scratch[:n], l.buffer, l.send)
	}
}

func (l *Lab) buffer(n int) []byte {
	if k := len(l.free); k > 0 && n <= packetBytes {
		b := l.free[k-1]
		l.free = l.free[:k-1]
		return b[:n]
	}
	return make([]byte, n, max(n, packetBytes))
}

// send puts an IPv4 packet, with its front, on its way; one for nobody here is
// dropped.
func (l *Lab) send(b []byte) {
	ip := b[frontBytes:]
	if len(ip) < 20 || ip[0]>>4 != 4 {
		l.free = append(l.free, b)
		return
	}
	from, ok := l.hosts[binary.BigEndian.Uint32(ip[12:])]
	to, known := l.hosts[binary.BigEndian.Uint32(ip[16:])]
	if !ok || !known || from == to {
		l.free = append(l.free, b)
		return
	}
	p := &netem.Packet{}
	if k := len(l.packets); k > 0 {
		p = l.packets[k-1]
		l.packets = l.packets[:k-1]
	}
	*p = netem.Packet{From: from, To: to, Bytes: len(ip), Data: b}
	if head := int(ip[0]&15) * 4; len(ip) >= head+4 && (ip[9] == unix.IPPROTO_TCP || ip[9] == unix.IPPROTO_UDP) {
		p.Flow = uint64(from)<<48 | uint64(to)<<32 | uint64(binary.BigEndian.Uint32(ip[head:]))
	}
	l.net.Send(l.now(), p)
}

// deliver hands over what is due, when the first of it is as late as it may be.
func (l *Lab) deliver() {
	if next, ok := l.net.Next(); !ok || l.now() < next+tick {
		return
	}
	late, latest := uint64(0), time.Duration(0)
	write := func(host int, o *outlet) {
		if b := o.take(); b != nil {
			_, _ = unix.Write(l.tuns[host], b) // a host without room loses it
		}
		now := l.now()
		for _, at := range o.due {
			if latest = max(latest, now-at); now-at > lateness {
				late++
			}
		}
		o.due = o.due[:0]
	}
	writeAll := func(host int) {
		for i := range l.out[host].used {
			write(host, &l.out[host].all[i])
		}
		l.out[host].used = 0
	}
	l.net.Run(l.now(), func(p *netem.Packet, at time.Duration) {
		o := l.out[p.To].of(p.Flow)
		if o == nil {
			writeAll(p.To)
			o = l.out[p.To].of(p.Flow)
		}
		if !o.add(p.Data) {
			write(p.To, o)
			o.add(p.Data)
		}
		o.due = append(o.due, at)
		l.free, l.packets = append(l.free, p.Data[:packetBytes]), append(l.packets, p)
	})
	for host := range l.out {
		writeAll(host)
	}
	s := l.net.Stats()
	l.mu.Lock()
	l.stats.Delivered, l.stats.Lost, l.stats.Dropped = s.Delivered, s.Lost, s.Dropped
	l.stats.Late += late
	l.stats.Latest = max(l.stats.Latest, latest)
	l.mu.Unlock()
}
