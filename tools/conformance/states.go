package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// The states that states.toml gives; rows with neither entry nor test are errors.
const (
	tested  = "test"
	gauged  = "measured"
	leftOut = "left out"
	open    = "open"
)

// states is states.toml.
type states struct {
	Command map[string]*command
	Row     map[string]*state
}

// command is run by -measure. What it measured is in the file that $MEASURED
// names, if it writes that one, or else in its output: JSON objects, one a line,
// or lines of Go benchmarks, which become objects with "benchmark" and a key for
// each unit, or text for expressions.
type command struct {
	Run     string // of the shell, at the root of the repository
	Seconds int    // how long it takes on two cores, about
	Needs   string // what it needs beyond Go, in words; empty: nothing
}

// state is what a row has beside its tests.
type state struct {
	State   string   // test (with a remark), measured, left out, open
	Because string   // why it is left out or open; else what the tests or figures do not show
	Figures []figure // of a measured row, at least one
}

// figure is one number of a measured row.
type figure struct {
	Name  string
	Of    string         // the command
	Where map[string]any // the object of the output that has these values
	Field string         // its number; a.b is b of the object a
	Match string         // or: an expression whose first group is the number
	// By divides, taken from the object that ByWhere selects (or the same one);
	// Scale multiplies. The result has the unit.
	By      string
	ByWhere map[string]any
	Scale   float64
	Unit    string
	AtMost  *float64
	AtLeast *float64
}

func (f figure) bar() string {
	if f.AtMost != nil {
		return "at most " + number(*f.AtMost)
	}
	return "at least " + number(*f.AtLeast)
}

func (f figure) met(v float64) bool {
	return (f.AtMost == nil || v <= *f.AtMost) && (f.AtLeast == nil || v >= *f.AtLeast)
}

func number(v float64) string {
	switch {
	case v >= 100 || v == float64(int(v)):
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func parseStates(text string) (states, error) {
	var s states
	meta, err := toml.Decode(text, &s)
	if err != nil {
		return s, fmt.Errorf("states.toml: %w", err)
	}
	var wrong []error
	for _, key := range meta.Undecoded() {
		// The values of a selection are keys that no field has.
		if text := key.String(); !strings.Contains(text, ".where.") && !strings.Contains(text, ".bywhere.") {
			wrong = append(wrong, fmt.Errorf("states.toml: no such key %s", key))
		}
	}
	for id, r := range s.Row {
		wrong = append(wrong, r.check(id, s.Command)...)
	}
	for name, c := range s.Command {
		if c.Run == "" || c.Seconds == 0 {
			wrong = append(wrong, fmt.Errorf("states.toml: command %s: wants run and seconds", name))
		}
	}
	return s, errors.Join(wrong...)
}

func (r *state) check(id string, commands map[string]*command) (wrong []error) {
	bad := func(format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("states.toml: %s: %s", id, fmt.Sprintf(format, args...)))
	}
	if !idPattern.MatchString(id) {
		bad("no id")
	}
	switch r.State {
	case gauged:
		if len(r.Figures) == 0 {
			bad("measured, and no figure")
		}
	case tested, leftOut, open:
		if r.Because == "" {
			bad("%s, and does not say why", r.State)
		}
	default:
		bad("state %q: want test, measured, left out or open", r.State)
	}
	for i, f := range r.Figures {
		if slices.ContainsFunc(r.Figures[:i], func(other figure) bool { return other.Name == f.Name }) {
			bad("two figures have the name %q", f.Name)
		}
		if f.Name == "" || (f.Field == "") == (f.Match == "") || commands[f.Of] == nil {
			bad("figure %q: wants a name, a field or an expression, and a command", f.Name)
		}
		if _, err := regexp.Compile(f.Match); err != nil {
			bad("figure %q: %v", f.Name, err)
		}
		if (f.AtMost == nil) == (f.AtLeast == nil) {
			bad("figure %q: wants one bar", f.Name)
		}
	}
	return wrong
}

// value is a published figure.
type value struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	On    string  `json:"on"` // the machine, and the day
}

// published are the figures by row.
type published map[string][]value

func readFigures(name string) (published, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var p published
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func (p published) of(id, name string) (value, bool) {
	i := slices.IndexFunc(p[id], func(v value) bool { return v.Name == name })
	if i < 0 {
		return value{}, false
	}
	return p[id][i], true
}
