package netns

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrUnavailable: the system, or the rights of this process, do not allow it.
var ErrUnavailable = errors.New("cannot make network namespaces (run as root, with the programs ip and tc)")

// space is a network namespace with a thread inside it.
type space struct {
	fd  int // keeps the namespace, and names it to ip
	do  chan func()
	end chan struct{}
}

// newSpace makes a namespace. Its thread stays for as long as the namespace is
// used: what it starts is told to die with it.
func newSpace() (*space, error) {
	s := &space{do: make(chan func()), end: make(chan struct{})}
	ready := make(chan error)
	go func() {
		defer close(s.end)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range s.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return s, nil
}

// path names the namespace to programs.
func (s *space) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.fd) }

func (s *space) run(f func() error) (err error) {
	done := make(chan struct{})
	s.do <- func() {
		defer close(done)
		err = f()
	}
	<-done
	return err
}

func (s *space) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return s.run(cmd.Start)
}

// tool runs a program in the namespace; its output is part of the error.
func (s *space) tool(stdin, name string, args ...string) error {
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	err := s.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

func (s *space) close() {
	close(s.do)
	<-s.end
	unix.Close(s.fd)
}

// Network is a switch with hosts. Its methods are for one goroutine.
type Network struct {
	Hosts []*Host
	sw    *space
	nets  int // switches, one network each
}

// Host is one namespace. Do and Start are safe for concurrent use.
type Host struct {
	Index int
	Addr  netip.Addr // on its first interface, eth0
	net   *Network
	s     *space
}

// New returns a network of hosts without limits, numbered from 0, that reach
// each other by AddrOf. Their congestion control is cubic where the machine
// allows it, else reno.
func New(hosts int) (*Network, error) {
	n, err := NewIsolated(hosts)
	if err == nil {
		err = n.Join()
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// NewIsolated is New with hosts that have a loopback interface and nothing else.
func NewIsolated(hosts int) (*Network, error) {
	n := &Network{}
	if hosts < 1 || hosts > 254 {
		return n, fmt.Errorf("netns: %d hosts, 1 to 254 are possible", hosts)
	}
	sw, err := newSpace()
	if err != nil {
		return n, err
	}
	n.sw = sw
	for i := 0; i < hosts && err == nil; i++ {
		err = n.add(i)
	}
	if err != nil {
		n.Close()
	}
	return n, err
}

// Tunnel gives the host an interface tun0 with the address AddrOf, whose packets
// come to and from the file, which does not block. The caller closes it. In front
// of every packet is a struct virtio_net_hdr; checksums of the transport are left
// to the file's side, and a packet may consist of many segments of TCP over IPv4.
func (h *Host) Tunnel(mtu int) (fd int, err error) {
	err = h.Do(func() (err error) {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return fmt.Errorf("%w: /dev/net/tun: %w", ErrUnavailable, err)
		}
		req, err := unix.NewIfreq("tun0")
		if err == nil {
			req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err == nil {
			err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4)
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("%w: tun0: %w", ErrUnavailable, err)
		}
		return nil
	})
	if err != nil {
		return -1, err
	}
	if err = h.s.tool(fmt.Sprintf("link set tun0 mtu %d txqueuelen 1000\naddr add %s/24 dev tun0\nlink set tun0 up\n", mtu, AddrOf(h.Index)), "ip", "-batch", "-"); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Spread has what comes from the device of Tunnel be worked on by these processors, as
// a network card with several queues has it, and not by the one whose program hands it
// over. None: it stays there.
func (h *Host) Spread(processors []int) error {
	words := make([]uint32, 1)
	for _, c := range processors {
		for len(words) <= c/32 {
			words = append(words, 0)
		}
		words[c/32] |= 1 << (c % 32)
	}
	slices.Reverse(words) // the first word is of the highest processors
	mask := strings.ReplaceAll(strings.Trim(fmt.Sprintf("%08x", words), "[]"), " ", ",")
	// What a namespace has under /sys is seen where it was mounted in it.
	return h.s.tool("", "unshare", "--mount", "sh", "-c", "mount -t sysfs none /sys && echo "+mask+" > /sys/class/net/tun0/queues/rx-0/rps_cpus")
}

func (n *Network) add(i int) error {
	s, err := newSpace()
	if err != nil {
		return err
	}
	h := &Host{Index: i, Addr: AddrOf(i), net: n, s: s}
	n.Hosts = append(n.Hosts, h)
	if err := s.tool("link set lo up\n", "ip", "-batch", "-"); err != nil {
		return err
	}
	for _, kv := range [][2]string{
		{"net.ipv4.tcp_no_metrics_save", "1"}, // a run must not remember the one before
		{"net.ipv4.ip_local_port_range", fmt.Sprintf("%d %d", drawnPort, drawnPort+Buckets-1)},
		{"net.ipv4.tcp_tw_reuse", "1"},
	} {
		if err := h.Sysctl(kv[0], kv[1]); err != nil {
			return err
		}
	}
	// Both are loss based; a namespace may only take what the machine allows.
	if h.Sysctl(congestion, "cubic") != nil {
		return h.Sysctl(congestion, "reno")
	}
	return nil
}

const congestion = "net.ipv4.tcp_congestion_control"

// Join gives every host another interface, ethK with the address AddrIn(K, i),
// on a switch of its own: one more network that all of them are in.
func (n *Network) Join() error {
	k := n.nets
	n.nets++
	if err := n.sw.tool(fmt.Sprintf("link add br%[1]d type bridge\nlink set br%[1]d up\n", k), "ip", "-batch", "-"); err != nil {
		return err
	}
	for _, h := range n.Hosts {
		if err := n.sw.tool(fmt.Sprintf("link add %[1]s type veth peer name eth%[2]d netns %[3]s\nlink set %[1]s master br%[2]d up\n", h.port(k), k, h.s.path()), "ip", "-batch", "-"); err != nil {
			return err
		}
		if err := h.s.tool(fmt.Sprintf("addr add %s/24 dev eth%[2]d\nlink set eth%[2]d up\n", AddrIn(k, h.Index), k), "ip", "-batch", "-"); err != nil {
			return err
		}
	}
	return nil
}

// port is the name of the end of the cable at the switch of network k.
func (h *Host) port(k int) string { return fmt.Sprintf("port%dn%d", h.Index, k) }

// Close ends the network. Programs that run in it are killed.
func (n *Network) Close() {
	for _, h := range n.Hosts {
		h.s.close()
	}
	n.Hosts = nil
	if n.sw != nil {
		n.sw.close()
		n.sw = nil
	}
}

// Do runs f on a thread inside the host: sockets that f itself makes, and
// settings that it writes, are the host's. One f runs at a time.
func (h *Host) Do(f func() error) error { return h.s.run(f) }

// Start starts cmd in the host, as cmd.Start does. It is killed when the
// network is closed or this process ends.
func (h *Host) Start(cmd *exec.Cmd) error { return h.s.start(cmd) }

// Sysctl sets a variable below net, such as net.ipv4.tcp_rmem, for the host.
func (h *Host) Sysctl(key, value string) error {
	return h.Do(func() error {
		return os.WriteFile("/proc/sys/"+strings.ReplaceAll(key, ".", "/"), []byte(value), 0)
	})
}

// Class numbers below 1: of a host's root queue.
const (
	classTotal  = 1
	classRest   = 2 // small packets and what has no limit of its own
	classTo     = 0x200
	classBucket = 0x400
	// unlimited is the rate of what is not limited.
	unlimited = 100 * Gbit
)

// Shape replaces the limits of the host in the first network.
func (h *Host) Shape(sh Shape) error { return h.ShapeIn(0, sh) }

// ShapeIn replaces the limits of the host in network k.
func (h *Host) ShapeIn(k int, sh Shape) error {
	dev := fmt.Sprintf("eth%d", k)
	if sh.PerFlow > 0 && len(sh.To) > 0 {
		return errors.New("netns: limits per flow and per destination exclude each other")
	}
	// There is nothing to delete the first time.
	_ = h.s.tool("", "tc", "qdisc", "del", "dev", dev, "root")
	_ = h.net.sw.tool("", "tc", "qdisc", "del", "dev", h.port(k), "root")
	var b strings.Builder
	class := func(id, parent int, rate, ceil Rate) {
		fmt.Fprintf(&b, "class add dev %s parent 1:%s classid 1:%x htb rate %dbit ceil %dbit burst %d cburst %d quantum 16000\n",
			dev, map[bool]string{true: fmt.Sprintf("%x", parent), false: ""}[parent > 0], id, rate, ceil, burst(rate), burst(ceil))
	}
	// Below a total, what has no rate of its own gets what is left.
	total := sh.Total
	if total <= 0 {
		total = unlimited
	}
	fmt.Fprintf(&b, "qdisc add dev %s root handle 1: htb default %x\n", dev, classRest)
	class(classTotal, 0, total, total)
	class(classRest, classTotal, max(total/100, Kbit*8), total)
	// Acknowledgements and the like (less than 256 bytes) share no flow's limit.
	fmt.Fprintf(&b, "filter add dev %s parent 1: protocol ip prio 1 u32 match u16 0x0000 0xff00 at 2 flowid 1:%x\n", dev, classRest)
	for i, rate := range sh.To {
		if rate <= 0 {
			continue
		}
		class(classTo+i, classTotal, min(rate, total), min(rate, total))
		fmt.Fprintf(&b, "filter add dev %s parent 1: protocol ip prio 2 u32 match ip dst %s/32 flowid 1:%x\n", dev, AddrIn(k, i), classTo+i)
	}
	if sh.PerFlow > 0 || len(sh.Flows) > 0 {
		fmt.Fprintf(&b, "filter add dev %s parent 1: protocol ip prio 2 handle 2: u32 divisor 256\n", dev)
		for i := range Buckets {
			rate := sh.PerFlow
			if r, ok := sh.Flows[i]; ok {
				rate = r
			}
			id := classRest
			if rate > 0 {
				id = classBucket + i
				class(id, classTotal, min(rate, max(total/Buckets, Kbit*8)), min(rate, total))
			}
			fmt.Fprintf(&b, "filter add dev %s parent 1: protocol ip prio 2 u32 ht 2:%x: match ip protocol 6 0xff flowid 1:%x\n", dev, i, id)
		}
		fmt.Fprintf(&b, "filter add dev %s parent 1: protocol ip prio 2 u32 ht 800:: match ip protocol 6 0xff hashkey mask 0x00ff0000 at 20 link 2:\n", dev)
	}
	if err := h.s.tool(b.String(), "tc", "-batch", "-"); err != nil {
		return err
	}
	if sh.Ingress <= 0 {
		return nil
	}
	queue := sh.IngressQueue
	if queue <= 0 {
		queue = max(int(sh.Ingress/8/20), 64<<10)
	}
	return h.net.sw.tool("", "tc", "qdisc", "add", "dev", h.port(k), "root", "tbf",
		"rate", fmt.Sprintf("%dbit", sh.Ingress), "burst", fmt.Sprint(burst(sh.Ingress)), "limit", fmt.Sprint(queue))
}

// burst is what may pass at once: a whole super-packet of the sender, or what a
// millisecond brings.
func burst(r Rate) int64 { return min(max(int64(r)/8/1000, 66<<10), 8<<20) }

// Dialer returns one whose connections come from source port FirstPort+i, which
// is what Shape.Flows tells flows by.
func Dialer(i int) *net.Dialer {
	return &net.Dialer{
		LocalAddr: &net.TCPAddr{Port: FirstPort + i%Buckets},
		Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if e := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			}); e != nil {
				return e
			}
			return err
		},
	}
}
