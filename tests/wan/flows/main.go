// Flows measures what several connections per link bring: all-reduces of two
// gopccl peers in network namespaces (Linux, root) whose links limit every TCP
// flow, or all of them together.
//
//	go run ./tests/wan/flows
//
// prints seven tables: the curve from 1 to 128 flows under a limit per flow; the
// same under a long round trip with a small window per flow; what the length of
// the round trip costs one flow and eight; the cost of one slow flow among
// eight; how much of a full-duplex link both directions use at once; what a
// second network brings; and what TLS costs on a link.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/netns"
)

// taskVariable holds the task of a process of a world.
const taskVariable = "GOPCCL_WAN_FLOWS_TASK"

func main() {
	if text := os.Getenv(taskVariable); text != "" {
		var t task
		err := json.Unmarshal([]byte(text), &t)
		if err == nil {
			err = work(t)
		}
		if err != nil {
			json.NewEncoder(os.Stdout).Encode(report{Err: err.Error()})
			os.Exit(1)
		}
		return
	}
	only := flag.String("only", "curve,window,delay,slow,duplex,nics,cipher", "tables to print")
	least := flag.Int("least", 1, "fewest flows of the curves")
	most := flag.Int("flows", 128, "most flows of the curves")
	seconds := flag.Float64("seconds", 2, "length of one all-reduce at the limit, in seconds")
	flag.Parse()
	for _, t := range []struct {
		name string
		run  func(least, most int, seconds float64) error
	}{{"curve", curve}, {"window", window}, {"delay", delay}, {"slow", slow}, {"duplex", duplex}, {"nics", nics}, {"cipher", cipher}} {
		if slices.Contains(strings.Split(*only, ","), t.name) {
			if err := t.run(max(*least, 1), *most, *seconds); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
}

// child is a process of a world.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func launch(h *netns.Host, t task) (*child, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := []string{self}
	if t.Secure {
		command = issued.Command(self)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c := &child{cmd, in, bufio.NewScanner(out)}
	return c, h.Start(cmd)
}

func (c *child) hear() (r report, err error) {
	if !c.out.Scan() {
		return r, errors.Join(errors.New("a process of the world ended"), c.out.Err())
	}
	if err := json.Unmarshal(c.out.Bytes(), &r); err != nil {
		return r, err
	}
	if r.Err != "" {
		return r, errors.New(r.Err)
	}
	return r, nil
}

func (c *child) end() {
	c.in.Close()
	c.cmd.Wait()
}

// pair is a master (host 0) and two peers (hosts 1 and 2).
type pair struct {
	net      *netns.Network
	children []*child // the master last
}

// newPair starts a pair whose links have the shape; further totals are those of
// links in further networks.
func newPair(shape netns.Shape, t task, further ...netns.Rate) (p *pair, err error) {
	n, err := netns.New(3)
	if err != nil {
		return nil, err
	}
	made := &pair{net: n}
	defer func() {
		if err != nil {
			made.close()
		}
	}()
	if err := made.shape(shape); err != nil {
		return nil, err
	}
	for k, total := range further {
		if err := n.Join(); err != nil {
			return nil, err
		}
		for _, h := range n.Hosts[1:] {
			if err := h.ShapeIn(k+1, netns.Shape{Total: total}); err != nil {
				return nil, err
			}
		}
	}
	master, err := launch(n.Hosts[0], task{Role: "master", Secure: t.Secure, Master: netip.AddrPortFrom(n.Hosts[0].Addr, 48148).String()})
	if err != nil {
		return nil, err
	}
	defer func() { made.children = append(made.children, master) }()
	r, err := master.hear()
	if err != nil {
		return nil, err
	}
	t.Role, t.Master, t.World = "peer", r.Addr, 2
	for _, h := range n.Hosts[1:] {
		c, err := launch(h, t)
		if err != nil {
			return nil, err
		}
		made.children = append(made.children, c)
	}
	for _, c := range made.children {
		if _, err := c.hear(); err != nil {
			return nil, err
		}
	}
	return made, nil
}

func (p *pair) shape(s netns.Shape) error {
	return errors.Join(p.net.Hosts[1].Shape(s), p.net.Hosts[2].Shape(s))
}

func (p *pair) close() {
	for _, c := range p.children {
		c.end()
	}
	p.net.Close()
}

// reduce all-reduces bytes and returns how long the slower peer took.
func (p *pair) reduce(bytes int) (took time.Duration, err error) {
	peers := p.children[:2]
	for _, c := range peers {
		if _, err := fmt.Fprintln(c.in, bytes/4); err != nil {
			return 0, err
		}
	}
	for _, c := range peers {
		r, err := c.hear()
		if err != nil {
			return 0, err
		}
		took = max(took, r.Took)
	}
	return took, nil
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// mbit is the rate of an all-reduce in a world of two, in which each peer sends
// as many bytes as the buffer has.
func mbit(bytes int, took time.Duration) float64 { return float64(bytes) * 8 / took.Seconds() / 1e6 }

// sweep prints one row per number of flows. limit is the rate of one flow in Mbit/s.
func sweep(least, most int, seconds, limit float64, shape netns.Shape, t task) error {
	fmt.Println("| flows | all-reduce, s | Mbit/s each way | of flows x limit | one flow per operation, Mbit/s |")
	fmt.Println("|---|---|---|---|---|")
	eight, last := 0.0, ""
	for n := least; n <= most; n *= 2 {
		bytes := int(float64(n) * limit * 1e6 / 8 * seconds)
		run := func(flows, bytes int) (float64, time.Duration, error) {
			t.Pool, t.Flows = n, flows
			p, err := newPair(shape, t)
			if err != nil {
				return 0, 0, err
			}
			defer p.close()
			var took []time.Duration
			for range 3 {
				d, err := p.reduce(bytes)
				if err != nil {
					return 0, 0, err
				}
				took = append(took, d)
			}
			m := median(took)
			return mbit(bytes, m), m, nil
		}
		rate, took, err := run(0, bytes)
		if err != nil {
			return err
		}
		one := "-"
		if n == 8 {
			r, _, err := run(1, bytes/n)
			if err != nil {
				return err
			}
			one = fmt.Sprintf("%.1f", r)
		}
		fmt.Printf("| %d | %.2f | %.1f | %.2f | %s |\n", n, took.Seconds(), rate, rate/(float64(n)*limit), one)
		switch n {
		case 8:
			eight = rate
		case 128:
			if eight == 0 {
				break
			}
			last = fmt.Sprintf("128 connections carry %.1f times what 8 do.\n\n", rate/eight)
		}
	}
	fmt.Print("\n", last)
	return nil
}

func curve(least, most int, seconds float64) error {
	const limit = 4.
	fmt.Printf("All-reduce of float32, two peers, %v Mbit/s per flow (token bucket; headers included):\n\n", limit)
	return sweep(least, most, seconds, limit, netns.Shape{PerFlow: netns.Rate(limit * 1e6)}, task{})
}

func window(least, most int, seconds float64) error {
	h := hop{delay: 50 * time.Millisecond, window: 64 << 10}
	limit := float64(h.window) * 8 / h.delay.Seconds() / 1e6
	fmt.Printf("All-reduce of float32, two peers, every flow %v long with a window of %d KiB (%.1f Mbit/s):\n\n", h.delay, h.window>>10, limit)
	return sweep(least, min(most, 32), seconds, limit, netns.Shape{}, task{Delay: h.delay, Window: h.window})
}

// delay shows what the length of the way costs one connection and eight, with
// the window of TCP that does not grow with it.
func delay(_, _ int, _ float64) error {
	const window, bytes = 128 << 10, 4 << 20 // window for a round trip
	fmt.Printf("All-reduce of %d MiB of float32, two peers, a window of %d KiB per connection:\n\n", bytes>>20, window>>10)
	fmt.Println("| round trip, ms | window / round trip, Mbit/s | 1 connection, s | 8 connections, s | ratio |\n|---|---|---|---|---|")
	for _, trip := range []time.Duration{10, 50, 100, 200} {
		trip *= time.Millisecond
		var took [2]time.Duration
		for i, n := range []int{1, 8} {
			p, err := newPair(netns.Shape{}, task{Pool: n, Delay: trip / 2, Window: window / 2})
			if err != nil {
				return err
			}
			var each []time.Duration
			for range 3 {
				d, err := p.reduce(bytes)
				if err != nil {
					p.close()
					return err
				}
				each = append(each, d)
			}
			p.close()
			took[i] = median(each)
		}
		fmt.Printf("| %d | %.1f | %.2f | %.2f | %.1f |\n", trip.Milliseconds(), window*8/trip.Seconds()/1e6, took[0].Seconds(), took[1].Seconds(), took[0].Seconds()/took[1].Seconds())
	}
	fmt.Println()
	return nil
}

func slow(_, _ int, seconds float64) error {
	const limit, flows = 16 * netns.Mbit, 8
	bytes := int(float64(limit) / 8 * flows * seconds * 2)
	even := netns.Shape{PerFlow: limit}
	uneven := netns.Shape{PerFlow: limit, Flows: map[int]netns.Rate{3: limit / 10}}
	p, err := newPair(even, task{Pool: flows})
	if err != nil {
		return err
	}
	defer p.close()
	fmt.Printf("All-reduce of %d MiB, %d flows of %d Mbit/s, one of them a tenth of it, in turns:\n\n", bytes>>20, flows, limit/netns.Mbit)
	fmt.Println("| all equal, s | one slow, s | ratio | of which the lost rate |\n|---|---|---|---|")
	var ratios []float64
	for range 3 {
		var took [2]time.Duration
		for i, s := range []netns.Shape{even, uneven} {
			if err := p.shape(s); err != nil {
				return err
			}
			if took[i], err = p.reduce(bytes); err != nil {
				return err
			}
		}
		ratios = append(ratios, took[1].Seconds()/took[0].Seconds())
		fmt.Printf("| %.2f | %.2f | %.3f | %.3f |\n", took[0].Seconds(), took[1].Seconds(), ratios[len(ratios)-1], flows/(flows-0.9))
	}
	slices.Sort(ratios)
	fmt.Printf("\nmedian ratio %.3f, mark 1.15\n\n", ratios[len(ratios)/2])
	return nil
}

// nics shows what a second network brings: its rate comes on top of that of the
// first, be it as fast or not.
func nics(_, _ int, seconds float64) error {
	const first = 100 * netns.Mbit
	fmt.Printf("All-reduce of float32, two peers, 8 connections over one or two networks:\n\n")
	fmt.Println("| first, Mbit/s | second, Mbit/s | Mbit/s each way | of the sum |\n|---|---|---|---|")
	for _, second := range []netns.Rate{0, first, first / 4} {
		sum := float64(first+second) / 1e6
		rate, err := overNetworks(first, second, int(sum*1e6/8*seconds))
		if err != nil {
			return err
		}
		name := "-"
		if second > 0 {
			name = fmt.Sprint(int64(second / netns.Mbit))
		}
		fmt.Printf("| %d | %s | %.1f | %.2f |\n", first/netns.Mbit, name, rate, rate/sum)
	}
	fmt.Println()
	return nil
}

// overNetworks returns the rate of an all-reduce over a network with the first
// rate and, if it is not 0, one with the second.
func overNetworks(first, second netns.Rate, bytes int) (float64, error) {
	p, err := newPair(netns.Shape{Total: first}, task{Pool: 8, Own: second > 0}, second)
	if err != nil {
		return 0, err
	}
	defer p.close()
	var each []time.Duration
	for range 3 {
		d, err := p.reduce(bytes)
		if err != nil {
			return 0, err
		}
		each = append(each, d)
	}
	return mbit(bytes, median(each)), nil
}

// duplex compares an all-reduce, which sends and receives at once, with a
// single stream over the same link.
func duplex(_, _ int, seconds float64) error {
	const limit = 100 * netns.Mbit
	bytes := int(float64(limit) / 8 * seconds)
	p, err := newPair(netns.Shape{Total: limit}, task{Pool: 1})
	if err != nil {
		return err
	}
	defer p.close()
	fmt.Printf("A full-duplex link of %d Mbit/s:\n\n| one way, Mbit/s | all-reduce, both ways, Mbit/s | ratio |\n|---|---|---|\n", limit/netns.Mbit)
	for range 3 {
		one, err := stream(p.net.Hosts[1], p.net.Hosts[2], bytes)
		if err != nil {
			return err
		}
		took, err := p.reduce(bytes)
		if err != nil {
			return err
		}
		both := 2 * mbit(bytes, took)
		fmt.Printf("| %.1f | %.1f | %.2f |\n", one, both, both/one)
	}
	fmt.Println("\nmark 1.8")
	return nil
}

// stream sends bytes over one connection and returns the Mbit/s that arrived.
func stream(from, to *netns.Host, bytes int) (float64, error) {
	var ln net.Listener
	if err := to.Do(func() (err error) {
		ln, err = net.Listen("tcp4", netip.AddrPortFrom(to.Addr, 0).String())
		return err
	}); err != nil {
		return 0, err
	}
	defer ln.Close()
	var c net.Conn
	if err := from.Do(func() (err error) {
		c, err = net.Dial("tcp4", ln.Addr().String())
		return err
	}); err != nil {
		return 0, err
	}
	r, err := ln.Accept()
	if err != nil {
		c.Close()
		return 0, err
	}
	defer r.Close()
	start := time.Now()
	go func() {
		defer c.Close()
		b := make([]byte, 64<<10)
		for left := bytes; left > 0; left -= len(b) {
			if _, err := c.Write(b[:min(left, len(b))]); err != nil {
				return
			}
		}
	}()
	n, err := io.Copy(io.Discard, r)
	return mbit(int(n), time.Since(start)), err
}
