//go:build wan

package netns_test

import (
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/netns"
)

// send moves what fits into a second over flows connections from one host to
// another and returns the bits per second of each that arrived.
func send(t *testing.T, from, to *netns.Host, flows int) (each []float64, sum float64) {
	var ln net.Listener
	require.NoError(t, to.Do(func() (err error) {
		ln, err = net.Listen("tcp4", netip.AddrPortFrom(to.Addr, 0).String())
		return err
	}))
	defer ln.Close()
	each = make([]float64, flows)
	var wg sync.WaitGroup
	for i := range flows {
		var c net.Conn
		require.NoError(t, from.Do(func() (err error) {
			d := netns.Dialer(i)
			c, err = d.Dial("tcp4", ln.Addr().String())
			return err
		}))
		r, err := ln.Accept()
		require.NoError(t, err)
		end := time.Now().Add(1500 * time.Millisecond)
		wg.Add(2)
		go func() {
			defer wg.Done()
			defer c.Close()
			c.SetWriteDeadline(end)
			b := make([]byte, 1<<20)
			for {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
		go func() {
			defer wg.Done()
			defer r.Close()
			b := make([]byte, 256<<10)
			r.SetReadDeadline(end)
			warm := time.Now().Add(500 * time.Millisecond)
			n := 0
			for time.Now().Before(warm) {
				if _, err := r.Read(b); err != nil {
					return
				}
			}
			start := time.Now()
			for {
				k, err := r.Read(b)
				n += k
				if err != nil {
					break
				}
			}
			each[i] = float64(n) * 8 / time.Since(start).Seconds()
		}()
	}
	wg.Wait()
	for _, x := range each {
		sum += x
	}
	return each, sum
}

// Every limit limits what it names, and nothing else.
func TestRates(t *testing.T) {
	n, err := netns.New(3)
	require.NoError(t, err)
	defer n.Close()
	a, b, c := n.Hosts[0], n.Hosts[1], n.Hosts[2]
	near := func(want netns.Rate, got float64) {
		t.Helper()
		require.InEpsilon(t, float64(want), got, 0.2) // headers take 5 %
	}
	_, free := send(t, a, b, 1)
	require.Greater(t, free, 1e9)

	require.NoError(t, a.Shape(netns.Shape{To: map[int]netns.Rate{1: 50 * netns.Mbit, 2: 200 * netns.Mbit}}))
	_, x := send(t, a, b, 2)
	near(50*netns.Mbit, x)
	_, x = send(t, a, c, 1)
	near(200*netns.Mbit, x)
	_, x = send(t, b, a, 1)
	require.Greater(t, x, 1e9)

	require.NoError(t, a.Shape(netns.Shape{Total: 100 * netns.Mbit, PerFlow: 30 * netns.Mbit, Flows: map[int]netns.Rate{1: 3 * netns.Mbit}}))
	each, _ := send(t, a, b, 3)
	near(30*netns.Mbit, each[0])
	near(3*netns.Mbit, each[1])
	near(30*netns.Mbit, each[2])
	_, x = send(t, a, b, 8)
	near(100*netns.Mbit, x)

	require.NoError(t, a.Shape(netns.Shape{}))
	require.NoError(t, b.Shape(netns.Shape{Ingress: 80 * netns.Mbit}))
	_, x = send(t, a, b, 2)
	require.InEpsilon(t, float64(80*netns.Mbit), x, 0.25) // that queue drops
	_, x = send(t, b, a, 1)
	require.Greater(t, x, 1e9)
}

// A second network has limits of its own, and its own addresses.
func TestSecondNetwork(t *testing.T) {
	n, err := netns.New(2)
	require.NoError(t, err)
	defer n.Close()
	require.NoError(t, n.Join())
	a, b := n.Hosts[0], n.Hosts[1]
	require.NoError(t, a.ShapeIn(1, netns.Shape{Total: 30 * netns.Mbit}))
	_, x := send(t, a, b, 2)
	require.Greater(t, x, 1e9)
	second := *b
	second.Addr = netns.AddrIn(1, 1)
	_, x = send(t, a, &second, 2)
	require.InEpsilon(t, 30e6, x, 0.2)
}

// A program runs inside its host and dies with the network.
func TestProgram(t *testing.T) {
	n, err := netns.New(1)
	require.NoError(t, err)
	h := n.Hosts[0]
	cmd := exec.Command("ip", "-o", "addr", "show", "dev", "eth0")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = w
	require.NoError(t, h.Start(cmd))
	w.Close()
	out, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	require.Contains(t, string(out), h.Addr.String())

	long := exec.Command("sleep", "600")
	require.NoError(t, h.Start(long))
	n.Close()
	require.Error(t, long.Wait())
}
