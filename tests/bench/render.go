package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

const (
	markBegin = "<!-- go run ./tests/bench: begin -->"
	markEnd   = "<!-- go run ./tests/bench: end -->"
)

func marked(text string) string { return markBegin + "\n\n" + text + "\n" + markEnd }

// between puts text between the markers of a page.
func between(page, text string) (string, error) {
	before, rest, ok := strings.Cut(page, markBegin)
	_, after, found := strings.Cut(rest, markEnd)
	if !ok || !found {
		return "", errors.New("has no markers " + markBegin + " and " + markEnd)
	}
	return before + marked(text) + after, nil
}

// target is a mark to pass.
type target struct {
	job   job
	who   string
	what  string // time: its time by ours; cpu: our processor time by its; behind: our time less its; took: our time
	limit float64
	least bool // at least the limit; otherwise at most
}

// targets are the marks that this project set itself.
func targets() []target {
	w2, w4 := sums(2, 64<<20, "none", 1), sums(4, 64<<20, "none", 1)
	s2, s4 := sums(2, 400000, "none", 1), sums(4, 400000, "none", 1)
	return append([]target{
		{w2, namePCCL, "time", 1.7, true},
		{w2, nameGloo, "time", 1.6, true},
		{w2, nameFloor, "time", 1 / 1.25, true},
		{w4, namePCCL, "time", 2.2, true},
		{w4, nameGloo, "time", 1.3, true},
		{w4, nameFloor, "time", 1 / 1.35, true},
		{s2, namePCCL, "time", 100, true},
		{s2, nameGloo, "time", 2, true},
		{s4, namePCCL, "time", 50, true},
		{s4, nameGloo, "time", 4, true},
		{sums(2, 64<<20, "minmax", 1), namePCCL, "time", 4, true},
		{sums(2, 64<<20, "zeropoint", 1), namePCCL, "time", 2.5, true},
		{w2, namePCCL, "cpu", 0.6, false},
		{w2, nameGloo, "cpu", 0.8, false},
		{w4, namePCCL, "cpu", 0.6, false},
		{w4, nameGloo, "cpu", 0.8, false},
	}, patternTargets()...)
}

func (t target) value(r results) (float64, bool) {
	c, ok := r.find(t.job)
	e, there := c.Entries[t.who]
	if !ok || !there {
		return 0, false
	}
	switch t.what {
	case "cpu":
		return e.CPURatio, true
	case "behind":
		return c.Entries[nameOurs].Median - e.Median, true
	case "took":
		return e.Median, true
	}
	return e.Ratio, true
}

func (t target) met(v float64) bool {
	if t.least {
		return v >= t.limit
	}
	return v <= t.limit
}

var titles = map[string]string{
	nameOurs: "gopccl", nameRival: "rival", "rival 2": "rival 2", "rival 3": "rival 3", "rival 4": "rival 4",
	"rival 5": "rival 5", "rival 6": "rival 6", namePCCL: "PCCL 1.0.0", nameGloo: "Gloo (PyTorch)", nameGroups: "Gloo, a group each", nameFloor: "bare TCP", nameTLS: "gopccl in TLS",
}

var displayOrder = append(append([]string{nameOurs, nameTLS}, rivalNames...), namePCCL, nameGloo, nameGroups, nameFloor)

// present are the contestants of r, ours first.
func (r results) present() (names []string) {
	for _, n := range displayOrder {
		for _, c := range r.Cases {
			if _, ok := c.Entries[n]; ok {
				names = append(names, n)
				break
			}
		}
	}
	return names
}

// rates are what PCCL's report gives: what a peer contributes by the time, and
// all that it sends and receives. Quantized operations send less and are left out.
func (r results) rates(names []string, head, rule string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nContribution of a peer by the time in MB/s, in brackets what it sends and receives in Gbit/s, as PCCL's report counts:\n\n%s\n%s\n", head, rule)
	for _, c := range r.Cases {
		if c.Bytes < 1<<20 || c.Quantize != "none" || c.Pattern != "" {
			continue
		}
		fmt.Fprintf(&b, "| %v |", c.job)
		for _, n := range names {
			e, ok := c.Entries[n]
			if !ok {
				b.WriteString(" |")
				continue
			}
			contribution, network := c.rates(e.Median)
			fmt.Fprintf(&b, " %.0f (%.1f) |", contribution, network)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// rates of a job that takes so many seconds, in MB/s and Gbit/s: a ring moves
// 2(n-1)/n of a peer's buffers out of it, and as much into it.
func (j job) rates(seconds float64) (contribution, network float64) {
	bytes := float64(j.Bytes) * float64(j.Concurrent)
	each := bytes * 2 * float64(j.World-1) / float64(j.World)
	return bytes / 1e6 / seconds, 2 * each * 8 / 1e9 / seconds
}

// markdown is the whole account.
func (r results) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Sums of float32 on %s. Medians of %d turns of each in one run; in brackets how many times as long as gopccl it took, the median over the turns.\n\n", r.Machine, r.Turns)
	names := r.present()
	head, rule := "| |", "|---|"
	for _, n := range names {
		head += " " + titles[n] + " |"
		rule += "---:|"
	}
	b.WriteString(head + "\n" + rule + "\n")
	for _, c := range r.Cases {
		if c.Pattern != "" {
			continue
		}
		fmt.Fprintf(&b, "| %v |", c.job)
		for _, n := range names {
			e, ok := c.Entries[n]
			switch {
			case !ok:
				b.WriteString(" |")
			case n == nameOurs:
				fmt.Fprintf(&b, " %s |", seconds(e.Median))
			default:
				fmt.Fprintf(&b, " %s (%s) |", seconds(e.Median), times(e.Ratio))
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\nProcessor seconds of one process by 10^9 bytes of its buffer:\n\n%s\n%s\n", head, rule)
	for _, c := range r.Cases {
		if c.Bytes < 1<<20 || c.Pattern != "" {
			continue
		}
		fmt.Fprintf(&b, "| %v |", c.job)
		for _, n := range names {
			if e, ok := c.Entries[n]; ok {
				fmt.Fprintf(&b, " %.2f |", e.CPU)
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	b.WriteString(r.rates(names, head, rule))
	b.WriteString(r.others())
	if h := r.Hash; h != nil {
		fmt.Fprintf(&b, "\nHash of %s of shared state, all cores: gopccl %.1f GB/s, reading the same bytes %.1f GB/s (%.2f of it)", sizeName(h.Bytes), h.Ours, h.Read, h.ByRead)
		if h.PCCL > 0 {
			fmt.Fprintf(&b, ", PCCL 1.0.0 on the CPU %.2f GB/s (%s)", h.PCCL, times(h.ByPCCL))
		}
		b.WriteString(".\n")
	}
	b.WriteString(r.marks())
	return b.String()
}

// marks compares with the targets, as far as they were measured.
func (r results) marks() string {
	var b strings.Builder
	row := func(what, want string, got float64, met bool) {
		word := "missed"
		if met {
			word = "met"
		}
		if b.Len() == 0 {
			b.WriteString("\n| mark | wanted | measured | |\n|---|---|---:|---|\n")
		}
		fmt.Fprintf(&b, "| %s | %s | %.2f | %s |\n", what, want, got, word)
	}
	for _, t := range targets() {
		v, ok := t.value(r)
		if !ok {
			continue
		}
		switch {
		case t.what == "cpu":
			row(fmt.Sprintf("%v: processor time by that of %s", t.job, titles[t.who]), fmt.Sprintf("at most %.2f", t.limit), v, t.met(v))
		case t.what == "behind":
			row(fmt.Sprintf("%v: milliseconds slower than %s", t.job, titles[t.who]), fmt.Sprintf("at most %.2f", 1e3*t.limit), 1e3*v, t.met(v))
		case t.what == "took":
			row(fmt.Sprintf("%v: milliseconds", t.job), fmt.Sprintf("at most %.2f", 1e3*t.limit), 1e3*v, t.met(v))
		case t.who == nameFloor:
			row(fmt.Sprintf("%v: time by that of %s", t.job, titles[t.who]), fmt.Sprintf("at most %.2f", 1/t.limit), 1/v, t.met(v))
		default:
			row(fmt.Sprintf("%v: faster than %s", t.job, titles[t.who]), fmt.Sprintf("at least %.3gx", t.limit), v, t.met(v))
		}
	}
	if h := r.Hash; h != nil {
		if h.ByPCCL > 0 {
			row("hash, "+sizeName(h.Bytes)+": faster than PCCL 1.0.0 on the CPU", "at least 2x", h.ByPCCL, h.ByPCCL >= 2)
		}
		row("hash, "+sizeName(h.Bytes)+": of the speed of reading", "at least 0.80", h.ByRead, h.ByRead >= 0.8)
	}
	return b.String()
}

// short is the table of the README: what most readers ask for.
func (r results) short() string {
	var b strings.Builder
	names := r.present()
	head, rule := "| |", "|---|"
	for _, n := range names {
		head += " " + titles[n] + " |"
		rule += "---:|"
	}
	fmt.Fprintf(&b, "%s\n%s\n", head, rule)
	for _, j := range []job{
		sums(2, 400000, "none", 1),
		sums(2, 64<<20, "none", 1),
		sums(2, 64<<20, "minmax", 1),
		sums(2, 64<<20, "zeropoint", 1),
		sums(4, 400000, "none", 1),
		sums(4, 64<<20, "none", 1),
	} {
		c, ok := r.find(j)
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "| %v |", j)
		for _, n := range names {
			if e, ok := c.Entries[n]; ok {
				fmt.Fprintf(&b, " %s |", seconds(e.Median))
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\nSums of float32, medians, %s. More of it: [docs/benchmarks.md](docs/benchmarks.md).\n", r.Machine)
	return b.String()
}

func times(r float64) string {
	if r >= 10 {
		return fmt.Sprintf("%.0fx", r)
	}
	return fmt.Sprintf("%.2fx", r)
}

// svg plots time over size, both logarithmic, one panel for each world.
func (r results) svg() string {
	const w, h, left, top, gap = 360.0, 260.0, 60.0, 40.0, 90.0
	var worlds []int
	lowX, highX, lowY, highY := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, c := range r.Cases {
		if !plotted(c.job) {
			continue
		}
		if len(worlds) == 0 || worlds[len(worlds)-1] != c.World {
			worlds = append(worlds, c.World)
		}
		lowX, highX = min(lowX, math.Log2(float64(c.Bytes))), max(highX, math.Log2(float64(c.Bytes)))
		for _, e := range c.Entries {
			lowY, highY = min(lowY, math.Floor(math.Log10(e.Median))), max(highY, math.Ceil(math.Log10(e.Median)))
		}
	}
	highX = max(highX, lowX+1)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" font-family="sans-serif" font-size="11">`+"\n",
		left+float64(len(worlds))*(w+gap), top+h+80)
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	for k, world := range worlds {
		x0 := left + float64(k)*(w+gap)
		x := func(bytes int) float64 { return x0 + w*(math.Log2(float64(bytes))-lowX)/(highX-lowX) }
		y := func(s float64) float64 { return top + h*(highY-math.Log10(s))/(highY-lowY) }
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" font-size="13">world %d: time of an all-reduce over its size</text>`+"\n", x0, top-14, world)
		for d := lowY; d <= highY; d++ {
			s := math.Pow(10, d)
			fmt.Fprintf(&b, `<path d="M%.1f %.1fh%.1f" stroke="#ddd"/><text x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", x0, y(s), w, x0-4, y(s)+4, decade(d))
		}
		for _, n := range r.present() {
			var points []string
			for _, c := range r.Cases {
				e, ok := c.Entries[n]
				if !ok || c.World != world || !plotted(c.job) {
					continue
				}
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(c.Bytes), y(e.Median)))
				if n == nameOurs {
					fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", x(c.Bytes), top+h+16, sizeName(c.Bytes))
				}
			}
			fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), colour(n))
		}
	}
	for i, n := range r.present() {
		fmt.Fprintf(&b, `<path d="M%.1f %.1fh20" stroke="%s" stroke-width="2"/><text x="%.1f" y="%.1f">%s</text>`+"\n",
			left+float64(i)*130, top+h+46, colour(n), left+float64(i)*130+26, top+h+50, titles[n])
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func plotted(j job) bool { return j.Quantize == "none" && j.Concurrent == 1 && j.Pattern == "" }

func decade(d float64) string {
	switch {
	case d < -3:
		return fmt.Sprintf("%.0f µs", math.Pow(10, d+6))
	case d < 0:
		return fmt.Sprintf("%.0f ms", math.Pow(10, d+3))
	}
	return fmt.Sprintf("%.0f s", math.Pow(10, d))
}

func colour(name string) string {
	switch name {
	case nameOurs:
		return "#0a7"
	case namePCCL:
		return "#c33"
	case nameGloo:
		return "#36c"
	case nameFloor:
		return "#333"
	}
	return "#999"
}
