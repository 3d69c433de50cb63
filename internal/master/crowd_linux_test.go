package master

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

var soak = flag.Bool("soak", false, "whole crowds instead of small ones")

// masterProcess starts a master in a process of its own.
func masterProcess(t *testing.T) (h *harness, resident func() int) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), alone+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		require.NoError(t, cmd.Wait())
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return &harness{t: t, addr: strings.TrimSpace(addr)}, func() int {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		require.NoError(t, err)
		_, rest, _ := strings.Cut(string(b), "VmHWM:")
		kib := 0
		_, err = fmt.Sscan(rest, &kib)
		require.NoError(t, err)
		return kib >> 10
	}
}

// try connects and sends, and does not mind if the master is quicker to close.
func (h *harness) try(b []byte) *net.TCPConn {
	nc, err := net.Dial("tcp", h.addr)
	if err != nil {
		return nil
	}
	nc.Write(b)
	return nc.(*net.TCPConn)
}

// A crowd of hostile clients, of every kind that holds memory or places, costs
// the master a bounded amount of memory, and no honest peer a connection: all
// register, reduce and leave as they do without it.
func TestHostileCrowd(t *testing.T) {
	crowd, members := 800, 16
	if *soak {
		crowd, members = 10000, 64
	}
	h, resident := masterProcess(t)
	rs := h.grow(nil, wire.Ext{})
	for range members - 1 {
		rs = append(rs, h.register(wire.Ext{}))
	}
	rs[0].send(wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true})
	together(rs, func(r *raw) { r.round() })
	for _, r := range rs {
		r.nc.SetDeadline(time.Now().Add(10 * time.Minute))
	}
	before := resident()

	registration := wire.Append(nil, wire.C2MRequestSessionRegistration{P2PPort: 1})
	asks := registration
	for range 1900 {
		asks = wire.Append(asks, wire.C2MAskTopology{})
	}
	kinds := [][]byte{
		nil,               // says nothing
		registration[:11], // begins
		registration,      // registers, and that is all
		append(registration[:len(registration):len(registration)], append(announce(waitingLimit), make([]byte, waitingLimit-100)...)...),
		append(registration[:len(registration):len(registration)], append(announce(wire.MaxPacket), make([]byte, 1<<20)...)...),
		asks, // never reads
	}
	var open []*net.TCPConn
	defer func() {
		for _, nc := range open {
			nc.Close()
		}
	}()
	for i := range crowd {
		if nc := h.try(kinds[i%len(kinds)]); nc != nil {
			nc.SetReadBuffer(4096)
			open = append(open, nc)
		}
		if i%(crowd/20) == 0 { // an honest one comes, sees and goes
			h.register(wire.Ext{}).nc.Close()
			h.reduce(rs, uint64(i+1))
		}
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		h.reduce(rs, 0)
	}
	t.Logf("%d hostile connections: %d MiB at most, %d before", crowd, resident(), before)
	if !raceEnabled { // which needs several times as much
		require.Less(t, resident(), 256)
	}
}
