package heatmap

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// SVG writes the matrix as a heat map and the ring beside it, as one image.
func (p Picture) SVG(w io.Writer) error {
	n := p.Matrix.N
	s, next := p.scale(), p.next()
	const label, top = 130.0, 150.0
	cell := min(26, max(3, 700/float64(max(n, 1))))
	side := cell * float64(n)
	radius := max(130, min(side/2, 330))
	width, height := label+side+40+2*radius+2*label, top+max(side, 2*radius+60)+50
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="16" y="24" font-size="16">%s</text><text x="16" y="44">%s</text>`+"\n",
		escape(p.Title), escape(p.Caption()))
	names := cell >= 9
	for i := range n {
		y := top + float64(i)*cell
		if names {
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="end" font-size="%.0f">%s</text>`, label-4, y+cell*0.75, min(12, cell*0.8), escape(p.Names[i]))
			x := label + float64(i)*cell + cell*0.7
			fmt.Fprintf(&b, `<text transform="translate(%.1f,%.1f) rotate(-60)" font-size="%.0f">%s</text>`+"\n", x, top-4, min(12, cell*0.8), escape(p.Names[i]))
		}
		for j := range n {
			x := label + float64(j)*cell
			v, ok := p.Matrix.At(i, j)
			fill, what := "#eeeeee", "no link"
			if i == j {
				continue
			}
			if ok {
				r, g, bl := color(s.at(v))
				fill, what = fmt.Sprintf("#%02x%02x%02x", r, g, bl), Rate(v)
			}
			frame := ""
			if next[i] == j {
				frame = fmt.Sprintf(` stroke="#e4002b" stroke-width="%.1f"`, max(1, cell/8))
			}
			fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"%s><title>%s to %s: %s</title></rect>`,
				x+cell*0.06, y+cell*0.06, cell*0.88, cell*0.88, fill, frame, escape(p.Names[i]), escape(p.Names[j]), what)
		}
		b.WriteByte('\n')
	}
	p.legend(&b, s, label, top+side+16)
	p.circle(&b, s, label+side+40+label+radius, top+radius, radius)
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (p Picture) legend(b *strings.Builder, s scale, x, y float64) {
	if s.high == 0 {
		return
	}
	const steps, width = 40, 200.0
	for k := range steps {
		r, g, bl := color(float64(k) / (steps - 1))
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="10" fill="#%02x%02x%02x"/>`, x+float64(k)*width/steps, y, width/steps+0.5, r, g, bl)
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f">%s</text><text x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", x, y+24, Rate(s.low), x+width, y+24, Rate(s.high))
}

// circle draws the peers in the order of the ring; the slowest link is red.
func (p Picture) circle(b *strings.Builder, s scale, cx, cy, radius float64) {
	n := len(p.Ring)
	if n == 0 {
		return
	}
	at := func(k int, r float64) (float64, float64) {
		a := 2*math.Pi*float64(k%n)/float64(n) - math.Pi/2
		return cx + r*math.Cos(a), cy + r*math.Sin(a)
	}
	from, to, _, _ := p.slowest()
	b.WriteString(`<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="5" markerHeight="5" orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="context-stroke"/></marker></defs>` + "\n")
	for k, i := range p.Ring {
		j := p.Ring[(k+1)%n]
		v, ok := p.Matrix.At(i, j)
		x1, y1 := at(k, radius)
		x2, y2 := at(k+1, radius)
		stroke, thick := "#bbbbbb", 1.5
		if ok {
			r, g, bl := color(s.at(v))
			stroke, thick = fmt.Sprintf("#%02x%02x%02x", r, g, bl), 1.5+3*s.at(v)
		}
		if i == from && j == to {
			stroke = "#e4002b"
		}
		// Short of the next peer's dot.
		d := math.Hypot(x2-x1, y2-y1)
		if d > 14 {
			x2, y2 = x2-(x2-x1)*7/d, y2-(y2-y1)*7/d
		}
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f" marker-end="url(#tip)"><title>%s to %s: %s</title></line>`,
			x1, y1, x2, y2, stroke, thick, escape(p.Names[i]), escape(p.Names[j]), Rate(v))
	}
	for k, i := range p.Ring {
		x, y := at(k, radius)
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="5" fill="#333333"/>`, x, y)
		if n > 64 {
			continue
		}
		lx, ly := at(k, radius+12)
		anchor := "middle"
		if math.Abs(lx-cx) > radius/8 {
			anchor = map[bool]string{true: "start", false: "end"}[lx > cx]
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", lx, ly+4, anchor, escape(p.Names[i]))
	}
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}
