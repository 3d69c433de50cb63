package main

import (
	"fmt"
	"strings"
)

var colours = []struct{ kind, colour string }{
	{nameOurs, "#0a7"}, {nameTLS, "#7cb"}, {nameForward, "#4b9"}, {namePlain, "#888"}, {namePCCL, "#c50"}, {nameGloo, "#56c"},
}

// svg draws, for each match with a known ideal, what part of it gopccl and the best
// of each other kind reached.
func (list outcomes) svg() string {
	const left, bar, gap, wide = 250.0, 9.0, 12.0, 500.0
	var b strings.Builder
	y := 40.0
	for _, o := range list {
		if ours, ok := o.best(nameOurs); !ok || ours.Ideal == 0 {
			continue
		}
		fmt.Fprintf(&b, `<text x="%.0f" y="%.1f" text-anchor="end">%s, %s, %s</text>`+"\n", left-8, y+1.5*bar, o.Profile, task{o.Bytes, o.Pattern}, o.Congestion)
		for _, c := range colours {
			e, ok := o.best(c.kind)
			if !ok {
				continue
			}
			fmt.Fprintf(&b, `<rect x="%.0f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/><text x="%.1f" y="%.1f" font-size="9">%.2f</text>`+"\n",
				left, y, wide*min(e.Ideal, 1.05), bar, c.colour, left+wide*min(e.Ideal, 1.05)+4, y+bar-1, e.Ideal)
			y += bar + 1
		}
		y += gap
	}
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" font-family="sans-serif" font-size="11">`+"\n"+
		`<rect width="100%%" height="100%%" fill="#fff"/>`+"\n", left+wide+60, y+10)
	for i, c := range colours {
		head += fmt.Sprintf(`<rect x="%.0f" y="12" width="12" height="9" fill="%s"/><text x="%.0f" y="20">%s</text>`+"\n",
			left+float64(i)*120, c.colour, left+float64(i)*120+17, c.kind)
	}
	return head + fmt.Sprintf(`<path d="M%.1f 30v%.1f" stroke="#000"/>`+"\n", left+wide, y-30) + b.String() + "</svg>\n"
}
