package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/gopccl/gopccl/tests/internal/lab"
	"github.com/gopccl/gopccl/tests/internal/moves"
)

// match is one table: contestants in turns in one network.
type match struct {
	Profile    string `json:"profile"`
	Congestion string `json:"congestion"`
	Bytes      int    `json:"bytes"`
	Pattern    string `json:"pattern,omitempty"` // empty: an all-reduce
}

func (m match) String() string {
	if m.Pattern != "" {
		return fmt.Sprintf("%s/%s/%s/%d", m.Profile, m.Congestion, m.Pattern, m.Bytes)
	}
	return fmt.Sprintf("%s/%s/%d", m.Profile, m.Congestion, m.Bytes)
}

// String says what the operation is.
func (t task) String() string {
	switch {
	case t.Pattern == "":
		return size(t.Bytes)
	case t.Bytes == 0:
		return t.Pattern
	}
	return t.Pattern + ", " + size(t.Bytes)
}

// series is what `make wan` plays: sizes that keep every profile under some minutes.
var series = append([]match{
	{Profile: "regional", Congestion: "cubic", Bytes: 16 << 20},
	{Profile: "regional", Congestion: "bbr", Bytes: 16 << 20},
	{Profile: "regional", Congestion: "cubic", Bytes: 400_000},
	{Profile: "intercontinental", Congestion: "cubic", Bytes: 8 << 20},
	{Profile: "intercontinental", Congestion: "bbr", Bytes: 8 << 20},
	{Profile: "intercontinental", Congestion: "cubic", Bytes: 400_000},
	{Profile: "lossy", Congestion: "cubic", Bytes: 2 << 20},
	{Profile: "lossy", Congestion: "bbr", Bytes: 2 << 20},
	{Profile: "lossy", Congestion: "cubic", Bytes: 400_000},
	{Profile: "home", Congestion: "cubic", Bytes: 4 << 20},
	{Profile: "home", Congestion: "cubic", Bytes: 400_000},
	{Profile: "mixed", Congestion: "cubic", Bytes: 16 << 20},
	{Profile: "perflow", Congestion: "cubic", Bytes: 16 << 20},
	{Profile: "satellite", Congestion: "cubic", Bytes: 1 << 20},
	{Profile: "sites", Congestion: "cubic", Bytes: 16 << 20},
	{Profile: "report18", Congestion: "cubic", Bytes: 8 << 20},
	{Profile: "report12", Congestion: "cubic", Bytes: 8 << 20},
	{Profile: "report6", Congestion: "cubic", Bytes: 16 << 20},
}, others("regional", "cubic", 16<<20, 400_000)...)

// others are the matches in the collectives besides all-reduce, in one network.
func others(profile, congestion string, sizes ...int) (list []match) {
	for _, t := range (game{patterns: moves.Names(), sizes: sizes}).tasks() {
		list = append(list, match{profile, congestion, t.Bytes, t.Pattern})
	}
	return list
}

// together returns how many matches at the head of a list are played in one network, by
// the same processes: those in collectives besides all-reduce.
func together(list []match) int {
	n := 1
	for n < len(list) && list[0].Pattern != "" && list[n].Pattern != "" && list[n].Profile == list[0].Profile && list[n].Congestion == list[0].Congestion {
		n++
	}
	return n
}

// reported is what PCCL's report says of the experiments whose regions a profile has, in
// seconds for 1.073 GB.
var reported = map[string]struct{ pccl, gloo float64 }{
	"report18": {90.50, 94.44},
	"report12": {35.20, 37.58},
	"report6":  {8.30, 9.67},
}

// entry is a contestant's part of a match.
type entry struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`         // median
	Ideal   float64 `json:"ideal,omitempty"` // what part of the ideal that is; 0: no ideal is known
	Dropped uint64  `json:"dropped"`         // packets an operation, by full queues
	Lost    uint64  `json:"lost"`            // packets an operation, by the path
	Late    float64 `json:"late"`            // share of packets that the machine delivered late
	steps   []step
}

// counts says whether the laboratory kept its word.
func (e entry) counts() bool { return e.Late <= lab.MaxLate }

type outcome struct {
	match
	Entries []entry `json:"entries"`
}

// best returns the fastest of a kind: its number of connections is behind a comma.
func (o outcome) best(kind string) (entry, bool) {
	var list []entry
	for _, e := range o.Entries {
		if name, _, _ := strings.Cut(e.Name, ","); name == kind {
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		return entry{}, false
	}
	return slices.MinFunc(list, func(a, b entry) int { return cmp.Compare(a.Seconds, b.Seconds) }), true
}

const (
	nameOurs  = "gopccl"
	nameTLS   = "gopccl in TLS"
	namePCCL  = "PCCL 1.0.0"
	nameGloo  = "Gloo"
	namePlain = "plain TCP"
)

// outcomes are the matches of a file, in the order of series.
type outcomes []outcome

func readOutcomes(file string) (list outcomes, err error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	return list, err
}

// with returns list with o in the place of an older outcome of the same match.
func (list outcomes) with(o outcome) outcomes {
	list = slices.DeleteFunc(slices.Clone(list), func(old outcome) bool { return old.match == o.match })
	list = append(list, o)
	place := func(m match) int {
		if i := slices.Index(series, m); i >= 0 {
			return i
		}
		return len(series)
	}
	slices.SortStableFunc(list, func(a, b outcome) int { return cmp.Compare(place(a.match), place(b.match)) })
	return list
}

// write writes the outcomes, and beside them the page and its picture.
func (list outcomes) write(base string) error {
	b, err := json.MarshalIndent(list, "", "\t")
	if err == nil {
		err = os.WriteFile(base+".json", append(b, '\n'), 0o644)
	}
	if err == nil {
		err = os.WriteFile(base+".svg", []byte(list.svg()), 0o644)
	}
	if err == nil {
		err = os.WriteFile(base+".md", []byte(list.markdown()), 0o644)
	}
	return err
}

// lines returns the entries that count, an object in each line, with their time by that
// of gopccl with its defaults. A match in which that does not count has none.
func (list outcomes) lines() (text []byte) {
	for _, o := range list {
		i := slices.IndexFunc(o.Entries, func(e entry) bool { return e.Name == nameOurs && e.counts() })
		for _, e := range o.Entries {
			if i < 0 || !e.counts() {
				continue
			}
			b, err := json.Marshal(struct {
				match
				entry
				Ratio float64 `json:"ratio"`
			}{o.match, e, e.Seconds / o.Entries[i].Seconds})
			if err == nil {
				text = append(append(text, b...), '\n')
			}
		}
	}
	return text
}

const preface = `# The open internet

All-reduces of float32 over emulated wide-area networks (` + "`tests/internal/lab`" + `: real TCP between network namespaces; rates, delays, queues and losses by profile and seed). ` + "`make wan`" + ` (Linux, root) plays all matches and writes this page. Contestants take turns in one network. gopccl runs with its defaults, and once more with a credential for each process, in TLS. PCCL 1.0.0 runs with as many connections as the row says, Gloo is PyTorch's; its transport in TLS is not in PyTorch's wheels (2.15.0 is built without ` + "`USE_GLOO_WITH_OPENSSL`" + `), so it has no row. Plain TCP is not a collective: every host sends the next one as many bytes as a ring all-reduce does, over so many connections, without waiting and without reducing; "paced" is at 0.90 of the slowest uplink. The other collectives, which PCCL does not have, are played beside Gloo; bytes are those of the buffer with the blocks of all, or of the one buffer. A time is that of the last member to finish.

Seconds are medians without the first operation. The ideal is what any schedule needs at least, without any delay: every peer, and every site, sends the data once and receives the result once, and all of them together do nearly twice. Of other collectives it is the most that a member sends or receives, at the rate of the slowest uplink. The laboratory counts the packets that it delivered more than a millisecond late: a row with more than 1 % of them does not count.

![parts of the ideal](internet.svg)
`

func (list outcomes) markdown() string {
	var b strings.Builder
	b.WriteString(preface)
	profile := ""
	for _, o := range list {
		if o.Profile != profile {
			profile = o.Profile
			fmt.Fprintf(&b, "\n## %s\n\n", profile)
			if p, err := lab.Load(profile); err == nil && p.About != "" {
				fmt.Fprintf(&b, "%s\n", p.About)
			}
		}
		fmt.Fprintf(&b, "\n%v, %s:\n\n| | seconds | of the ideal | dropped, lost packets | late |\n|---|---|---|---|---|\n", task{o.Bytes, o.Pattern}, o.Congestion)
		for _, e := range o.Entries {
			b.WriteString(e.row(""))
		}
		if v := o.verdict(); v != "" {
			fmt.Fprintf(&b, "\n%s\n", v)
		}
	}
	return b.String()
}

// row is a line of a table; what comes first is in lead.
func (e entry) row(lead string) string {
	ideal := ""
	if e.Ideal > 0 {
		ideal = fmt.Sprintf("%.2f", e.Ideal)
	}
	late := fmt.Sprintf("%.2f %%", 100*e.Late)
	if !e.counts() {
		late += ", does not count"
	}
	return fmt.Sprintf("|%s %s | %.3f | %s | %d, %d | %s |\n", lead, e.Name, e.Seconds, ideal, e.Dropped, e.Lost, late)
}

// verdict compares gopccl with the best of each kind.
func (o outcome) verdict() string {
	ours, ok := o.best(nameOurs)
	if !ok {
		return ""
	}
	var parts []string
	for _, kind := range []string{namePlain, namePCCL, nameGloo} {
		if e, ok := o.best(kind); ok {
			parts = append(parts, fmt.Sprintf("%.2f times that of %s", ours.Seconds/e.Seconds, e.Name))
		}
	}
	var text []string
	if len(parts) > 0 {
		text = append(text, "Time of gopccl: "+strings.Join(parts, ", ")+".")
	}
	if e, ok := o.best(nameTLS); ok {
		text = append(text, fmt.Sprintf("In TLS gopccl reaches %.2f of what it reaches in plaintext.", ours.Seconds/e.Seconds))
	}
	if r, ok := reported[o.Profile]; ok {
		pccl, a := o.best(namePCCL)
		gloo, b := o.best(nameGloo)
		if a && b {
			text = append(text, fmt.Sprintf("Gloo took %.2f times as long as PCCL, and in its report %.2f times.", gloo.Seconds/pccl.Seconds, r.gloo/r.pccl))
		}
	}
	return strings.Join(text, " ")
}

func size(bytes int) string {
	switch {
	case bytes >= 1<<20 && bytes%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", bytes>>20)
	case bytes >= 1000 && bytes%1000 == 0:
		return fmt.Sprintf("%d KB", bytes/1000)
	}
	return fmt.Sprintf("%d bytes", bytes)
}

var colours = []struct{ kind, colour string }{
	{nameOurs, "#0a7"}, {nameTLS, "#7cb"}, {namePlain, "#888"}, {namePCCL, "#c50"}, {nameGloo, "#56c"},
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
