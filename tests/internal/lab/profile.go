package lab

import (
	"bufio"
	"embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gopccl/gopccl/tests/internal/lab/netem"
)

//go:embed profiles/*.txt
var profiles embed.FS

// Profile describes a wide-area network. The text form has a line per statement:
//
//	hosts 4                                         the number of hosts
//	host 0 up 20 down 100 queue 1000ms              access of a host, Mbit/s; * for all
//	pair 0 1 delay 15ms jitter 1ms loss 0.01 burst 3 rate 50 queue 20ms reorder
//	flow limit 10                                   of each TCP flow, Mbit/s
//	site 0 1 2 inside 1000 1ms out 100              rate and delay among these hosts; one way out and in for all
//
// Delays are one way, loss is in percent, pairs are directed unless written
// "between A B"; * stands for all hosts. Later lines overrule earlier ones.
type Profile struct {
	Name  string
	About string // the comment at the head
	Hosts []netem.Host
	Sites []netem.Site
	Paths [][]netem.Path
	Flow  netem.Queue
}

// Names returns the profiles that come along.
func Names() (names []string) {
	files, _ := profiles.ReadDir("profiles")
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".txt"))
	}
	return names
}

// Load returns a profile that comes along, the one that is drawn from the number behind "drawn", or that of
// a file with a slash in its name.
func Load(name string) (*Profile, error) {
	if strings.Contains(name, "/") {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return Parse(strings.TrimSuffix(filepath.Base(name), ".txt"), f)
	}
	if number, ok := strings.CutPrefix(name, drawn); ok {
		if seed, err := strconv.ParseUint(number, 10, 64); err == nil {
			return Drawn(seed)
		}
	}
	f, err := profiles.Open("profiles/" + name + ".txt")
	if err != nil {
		return nil, fmt.Errorf("there is no profile %q; there are %s, and drawn1, drawn2 and so on", name, strings.Join(Names(), ", "))
	}
	defer f.Close()
	return Parse(name, f)
}

// Parse reads a profile.
func Parse(name string, r io.Reader) (*Profile, error) {
	p := &Profile{Name: name}
	lines := bufio.NewScanner(r)
	for number := 1; lines.Scan(); number++ {
		text, comment, _ := strings.Cut(lines.Text(), "#")
		if number == 1 {
			p.About = strings.TrimSpace(comment)
		}
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		if err := p.statement(words); err != nil {
			return nil, fmt.Errorf("profile %s, line %d: %w", name, number, err)
		}
	}
	if len(p.Hosts) == 0 {
		return nil, fmt.Errorf("profile %s has no hosts", name)
	}
	return p, lines.Err()
}

func (p *Profile) statement(words []string) error {
	verb, rest := words[0], words[1:]
	if verb != "hosts" && len(p.Hosts) == 0 {
		return fmt.Errorf("%q comes before the number of hosts", verb)
	}
	switch verb {
	case "hosts":
		return p.make(rest)
	case "host":
		return p.host(rest)
	case "pair", "between":
		return p.pair(rest, verb == "between")
	case "flow":
		if len(rest) != 2 || rest[0] != "limit" {
			return fmt.Errorf("want: flow limit MBIT")
		}
		return rate(&p.Flow.Rate, rest[1])
	case "site":
		return p.site(rest)
	}
	return fmt.Errorf("%q is not a statement", verb)
}

func (p *Profile) make(rest []string) error {
	if len(rest) != 1 {
		return fmt.Errorf("want: hosts NUMBER")
	}
	n, err := strconv.Atoi(rest[0])
	if err != nil || n < 2 || n > 128 {
		return fmt.Errorf("%q is not a number of hosts from 2 to 128", rest[0])
	}
	p.Hosts = make([]netem.Host, n)
	p.Paths = make([][]netem.Path, n)
	for i := range p.Paths {
		p.Paths[i] = make([]netem.Path, n)
	}
	return nil
}

// which returns the hosts that a word names.
func (p *Profile) which(word string) ([]int, error) {
	if word == "*" {
		all := make([]int, len(p.Hosts))
		for i := range all {
			all[i] = i
		}
		return all, nil
	}
	i, err := strconv.Atoi(word)
	if err != nil || i < 0 || i >= len(p.Hosts) {
		return nil, fmt.Errorf("%q is not a host from 0 to %d", word, len(p.Hosts)-1)
	}
	return []int{i}, nil
}

func (p *Profile) host(rest []string) error {
	if len(rest) < 1 {
		return fmt.Errorf("want: host NUMBER up MBIT down MBIT queue TIME")
	}
	which, err := p.which(rest[0])
	if err != nil {
		return err
	}
	for _, i := range which {
		h := &p.Hosts[i]
		if err := fields(rest[1:], map[string]func(string) error{
			"up":   func(v string) error { return rate(&h.Up.Rate, v) },
			"down": func(v string) error { return rate(&h.Down.Rate, v) },
			"queue": func(v string) error {
				err := duration(&h.Up.Buffer, v)
				h.Down.Buffer = h.Up.Buffer
				return err
			},
		}, nil); err != nil {
			return err
		}
	}
	return nil
}

func (p *Profile) pair(rest []string, both bool) error {
	if len(rest) < 2 {
		return fmt.Errorf("want: pair FROM TO delay TIME jitter TIME loss PERCENT burst MEAN rate MBIT queue TIME reorder")
	}
	from, err := p.which(rest[0])
	if err != nil {
		return err
	}
	to, err := p.which(rest[1])
	if err != nil {
		return err
	}
	for _, a := range from {
		for _, b := range to {
			if a == b {
				continue
			}
			if err := path(&p.Paths[a][b], rest[2:]); err != nil {
				return err
			}
			if both {
				p.Paths[b][a] = p.Paths[a][b]
			}
		}
	}
	return nil
}

func path(t *netem.Path, rest []string) error {
	return fields(rest, map[string]func(string) error{
		"delay":  func(v string) error { return duration(&t.Delay, v) },
		"jitter": func(v string) error { return duration(&t.Jitter, v) },
		"rate":   func(v string) error { return rate(&t.Rate, v) },
		"queue":  func(v string) error { return duration(&t.Buffer, v) },
		"burst":  func(v string) error { return number(&t.Burst, v) },
		"loss": func(v string) error {
			err := number(&t.Loss, v)
			if err == nil && t.Loss > 100 {
				return fmt.Errorf("%q is more than all packets", v)
			}
			t.Loss /= 100
			return err
		},
	}, map[string]*bool{"reorder": &t.Reorder, "down": &t.Down})
}

func (p *Profile) site(rest []string) error {
	i := slices.Index(rest, "inside")
	if i < 1 || len(rest) != i+3 && len(rest) != i+5 || len(rest) == i+5 && rest[i+3] != "out" {
		return fmt.Errorf("want: site HOST ... inside MBIT TIME out MBIT")
	}
	for _, a := range rest[:i] {
		for _, b := range rest[:i] {
			if a != b {
				if err := p.pair([]string{a, b, "rate", rest[i+1], "delay", rest[i+2]}, false); err != nil {
					return err
				}
			}
		}
	}
	if len(rest) == i+3 {
		return nil
	}
	s := netem.Site{}
	for _, word := range rest[:i] {
		hosts, err := p.which(word)
		if err != nil {
			return err
		}
		s.Hosts = append(s.Hosts, hosts...)
	}
	for _, other := range p.Sites {
		for _, h := range other.Hosts {
			if slices.Contains(s.Hosts, h) {
				return fmt.Errorf("host %d is at another site", h)
			}
		}
	}
	err := rate(&s.Out.Rate, rest[i+4])
	s.In = s.Out
	p.Sites = append(p.Sites, s)
	return err
}

// fields sets what pairs of words name, and flags.
func fields(words []string, set map[string]func(string) error, flags map[string]*bool) error {
	for len(words) > 0 {
		if flag := flags[words[0]]; flag != nil {
			*flag, words = true, words[1:]
			continue
		}
		f := set[words[0]]
		if f == nil || len(words) < 2 {
			return fmt.Errorf("%q is not known here, or has no value", words[0])
		}
		if err := f(words[1]); err != nil {
			return fmt.Errorf("%s: %w", words[0], err)
		}
		words = words[2:]
	}
	return nil
}

func number(to *float64, v string) error {
	x, err := strconv.ParseFloat(v, 64)
	if err != nil || !(x >= 0) || x > 1e9 {
		return fmt.Errorf("%q is not a number from 0 on", v)
	}
	*to = x
	return nil
}

func rate(to *float64, v string) error {
	err := number(to, v)
	*to *= 1e6
	return err
}

func duration(to *time.Duration, v string) error {
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 || d > time.Hour {
		return fmt.Errorf("%q is not a time such as 15ms", v)
	}
	*to = d
	return nil
}

// Config returns what the emulator needs.
func (p *Profile) Config(seed uint64) netem.Config {
	return netem.Config{
		Hosts: slices.Clone(p.Hosts), Sites: p.Sites, Flow: p.Flow, Overhead: overhead, Seed: seed,
		Path: func(from, to int) netem.Path { return p.Paths[from][to] },
	}
}

// overhead is what Ethernet adds to an IP packet.
const overhead = 18
