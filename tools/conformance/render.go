package main

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// line is a row with its state and what shows it.
type line struct {
	row
	state string
	by    string
}

// settle gives every row its state. What cannot be is a problem: a row with
// nothing, a label of a row that the checklist has not, a figure that nobody
// measured or that missed its bar.
func settle(rows []row, s states, found map[string][]mention, figures published) (table []line, problems []string) {
	known := map[string]bool{}
	for _, r := range rows {
		known[r.id] = true
		tests := references(found[r.id])
		entry := s.Row[r.id]
		l := line{row: r, state: tested, by: tests}
		switch {
		case entry == nil && tests == "":
			problems = append(problems, fmt.Sprintf("%s has no test and no entry in states.toml", r.id))
		case entry == nil:
		case entry.State == gauged:
			by, wrong := results(r.id, entry, s.Command, figures)
			problems = append(problems, wrong...)
			l.state, l.by = gauged, by+"."
			if entry.Because != "" {
				l.by += " " + entry.Because
			}
			if tests != "" {
				l.by += " Tests: " + tests + "."
			}
		case entry.State == tested && tests == "":
			problems = append(problems, fmt.Sprintf("%s has a remark and no test", r.id))
		case entry.State == tested:
			l.by = tests + ". " + entry.Because
		default:
			l.state, l.by = entry.State, entry.Because
			if tests != "" {
				l.by += " Tested so far: " + tests + "."
			}
		}
		table = append(table, l)
	}
	for id, m := range found {
		if !known[id] {
			problems = append(problems, fmt.Sprintf("%s of %v is not a row of the checklist", id, m[0]))
		}
	}
	for id := range s.Row {
		if !known[id] {
			problems = append(problems, fmt.Sprintf("%s of states.toml is not a row of the checklist", id))
		}
	}
	slices.Sort(problems)
	return table, problems
}

func references(list []mention) string {
	var names []string
	for _, m := range list {
		if name := m.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// results tells the figures of a measured row, with their bars.
func results(id string, r *state, commands map[string]*command, figures published) (by string, problems []string) {
	var parts, runs []string
	for _, f := range r.Figures {
		v, ok := figures.of(id, f.Name)
		switch {
		case !ok:
			problems = append(problems, fmt.Sprintf("%s: %q has not been measured: go run -C tools ./conformance -measure -only '^%s$'", id, f.Name, f.Of))
			continue
		case !f.met(v.Value):
			problems = append(problems, fmt.Sprintf("%s: %s is %s, the bar is %s %s: measure again, or call the row open", id, f.Name, number(v.Value), f.bar(), f.Unit))
		}
		parts = append(parts, fmt.Sprintf("%s: %s (%s)", f.Name, strings.TrimSpace(number(v.Value)+" "+f.Unit), f.bar()))
		if run := "`" + commands[f.Of].Run + "`"; !slices.Contains(runs, run) {
			runs = append(runs, run)
		}
	}
	return strings.Join(parts, "; ") + ". By " + strings.Join(runs, ", "), problems
}

// counts says how many rows are in which state.
func counts(table []line) string {
	n := map[string]int{}
	for _, l := range table {
		n[l.state]++
	}
	return fmt.Sprintf("%d rows: %d tested, %d measured, %d left out, %d open", len(table), n[tested], n[gauged], n[leftOut], n[open])
}

var countsPattern = regexp.MustCompile(`\d+ rows: \d+ tested, \d+ measured, \d+ left out, \d+ open`)

// countsInto puts the counts where the text has counts.
func countsInto(text []byte, counts string) ([]byte, error) {
	if !countsPattern.Match(text) {
		return nil, errors.New("has no line with the counts of the conformance table")
	}
	return countsPattern.ReplaceAll(text, []byte(counts)), nil
}

var documents = map[string]string{
	"S0": "Chapter notes on PCCL's internals", "S1": "Implementation documents of PCCL", "S2": "Technical report",
	"S3": "TCCL article", "S4": "RCCL proxy threading model",
}

const preface = `# Conformance

What the documents about PCCL and its relatives name, row by row, with its state and what shows it. Made by ` + "`make conformance`" + ` from the labels in the tests and from ` + "`tools/conformance/states.toml`" + `; not edited by hand.

- **test**: an assertion that runs in ` + "`make test`" + ` carries the row's id on its line, or directly above it.
- **measured**: a command prints a figure, which is held against a bar. ` + "`make measure`" + ` runs all of them and writes the figures anew (` + "[measured.json](measured.json)" + ` says where and when).
- **left out**: not built, for the reason that stands there.
- **open**: not done, or not shown; what is missing stands there.

"(hw)" are rows that need hardware or links which the tests cannot count on.

`

// render makes the document.
func render(table []line) []byte {
	var b bytes.Buffer
	b.WriteString(preface)
	fmt.Fprintf(&b, "%s.\n", counts(table))
	document := ""
	for _, l := range table {
		if d := l.id[:2]; d != document {
			document = d
			fmt.Fprintf(&b, "\n## %s %s\n\n| Id | What | State | By |\n|---|---|---|---|\n", d, documents[d])
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", l.id, escape(l.what), l.state, escape(l.by))
	}
	return b.Bytes()
}

func escape(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
