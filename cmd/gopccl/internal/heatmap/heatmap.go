// Package heatmap draws bandwidth matrices and the rings in them, for terminals
// and as SVG.
package heatmap

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/gopccl/gopccl/core/topo"
)

// Picture is what is drawn.
type Picture struct {
	Title  string
	Names  []string // one per peer
	Matrix topo.Matrix
	Ring   []int // nil: none
}

// ramp goes from slow to fast.
var ramp = [][3]float64{{68, 1, 84}, {65, 68, 135}, {42, 120, 142}, {34, 168, 132}, {122, 209, 81}, {253, 231, 37}}

// scale maps rates to 0 (slowest link) .. 1 (fastest), by their logarithm.
type scale struct{ low, high float64 }

func (p Picture) scale() scale {
	s := scale{math.Inf(1), 0}
	for i := range p.Matrix.N {
		for j := range p.Matrix.N {
			if v, ok := p.Matrix.At(i, j); ok {
				s.low, s.high = min(s.low, v), max(s.high, v)
			}
		}
	}
	return s
}

func (s scale) at(v float64) float64 {
	if !(s.high > s.low) {
		return 1
	}
	return math.Log(v/s.low) / math.Log(s.high/s.low)
}

func color(at float64) (r, g, b int) {
	x := min(max(at, 0), 1) * float64(len(ramp)-1)
	i := min(int(x), len(ramp)-2)
	mix := func(k int) int { return int(math.Round(ramp[i][k] + (x-float64(i))*(ramp[i+1][k]-ramp[i][k]))) }
	return mix(0), mix(1), mix(2)
}

// next returns the successor of every peer in the ring, -1 without one.
func (p Picture) next() []int {
	out := make([]int, p.Matrix.N)
	for i := range out {
		out[i] = -1
	}
	for k, i := range p.Ring {
		out[i] = p.Ring[(k+1)%len(p.Ring)]
	}
	return out
}

// slowest returns the slowest link of the ring; ok is false without a ring.
func (p Picture) slowest() (from, to int, mbps float64, ok bool) {
	mbps = math.Inf(1)
	for k, i := range p.Ring {
		j := p.Ring[(k+1)%len(p.Ring)]
		if v, has := p.Matrix.At(i, j); has && v < mbps {
			from, to, mbps, ok = i, j, v, true
		}
	}
	return from, to, mbps, ok
}

// Rate writes a rate with its unit.
func Rate(mbps float64) string {
	if mbps >= 1000 {
		return fmt.Sprintf("%.3g Gbit/s", mbps/1000)
	}
	return fmt.Sprintf("%.3g Mbit/s", mbps)
}

// Caption says what ring it is, in one line.
func (p Picture) Caption() string {
	if i, j, v, ok := p.slowest(); ok {
		return fmt.Sprintf("ring of %d, slowest link %s (%s to %s)", len(p.Ring), Rate(v), p.Names[i], p.Names[j])
	}
	return "no ring"
}

const widest = 16 // columns of a name

// Terminal draws the matrix with one line per sender and two columns per
// receiver. Links of the ring are marked. Without colours a digit says how fast
// a link is, from 0 (slowest) to 9.
func (p Picture) Terminal(w io.Writer, colors bool) error {
	s, next := p.scale(), p.next()
	width := 4
	for _, n := range p.Names {
		width = max(width, min(len([]rune(n)), widest))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%*s   ", p.Title, width, "")
	for j := range p.Matrix.N {
		fmt.Fprintf(&b, "%2d", j%100)
	}
	b.WriteByte('\n')
	for i, name := range p.Names {
		if r := []rune(name); len(r) > widest {
			name = string(r[:widest-1]) + "…"
		}
		fmt.Fprintf(&b, "%-*s %2d", width, name, i%100)
		for j := range p.Matrix.N {
			v, ok := p.Matrix.At(i, j)
			mark := ' '
			if next[i] == j {
				mark = '>'
			}
			switch {
			case i == j:
				b.WriteString(" \\")
			case !ok:
				fmt.Fprintf(&b, "%c.", mark)
			case colors:
				r, g, bl := color(s.at(v))
				cell := "  "
				if mark != ' ' {
					cell = "<>"
				}
				ink := "97"
				if 3*r+6*g+bl > 1400 {
					ink = "30"
				}
				fmt.Fprintf(&b, "\x1b[48;2;%d;%d;%d;%sm%s\x1b[0m", r, g, bl, ink, cell)
			default:
				fmt.Fprintf(&b, "%c%d", mark, min(9, int(s.at(v)*10)))
			}
		}
		b.WriteByte('\n')
	}
	if s.high > 0 {
		fmt.Fprintf(&b, "from %s to %s", Rate(s.low), Rate(s.high))
		if len(p.Ring) > 0 {
			b.WriteString("; links of the ring are marked")
		}
		b.WriteByte('\n')
	}
	b.WriteString(p.Caption() + "\n")
	if len(p.Ring) > 0 {
		for k, i := range p.Ring {
			if k > 0 {
				b.WriteString(" > ")
			}
			b.WriteString(p.Names[i])
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
