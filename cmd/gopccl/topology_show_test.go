package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/internal/probe"
	"github.com/gopccl/gopccl/internal/wire"
)

// optimizedWorld is a run of three peers that have measured their links.
func optimizedWorld(t *testing.T) (master string) {
	t.Helper()
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		m.Close()
	})
	var peers []*core.Communicator
	all := func(f func(c *core.Communicator) error) {
		var wg sync.WaitGroup
		for _, c := range peers {
			wg.Go(func() {
				if err := f(c); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	for range 3 {
		connected := make(chan *core.Communicator, 1)
		go func() {
			c, err := core.Connect(ctx, core.Options{Master: m.Addr().String(), ListenHost: "127.0.0.1", PortBase: -1, Probe: core.ProbeOptions{Connections: 1}})
			if err != nil {
				t.Error(err)
			}
			connected <- c
		}()
		for pending := len(peers) == 0; !pending; {
			var mu sync.Mutex
			all(func(c *core.Communicator) error {
				yes, err := c.PeersPending(ctx)
				mu.Lock()
				defer mu.Unlock()
				pending = yes || err != nil
				return err
			})
		}
		all(func(c *core.Communicator) error { return c.UpdateTopology(ctx) })
		c := <-connected
		require.NotNil(t, c)
		peers = append(peers, c)
		t.Cleanup(func() { c.Close() })
	}
	all(func(c *core.Communicator) error { return c.OptimizeTopology(ctx) })
	return m.Addr().String()
}

// What a running master knows is written as a file, and drawn.
func TestTopologyMeasureAndShow(t *testing.T) {
	master := optimizedWorld(t)
	file, svg := filepath.Join(t.TempDir(), "run.json"), filepath.Join(t.TempDir(), "run.svg")
	code, out, errOut := gopccl(t, "topology", "measure", "--master", master)
	require.Equal(t, exitOK, code, errOut)
	var m measured
	require.NoError(t, json.Unmarshal([]byte(out), &m))
	require.Equal(t, 3, m.N)
	require.Len(t, m.Ring, 3)
	for i, row := range m.Mbps {
		for j, v := range row {
			require.Equal(t, i != j, v != nil)
		}
	}
	code, out, errOut = gopccl(t, "topology", "measure", "--master", master, "--output", file)
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "3 peers")
	for _, source := range [][]string{{file}, {"--master", master}} {
		code, out, errOut = gopccl(t, append([]string{"topology", "show", "--svg", svg}, source...)...)
		require.Equal(t, exitOK, code, errOut)
		require.Contains(t, out, "ring of 3, slowest link")
		require.Equal(t, 3, strings.Count(out, ">")-2, out)
		image, err := os.ReadFile(svg)
		require.NoError(t, err)
		require.Contains(t, string(image), "<svg")
	}
	code, out, _ = gopccl(t, "topology", "show", file, "--ring", "none")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "no ring")
	code, out, _ = gopccl(t, "topology", "show", file, "--ring", "0,2,1")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, m.Peers[0].Name+" > "+m.Peers[2].Name)
	code, out, errOut = gopccl(t, "topology", "explain", "--master", master)
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "3 peers")
	require.Contains(t, out, "missing   round trips")
	code, out, errOut = gopccl(t, "topology", "explain", "--master", master, "--rtt", "80ms")
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "delays add up to 80ms, to 160ms along the ring")
	require.Regexp(t, `(?m)^ +1KiB +160\.\d ms +80\.\d ms +- +direct$`, out)
	requireNoSlower(t, out, "64MiB")
	code, out, errOut = gopccl(t, "topology", "solve", file, "--quiet")
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "3 peers")
}

// requireNoSlower checks that the plan of a size is no slower than the ring, whichever it
// is by rates that were measured.
func requireNoSlower(t *testing.T, table, size string) {
	t.Helper()
	row := regexp.MustCompile(`(?m)^ +` + size + ` +(\S+) ms +(?:(\S+) ms|-) +(?:(\S+) ms|-) +(\S.*)$`).FindStringSubmatch(table)
	require.NotNil(t, row, table)
	column := map[string]int{"ring": 1, "direct": 2}[row[4]]
	if column == 0 {
		column = 3
	}
	ring, err := strconv.ParseFloat(row[1], 64)
	require.NoError(t, err)
	took, err := strconv.ParseFloat(row[column], 64)
	require.NoError(t, err, "%q has no time", row[0])
	require.LessOrEqual(t, took, ring, row[0])
}

func TestTopologyMeasureBetweenHosts(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	s := probe.NewServer(probe.ServerConfig{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Serve(ln)
	}()
	defer func() {
		s.Close()
		<-ended
	}()
	code, out, errOut := gopccl(t, "topology", "measure", ln.Addr().String(), "--json")
	require.Equal(t, exitOK, code, errOut)
	var got struct{ Mbps float64 }
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Positive(t, got.Mbps)
}

func TestTopologyMistakes(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{"mbps":[[null,1],[1,null]],"ring":[0,0]}`), 0o600))
	good := filepath.Join(t.TempDir(), "good.json")
	require.NoError(t, os.WriteFile(good, []byte(`{"mbps":[[null,1],[1,null]]}`), 0o600))
	deaf, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, deaf.Close())
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no master":       {[]string{"measure", "--master", deaf.Addr().String()}, exitFailed, "gopccl master"},
		"no host":         {[]string{"measure", deaf.Addr().String()}, exitFailed, "connect"},
		"ring of a file":  {[]string{"show", bad}, exitFailed, "every peer once"},
		"ring":            {[]string{"show", good, "--ring", "0,1,2"}, exitUsage, "every peer once"},
		"ring of letters": {[]string{"show", good, "--ring", "a"}, exitUsage, "positions"},
		"short ring":      {[]string{"show", good, "--ring", "1"}, exitUsage, "1 of 2"},
		"round trip":      {[]string{"explain", "--rtt", "-1s"}, exitUsage, "--rtt"},
		"both":            {[]string{"measure", "--serve", "127.0.0.1:0", "127.0.0.1:1"}, exitUsage, "--serve"},
		"port taken":      {[]string{"measure", "--serve", "256.0.0.1:0"}, exitFailed, "256.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, errOut := gopccl(t, append([]string{"topology"}, tc.args...)...)
			require.Equal(t, tc.code, code, errOut)
			require.Contains(t, errOut, tc.want)
		})
	}
	for _, g := range []wire.GroupTopology{
		{Peers: make([]wire.PeerEndpoint, 2), Mbps: make([]float64, 3)},
		{Peers: make([]wire.PeerEndpoint, 1), Mbps: make([]float64, 1), Ring: []uint32{1}},
	} {
		_, err := newMeasured("x", g)
		require.Error(t, err)
	}
}

// unequal are the links of members with uplinks of 20 to 400 Mbit/s.
func unequal() (rates [][]*float64) {
	for i, up := range []float64{20, 100, 200, 400} {
		row := []*float64{&up, &up, &up, &up}
		row[i] = nil
		rates = append(rates, row)
	}
	return rates
}

// A matrix of a file is explained with its ring, and delays of another file.
func TestTopologyExplainsFiles(t *testing.T) {
	dir := t.TempDir()
	rates, trips := filepath.Join(dir, "rates.csv"), filepath.Join(dir, "trips.csv")
	const n = 20
	var a, b strings.Builder
	for i := range n {
		for j := range n {
			switch {
			case i == j:
				a.WriteString("-,")
				b.WriteString("-,")
			case i == 0 && j == 1:
				a.WriteString("-,") // there is no link
				b.WriteString("-,")
			default:
				fmt.Fprintf(&a, "%d,", min(20+20*i, 300))
				b.WriteString("100,")
			}
		}
		a.WriteString("\n")
		b.WriteString("\n")
	}
	lines := func(s string) []byte { return []byte(strings.ReplaceAll(s, ",\n", "\n")) }
	require.NoError(t, os.WriteFile(rates, lines(a.String()), 0o600))
	require.NoError(t, os.WriteFile(trips, lines(b.String()), 0o600))
	code, out, errOut := gopccl(t, "topology", "explain", rates, "--delays", trips)
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "20 peers")
	require.Regexp(t, `(?m)^ +1KiB +\d+\.\d ms +- +1\d\d\.\d ms +stars? ?\d*$`, out)
	require.Regexp(t, `(?m)^ +64MiB .* (shares.*|relays)$`, out)
	require.Regexp(t, `(?m)^16MiB .*no plan sends the bytes in less than `, out)
	code, _, errOut = gopccl(t, "topology", "explain", rates, "--delays", filepath.Join(dir, "none.csv"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "none.csv")
	code, out, errOut = gopccl(t, "topology", "explain", rates)
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "missing   round trips")
}

// What is not known is said, and so is why there is nothing to choose.
func TestTopologyExplain(t *testing.T) {
	rate := 50.0
	for name, tc := range map[string]struct {
		m    measured
		rtt  time.Duration
		want []string
	}{
		"two peers":  {measured{N: 2, Ring: []int{0, 1}}, time.Second, []string{"no other plan", "100 Mbit/s", "assumed"}},
		"no ring":    {measured{N: 3}, time.Second, []string{"ask again"}},
		"no delays":  {measured{N: 3, Ring: []int{0, 2, 1}}, 0, []string{"missing   round trips"}},
		"near peers": {measured{N: 3, Ring: []int{0, 2, 1}}, time.Millisecond, []string{"for all sizes", "less than 4ms"}},
		"a rate": {
			measured{N: 3, Ring: []int{0, 2, 1}, Mbps: [][]*float64{{nil, &rate, nil}}},
			time.Second,
			[]string{"50 Mbit/s", "as measured", "direct    up to 4194304 bytes"},
		},
		"unequal rates": {
			measured{N: 4, Ring: []int{0, 1, 2, 3}, Mbps: unequal()},
			80 * time.Millisecond,
			[]string{"shares    from 1048576 bytes: predicted", "along the ring", "trees"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			require.NoError(t, tc.m.explain(&out, tc.rtt))
			for _, want := range tc.want {
				require.Contains(t, out.String(), want)
			}
		})
	}
}
