package demo

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"time"
)

// Geometry of the picture, in its own units.
const (
	pageWidth   = 960.0
	plotLeft    = 56.0
	plotRight   = pageWidth - 16
	flagTop     = 8.0 // numbers of the events
	lossTop     = 34.0
	lossBottom  = 294.0
	worldTop    = 334.0
	worldBottom = 414.0
	laneTop     = 454.0
	laneHeight  = 22.0
)

// Page writes the record as one HTML file that needs nothing else: inline
// pictures, no script, no font, no network; readable in light and dark.
func (r *Record) Page(w io.Writer, when time.Time) error {
	var b strings.Builder
	verdict, class := "All peers held the same bits after every step.", "good"
	if p := r.Verdict(); len(p) > 0 {
		verdict, class = strings.Join(p, "; "), "bad"
	}
	fmt.Fprintf(&b, head, html.EscapeString(when.Format("2 January 2006, 15:04 MST")), class, html.EscapeString(verdict))
	b.WriteString(`<dl class="tiles">`)
	for _, row := range r.Table() {
		fmt.Fprintf(&b, "<div><dt>%s</dt><dd>%s</dd></div>", html.EscapeString(row.Name), html.EscapeString(row.Value))
	}
	b.WriteString("</dl>\n<figure>")
	b.WriteString(r.picture())
	b.WriteString(`<figcaption>Validation loss of the shared model, number of peers, and the life of every peer process over time. Numbers refer to the list below.</figcaption></figure>` + "\n<h2>Events</h2>\n<table><thead><tr><th>#</th><th>time</th><th>what happened</th></tr></thead><tbody>\n")
	for i, m := range r.sorted() {
		fmt.Fprintf(&b, `<tr><td><span class="tag %s">%d</span></td><td>%.1f s</td><td>%s</td></tr>`+"\n",
			m.Kind, i+1, m.At.Seconds(), html.EscapeString(m.Text))
	}
	b.WriteString("</tbody></table>\n</main></body></html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Record) picture() string {
	lanes := float64(len(r.Lives))
	bottom := laneTop + lanes*laneHeight
	s := newSVG(pageWidth, bottom+34, "loss, world size and events over time")
	end := 1.0
	for _, p := range r.Points {
		end = math.Max(end, p.At.Seconds())
	}
	for _, m := range r.Marks {
		end = math.Max(end, m.At.Seconds())
	}
	x := scale{0, end, plotLeft, plotRight}

	for _, v := range ticks(0, end, 8) {
		s.line("grid", x.at(v), lossTop, x.at(v), bottom)
		s.text("label", x.at(v), bottom+18, "middle", fmt.Sprintf("%g s", v))
	}
	r.drawMarks(s, x, bottom)
	r.drawLoss(s, x)
	r.drawWorld(s, x)
	r.drawLives(s, x)
	return s.String()
}

// drawMarks rules a line through all plots for every event; numbers that would
// collide move to the right.
func (r *Record) drawMarks(s *svg, x scale, bottom float64) {
	free := math.Inf(-1)
	for i, m := range r.sorted() {
		at := x.at(m.At.Seconds())
		if m.Kind == "start" || m.Kind == "leave" {
			continue
		}
		s.line("rule "+m.Kind, at, lossTop, at, bottom)
		label := math.Min(math.Max(at, free), plotRight-8)
		free = label + 20
		s.rect("tagbox "+m.Kind, label-9, flagTop, 18, 16, 3, m.Text)
		s.text("taglabel", label, flagTop+12, "middle", fmt.Sprint(i+1))
		s.line("rule "+m.Kind, label, flagTop+16, at, lossTop)
	}
}

func (r *Record) drawLoss(s *svg, x scale) {
	low, high := math.Inf(1), r.Before
	line := [][2]float64{}
	for _, p := range r.Points {
		if p.Loss > 0 {
			low, high = math.Min(low, p.Loss), math.Max(high, p.Loss)
		}
	}
	if math.IsInf(low, 1) {
		low = 0
	}
	pad := math.Max((high-low)*0.05, 0.05)
	y := scale{high + pad, math.Max(low-pad, 0), lossTop, lossBottom}
	for _, v := range ticks(y.to, y.from, 6) {
		s.line("grid", plotLeft, y.at(v), plotRight, y.at(v))
		s.text("label", plotLeft-8, y.at(v)+4, "end", fmt.Sprintf("%g", round(v)))
	}
	s.text("title", plotLeft+6, lossTop+14, "start", "validation loss, nats per character")
	for _, p := range r.Points {
		if p.Loss > 0 {
			line = append(line, [2]float64{x.at(p.At.Seconds()), y.at(p.Loss)})
		}
	}
	s.path("loss", line)
	for i, p := range r.Points {
		if p.Loss > 0 && len(line) <= 400 {
			s.dot("hover", x.at(p.At.Seconds()), y.at(p.Loss), 4,
				fmt.Sprintf("%.1f s, step %d, loss %.4f, %d peers, state %s", p.At.Seconds(), p.Step, p.Loss, p.World, r.Points[i].Hash))
		}
	}
}

func (r *Record) drawWorld(s *svg, x scale) {
	most := 1
	for _, p := range r.Points {
		most = max(most, p.World)
	}
	y := scale{float64(most), 0, worldTop, worldBottom}
	for v := 0; v <= most; v += 1 + most/6 {
		s.line("grid", plotLeft, y.at(float64(v)), plotRight, y.at(float64(v)))
		s.text("label", plotLeft-8, y.at(float64(v))+4, "end", fmt.Sprint(v))
	}
	s.text("title", plotLeft+6, worldTop-8, "start", "peers in the group")
	stairs := [][2]float64{}
	for _, p := range r.Points {
		at := x.at(p.At.Seconds())
		if n := len(stairs); n > 0 {
			stairs = append(stairs, [2]float64{at, stairs[n-1][1]})
		}
		stairs = append(stairs, [2]float64{at, y.at(float64(p.World))})
	}
	s.path("world", stairs)
}

func (r *Record) drawLives(s *svg, x scale) {
	s.text("title", plotLeft+6, laneTop-8, "start", "peer processes")
	for i, l := range r.Lives {
		y := laneTop + float64(i)*laneHeight
		s.text("label", plotLeft-8, y+15, "end", fmt.Sprintf("peer %d", i+1))
		if !l.joined {
			continue
		}
		class, text := "life", fmt.Sprintf("peer %d (%s), %.1f s to %.1f s", i+1, l.name, l.From.Seconds(), l.To.Seconds())
		if l.Killed {
			class, text = "life killed", text+", killed"
		}
		from, to := x.at(l.From.Seconds()), x.at(l.To.Seconds())
		s.rect(class, from, y+4, to-from, laneHeight-8, 3, text)
		if l.Killed {
			s.line("cross", to-5, y+6, to+5, y+16)
			s.line("cross", to-5, y+16, to+5, y+6)
		}
	}
}

func round(v float64) float64 { return math.Round(v*1e6) / 1e6 }

// head takes the date, the class and the text of the verdict.
const head = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>gopccl demo</title>
<style>
:root { color-scheme: light dark; --ground: #fbfbfa; --ink: #1c1f23; --faint: #6a7178; --grid: #e4e5e3; --card: #ffffff;
  --blue: #2563a8; --green: #22863a; --red: #c4302b; --amber: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ground: #15181b; --ink: #e4e6e8; --faint: #98a0a8; --grid: #2c3136; --card: #1d2125;
  --blue: #6cabec; --green: #57b96d; --red: #f0736b; --amber: #d9a441; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.when { color: var(--faint); margin: 0 0 1rem; }
.verdict { padding: .6rem .9rem; border-left: 4px solid; background: var(--card); }
.verdict.good { border-color: var(--green); } .verdict.bad { border-color: var(--red); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .6rem; margin: 1.2rem 0; }
.tiles div { background: var(--card); border: 1px solid var(--grid); border-radius: 6px; padding: .5rem .7rem; }
dt { color: var(--faint); font-size: .8rem; } dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
figure { margin: 0; background: var(--card); border: 1px solid var(--grid); border-radius: 6px; padding: .6rem; overflow-x: auto; }
figcaption { color: var(--faint); font-size: .85rem; padding: .3rem .4rem; }
svg { display: block; width: 100%%; min-width: 40rem; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--faint); }
svg .title { fill: var(--ink); font-size: 13px; } svg .taglabel { fill: var(--ground); font-size: 11px; font-weight: 600; }
.grid { stroke: var(--grid); } .rule { stroke-dasharray: 3 3; }
.loss { fill: none; stroke: var(--blue); stroke-width: 2; stroke-linejoin: round; } .world { fill: none; stroke: var(--ink); stroke-width: 2; }
.hover { fill: var(--blue); opacity: 0; } .hover:hover { opacity: 1; }
.life { fill: var(--blue); opacity: .75; } .life.killed { fill: var(--faint); } .cross { stroke: var(--red); stroke-width: 2.5; }
.rule.join { stroke: var(--green); } .rule.kill, .rule.trouble { stroke: var(--red); } .rule.retry { stroke: var(--amber); }
.tagbox { fill: var(--faint); } .tagbox.join { fill: var(--green); } .tagbox.kill, .tagbox.trouble { fill: var(--red); } .tagbox.retry { fill: var(--amber); }
table { border-collapse: collapse; width: 100%%; } th { text-align: left; color: var(--faint); font-weight: 500; font-size: .85rem; }
td:nth-child(2) { white-space: nowrap; } td, th { padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--grid); font-variant-numeric: tabular-nums; }
.tag { display: inline-block; min-width: 1.6em; padding: 0 .3em; border-radius: 3px; text-align: center; color: var(--ground); background: var(--faint); font-size: .8rem; font-weight: 600; }
.tag.join { background: var(--green); } .tag.kill, .tag.trouble { background: var(--red); } .tag.retry { background: var(--amber); }
</style></head><body><main>
<h1>gopccl demo</h1>
<p class="when">%s: a character-level language model on Newton's "Opticks", trained by several processes with DiLoCo while processes join and die.</p>
<p class="verdict %s">%s</p>
`
