package e2e

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/tests/internal/issued"
)

// dialled is what a peer connected to.
type dialled struct {
	mu    sync.Mutex
	addrs []string
}

func (d *dialled) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d.mu.Lock()
	d.addrs = append(d.addrs, addr)
	d.mu.Unlock()
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

// to returns how often addr was connected to.
func (d *dialled) to(addr string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.addrs {
		if a == addr {
			n++
		}
	}
	return n
}

// A peer whose port, or three ports, are forwarded, behind an address that the master sees
// or that the peer names: all kinds of connections take the forwards.
func TestPortForwarding(t *testing.T) {
	for i, c := range []struct {
		announced string
		ports     []int // nobody else listens below those that the system draws
	}{{"", []int{21001}}, {"", []int{21001, 21002, 21003}}, {"127.0.0.9", []int{21001}}} {
		announced, ports := c.announced, c.ports
		t.Run(fmt.Sprintf("host %s, %d ports", announced, len(ports)), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			inside := fmt.Sprintf("127.0.0.%d", 40+i)
			outside := announced
			if outside == "" {
				outside = "127.0.0.1" // where the connection to the master comes from
			}
			var forwards []string
			var forwarded []int
			for _, p := range ports {
				r := newRelayAt(t, outside+":0", fmt.Sprintf("%s:%d", inside, p), inside, make(chan struct{}), 0)
				at := r.ln.Addr().(*net.TCPAddr).AddrPort()
				forwards, forwarded = append(forwards, at.String()), append(forwarded, int(at.Port()))
			}
			var d dialled
			comms := world(t, ctx, localMaster(t), 3, func(id int, o *core.Options) {
				o.PoolSize, o.Probe.Connections, o.Probe.Duration = 2, 1, 300*time.Millisecond
				if id != 2 {
					o.Dial = d.dial
					return
				}
				o.PortBase, o.ListenHost, o.Ports = 0, inside, ports
				o.Announce.Ports, o.Announce.Host = forwarded, announced
			})
			for _, err := range each(comms, func(i int, c *core.Communicator) error {
				// Only the one behind the forwards has the state.
				v := []int32{int32(i), int32(i)}
				opt := core.SyncOptions{Strategy: core.ReceiveOnly}
				if i == 2 {
					opt.Strategy = core.SendOnly
				}
				if _, err := c.SyncSharedState(ctx, &core.SharedState{Tensors: []core.Tensor{core.TensorOf("v", v)}}, opt); err != nil {
					return err
				}
				if !slices.Equal(v, []int32{2, 2}) {
					return fmt.Errorf("state is %v", v)
				}
				if err := c.OptimizeTopology(ctx); err != nil {
					return err
				}
				x := make([]int32, 100_000)
				for k := range x {
					x[k] = int32(k)
				}
				if _, err := core.AllReduceSlice(ctx, c, x, x, core.Sum); err != nil {
					return err
				}
				for k := range x {
					if x[k] != int32(3*k) {
						return fmt.Errorf("element %d is %d", k, x[k])
					}
				}
				return nil
			}) {
				require.NoError(t, err)
			}
			if len(ports) == 1 {
				assert.GreaterOrEqual(t, d.to(forwards[0]), 2+2+2, "for every purpose") // S1-08
			} else {
				assert.Equal(t, 2, d.to(forwards[0]), "two that lack the state")
				assert.GreaterOrEqual(t, d.to(forwards[1]), 2, "at least one neighbour, with two connections")
				assert.GreaterOrEqual(t, d.to(forwards[2]), 2, "two that measure the link")
			}
			for _, a := range d.addrs {
				assert.False(t, strings.HasPrefix(a, inside), "%s cannot be reached from outside", a)
			}
		})
	}
}

// connections returns (local address, remote address) of the established
// connections of this machine that go to one of the ports.
func connections(t *testing.T, ports []uint16) (out [][2]netip.Addr) {
	t.Helper()
	for _, family := range []string{"tcp4", "tcp6"} {
		list, err := established(family)
		require.NoError(t, err)
		for _, c := range list {
			if slices.Contains(ports, c[1].Port()) {
				out = append(out, [2]netip.Addr{c[0].Addr(), c[1].Addr()})
			}
		}
	}
	return out
}

// established returns local and remote address of the connections of a family
// that stand, from the system's own table.
func established(family string) (out [][2]netip.AddrPort, err error) {
	text, err := os.ReadFile("/proc/net/" + strings.TrimSuffix(family, "4"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != "01" {
			continue
		}
		var pair [2]netip.AddrPort
		for i, word := range f[1:3] {
			host, port, _ := strings.Cut(word, ":")
			b, err := hex.DecodeString(host)
			if err != nil {
				return nil, err
			}
			for k := 0; k+4 <= len(b); k += 4 { // words in the machine's order
				binary.BigEndian.PutUint32(b[k:], binary.NativeEndian.Uint32(b[k:]))
			}
			a, _ := netip.AddrFromSlice(b)
			n, err := strconv.ParseUint(port, 16, 16)
			if err != nil {
				return nil, err
			}
			pair[i] = netip.AddrPortFrom(a.Unmap(), uint16(n))
		}
		out = append(out, pair)
	}
	return out, nil
}

// The connections to a neighbour are spread over the networks of both: to each
// of the addresses that it has, from the own one in the same place of the list;
// with a neighbour that has named none, from each of the own addresses.
func TestSeveralNetworks(t *testing.T) {
	own, others := []string{"127.0.1.1", "127.0.2.1"}, []string{"127.0.1.2", "127.0.2.2"}
	for name, tc := range map[string]struct {
		first, second []string
		want          map[string]int // of the connections of the first to the second
	}{
		"both":          {own, others, map[string]int{"127.0.0.1 127.0.0.1": 1, "127.0.1.1 127.0.1.2": 2, "127.0.2.1 127.0.2.2": 2}},
		"only one":      {own, nil, map[string]int{"127.0.0.1 127.0.0.1": 1, "127.0.1.1 127.0.0.1": 2, "127.0.2.1 127.0.0.1": 2}},
		"only other":    {nil, others, map[string]int{"127.0.0.1 127.0.0.1": 1, "127.0.0.1 127.0.1.2": 2, "127.0.0.1 127.0.2.2": 2}},
		"another count": {own[:1], others, map[string]int{"127.0.0.1 127.0.0.1": 1, "127.0.0.1 127.0.1.2": 2, "127.0.0.1 127.0.2.2": 2}},
		"interface":     {[]string{"lo"}, others[:1], map[string]int{"127.0.0.1 127.0.0.1": 1, "127.0.0.1 127.0.1.2": 4}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			comms := world(t, ctx, localMaster(t), 2, func(id int, o *core.Options) {
				o.PoolSize, o.Addresses = 5, tc.first
				if id == 1 {
					o.Addresses, o.Ports = tc.second, []int{21200, 21201, 21202}
				}
			})
			for range 3 {
				sums(t, ctx, comms)
			}
			var got map[string]int
			spread := func() bool {
				got = map[string]int{}
				for _, c := range connections(t, []uint16{21201}) {
					got[c[0].String()+" "+c[1].String()]++
				}
				// The system may choose a loopback address as the source of its own.
				for k, n := range got {
					from, to, _ := strings.Cut(k, " ")
					if tc.want[k] == 0 && from == to {
						delete(got, k)
						got["127.0.0.1 "+to] += n
					}
				}
				return maps.Equal(tc.want, got)
			}
			assert.Eventually(t, spread, patience, time.Millisecond) // one that was a trial may be about to end
			require.Equal(t, tc.want, got)                           // S3-19
		})
	}
}

// Addresses of a neighbour that lead nowhere, or to somebody else in the run,
// cost nothing but a word in the log: the connections go where the master said.
func TestAddressesOfAnotherNetwork(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	base := func(id int) int { return 21400 + 10*id }
	var logs [3]lockedBuffer
	comms := world(t, ctx, localMaster(t), 3, func(id int, o *core.Options) {
		o.PoolSize, o.Logger = 3, slog.New(slog.NewTextHandler(&logs[id], nil))
		o.PortBase, o.Ports = 0, []int{base(id), base(id) + 1, base(id) + 2}
		o.Addresses = []string{fmt.Sprintf("127.0.%d.1", 50+id), fmt.Sprintf("127.0.%d.2", 50+id)}
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			switch b := netip.MustParseAddrPort(addr).Addr().As4(); {
			case b[2] >= 50 && b[3] == 1: // here it is the one after it
				addr = fmt.Sprintf("127.0.0.1:%d", base((int(b[2]-50)+1)%3)+1)
			case b[2] >= 50: // of a network that does not exist here
				addr = "127.0.0.1:1"
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	for range 3 {
		sums(t, ctx, comms)
	}
	for i := range logs {
		written(t, "an address of a neighbour cannot be reached", &logs[i])
	}
	other := "it is meant for another peer, which named this address as its own"
	if issued.On() { // the certificate says so first
		other = "wrong name of peer"
	}
	written(t, other, &logs[0], &logs[1], &logs[2])
}

// Connect names addresses that are not of this machine.
func TestForeignAddresses(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	master := localMaster(t)
	for name, o := range map[string]core.Options{
		"203.0.113.77":     {Addresses: []string{"127.0.0.1", "203.0.113.77"}},
		"nosuch0":          {Addresses: []string{"nosuch0"}},
		"::1":              {Addresses: []string{"::1"}}, // the master is reached by IPv4
		"0.0.0.0":          {Addresses: []string{"0.0.0.0"}},
		"more than 16":     {Addresses: slices.Repeat([]string{"127.0.0.1"}, 17)},
		"alone":            {Addresses: []string{"127.0.0.1"}, ListenHost: "127.0.0.1"},
		"[1 2 1]":          {Ports: []int{1, 2, 1}},
		"[1 2 70000]":      {Ports: []int{1, 2, 70000}},
		"[1 2] is neither": {Ports: []int{1, 2}},
		"not as many":      {Ports: []int{21301}, Announce: core.AnnounceOptions{Ports: []int{1, 2, 3}}},
		"none are set":     {Announce: core.AnnounceOptions{Ports: []int{1, 2, 3}}},
		"somewhere":        {Announce: core.AnnounceOptions{Host: "somewhere"}},
		"224.0.0.1":        {Announce: core.AnnounceOptions{Host: "224.0.0.1"}},
		"[21301 21302 0":   {Ports: []int{21301, 21302, 21303}, Announce: core.AnnounceOptions{Ports: []int{21301, 21302, 0}}},
	} {
		o.Master = master
		_, err := connect(ctx, o)
		require.ErrorIs(t, err, errs.InvalidArgument, name)
		require.ErrorContains(t, err, name)
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:21302")
	require.NoError(t, err)
	defer ln.Close()
	_, err = connect(ctx, core.Options{Master: master, Ports: []int{21301, 21302, 21303}})
	require.ErrorIs(t, err, errs.InvalidArgument, "a port that is taken")
}
