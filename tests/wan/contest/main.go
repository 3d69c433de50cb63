// Command contest measures all-reduces over the wide-area networks of tests/wan/internal/lab,
// with the defaults of gopccl, beside plain TCP that sends as many bytes over one
// or more connections. All take turns in one run; the table says for each how long
// an operation took (median, without the first), what part of the ideal that is
// (the bytes at the rate of the slowest uplink), and what share of the packets the
// machine delivered late. Linux, root.
//
//	go run ./tests/wan/contest -profile regional -bytes 16777216,400000
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gopccl/gopccl/tests/wan/internal/lab"
)

const orderVariable = "GOPCCL_CONTEST_ORDER"

func main() {
	if text := os.Getenv(orderVariable); text != "" {
		var o order
		err := json.Unmarshal([]byte(text), &o)
		if err == nil {
			err = work(o)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "contest:", err)
			os.Exit(1)
		}
		return
	}
	if err := compete(); err != nil {
		fmt.Fprintln(os.Stderr, "contest:", err)
		os.Exit(1)
	}
}

// contestant is a world of processes that do an operation together.
type contestant struct {
	name  string
	procs []*proc
	took  []time.Duration
	stats lab.Stats // of its turns
}

type proc struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func compete() error {
	names := flag.String("profile", "regional", "profiles, comma separated: "+strings.Join(lab.Names(), ", "))
	sizes := flag.String("bytes", "16777216,400000", "bytes of an operation, comma separated")
	rounds := flag.Int("rounds", 5, "operations of each, the first not counted")
	plain := flag.String("plain", "1,4,16", "connections of plain TCP, comma separated")
	congestion := flag.String("congestion", "cubic", "congestion control of all hosts")
	seed := flag.Uint64("seed", 1, "of the losses")
	flag.Parse()
	fmt.Println("| profile | bytes | contestant | seconds | of the ideal | packets dropped, lost an operation | late |\n|---|---|---|---|---|---|---|")
	for _, name := range strings.Split(*names, ",") {
		p, err := lab.Load(name)
		if err != nil {
			return err
		}
		if err := contest(p, *seed, *congestion, numbers(*sizes), numbers(*plain), *rounds); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func numbers(text string) (ns []int) {
	for _, s := range strings.Split(text, ",") {
		if n, err := strconv.Atoi(s); err == nil && n > 0 {
			ns = append(ns, n)
		}
	}
	return ns
}

// contest builds a network, lets all begin, and then takes turns. The last host
// is the master's.
func contest(p *lab.Profile, seed uint64, congestion string, sizes, plain []int, rounds int) error {
	l, err := lab.Start(p, seed)
	if err != nil {
		return err
	}
	defer l.Close()
	allow(congestion)
	for _, h := range l.Hosts {
		if err := h.Sysctl("net.ipv4.tcp_congestion_control", congestion); err != nil {
			return fmt.Errorf("congestion control %s: %w", congestion, err)
		}
	}
	world := len(l.Hosts) - 1
	at := func(host, port int) string { return net.JoinHostPort(l.Hosts[host].Addr.String(), strconv.Itoa(port)) }
	master, err := begin(l, world, order{Role: "master", Listen: at(world, 48148)})
	if err != nil {
		return err
	}
	defer master.in.Close() // it works as long as its input is open
	if err := master.ready(); err != nil {
		return err
	}
	all := []*contestant{{name: "gopccl"}}
	for range plain {
		all = append(all, &contestant{})
	}
	for i := range world {
		pr, err := begin(l, i, order{Role: "gopccl", Master: at(world, 48148), World: world})
		if err != nil {
			return err
		}
		all[0].procs = append(all[0].procs, pr)
		for k, n := range plain {
			c, port := all[k+1], 20000+k
			c.name = fmt.Sprintf("plain TCP, %d", n)
			pr, err := begin(l, i, order{Role: "plain", Listen: at(i, port), Next: at((i+1)%world, port), World: world, Connections: n})
			if err != nil {
				return err
			}
			c.procs = append(c.procs, pr)
		}
	}
	for _, c := range all {
		for _, pr := range c.procs {
			if err := pr.ready(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	for _, bytes := range sizes {
		for _, c := range all {
			c.took, c.stats = nil, lab.Stats{}
		}
		for round := range rounds {
			for _, c := range all {
				if err := c.turn(l, bytes, round > 0); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
			}
		}
		for _, c := range all {
			c.row(p, world, bytes)
		}
	}
	return nil
}

// allow lets namespaces take a congestion control that the kernel has. The list is
// the machine's; one name more on it changes nothing for others.
func allow(congestion string) {
	const list = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
	have, err := os.ReadFile(list)
	if err == nil && !slices.Contains(strings.Fields(string(have)), congestion) {
		_ = os.WriteFile(list, append(have[:len(have)-1], " "+congestion+"\n"...), 0) // Sysctl says so if it is not
	}
}

// begin starts a process in a host.
func begin(l *lab.Lab, host int, o order) (*proc, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	pr := &proc{cmd: cmd}
	if pr.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	pr.out = json.NewDecoder(bufio.NewReader(out))
	return pr, l.Hosts[host].Start(cmd)
}

func (p *proc) hear() (r report, err error) {
	if err = p.out.Decode(&r); err == nil && r.Err != "" {
		err = errors.New(r.Err)
	}
	return r, err
}

func (p *proc) ready() error {
	_, err := p.hear()
	return err
}

// turn has all processes of a contestant do an operation; it takes as long as
// the slowest of them.
func (c *contestant) turn(l *lab.Lab, bytes int, count bool) error {
	before := l.Stats()
	for _, p := range c.procs {
		if _, err := fmt.Fprintln(p.in, bytes); err != nil {
			return err
		}
	}
	var slowest time.Duration
	for _, p := range c.procs {
		r, err := p.hear()
		if err != nil {
			return err
		}
		slowest = max(slowest, r.Took)
	}
	if count {
		c.took = append(c.took, slowest)
		s := l.Stats().Since(before)
		c.stats.Delivered += s.Delivered
		c.stats.Lost += s.Lost
		c.stats.Dropped += s.Dropped
		c.stats.Late += s.Late
	}
	return nil
}

// row prints what came out.
func (c *contestant) row(p *lab.Profile, world, bytes int) {
	rate := 0.0
	for _, h := range p.Hosts[:world] {
		if r := h.Up.Rate; r > 0 && (rate == 0 || r < rate) {
			rate = r
		}
	}
	slices.Sort(c.took)
	median := c.took[len(c.took)/2].Seconds()
	ideal := "-"
	if rate > 0 {
		ideal = fmt.Sprintf("%.2f", 2*float64(world-1)/float64(world)*float64(bytes)*8/rate/median)
	}
	n := uint64(len(c.took))
	late := fmt.Sprintf("%.2f %%", 100*c.stats.Share())
	if c.stats.Share() > lab.MaxLate {
		late += ", does not count"
	}
	fmt.Printf("| %s | %d | %s | %.3f | %s | %d, %d | %s |\n", p.Name, bytes, c.name, median, ideal, c.stats.Dropped/n, c.stats.Lost/n, late)
}
