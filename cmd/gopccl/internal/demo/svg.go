package demo

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// svg writes an inline picture. Colours are CSS classes, so that the page's
// light and dark styles apply.
type svg struct {
	b             strings.Builder
	width, height float64
}

func newSVG(width, height float64, label string) *svg {
	s := &svg{width: width, height: height}
	fmt.Fprintf(&s.b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, height, html.EscapeString(label))
	return s
}

func (s *svg) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&s.b, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, x1, y1, x2, y2)
}

func (s *svg) rect(class string, x, y, w, h, radius float64, title string) {
	fmt.Fprintf(&s.b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="%g">%s</rect>`,
		class, x, y, math.Max(w, 1), h, radius, titled(title))
}

func (s *svg) dot(class string, x, y, radius float64, title string) {
	fmt.Fprintf(&s.b, `<circle class="%s" cx="%.1f" cy="%.1f" r="%g">%s</circle>`, class, x, y, radius, titled(title))
}

// text writes at (x, y); anchor is start, middle or end.
func (s *svg) text(class string, x, y float64, anchor, text string) {
	fmt.Fprintf(&s.b, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, class, x, y, anchor, html.EscapeString(text))
}

// path joins points by straight lines; fill closes it down to the given y.
func (s *svg) path(class string, xy [][2]float64) {
	if len(xy) == 0 {
		return
	}
	var d strings.Builder
	for i, p := range xy {
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&d, "%s%.1f %.1f", command, p[0], p[1])
	}
	fmt.Fprintf(&s.b, `<path class="%s" d="%s"/>`, class, d.String())
}

func (s *svg) String() string { return s.b.String() + "</svg>" }

func titled(text string) string {
	if text == "" {
		return ""
	}
	return "<title>" + html.EscapeString(text) + "</title>"
}

// scale maps values to a stretch of pixels.
type scale struct{ from, to, low, high float64 }

func (c scale) at(v float64) float64 {
	if c.to == c.from {
		return c.low
	}
	return c.low + (v-c.from)/(c.to-c.from)*(c.high-c.low)
}

// ticks returns about n round numbers between from and to.
func ticks(from, to float64, n int) []float64 {
	if !(to > from) {
		return nil
	}
	rough := (to - from) / float64(n)
	unit := math.Pow(10, math.Floor(math.Log10(rough)))
	step := unit
	for _, f := range []float64{1, 2, 5, 10} {
		if step = f * unit; step >= rough {
			break
		}
	}
	var list []float64
	for v := math.Ceil(from/step-1e-9)*step + 0; v <= to+step*1e-9; v += step {
		list = append(list, v)
	}
	return list
}
