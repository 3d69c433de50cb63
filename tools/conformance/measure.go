package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// object is one measurement of a command.
type object map[string]any

// measure runs the commands whose name, or one of whose rows, matches the
// expression, and publishes their figures. What missed its bar, or could not
// be run, is in missed; the others are published nevertheless.
func measure(root string, s states, only string) (missed, err error) {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(root, figuresFile)
	for _, c := range slices.Sorted(maps.Keys(s.Command)) {
		rows := s.of(c)
		wanted := pattern.MatchString(c) || slices.ContainsFunc(rows, pattern.MatchString)
		if len(rows) == 0 || !wanted {
			continue
		}
		fmt.Printf("== %s (about %d s): %s\n", c, s.Command[c].Seconds, s.Command[c].Run)
		got, failed := s.Command[c].run(root)
		if failed != nil {
			missed = errors.Join(missed, fmt.Errorf("%s: %w", c, failed))
			continue
		}
		figures, err := readFigures(name)
		if err != nil {
			return nil, err
		}
		if figures == nil {
			figures = published{}
		}
		for _, id := range rows {
			missed = errors.Join(missed, figures.take(id, s.Row[id].Figures, c, got))
		}
		if err := figures.write(name, s); err != nil {
			return nil, err
		}
	}
	return missed, nil
}

// of lists the rows with figures of a command.
func (s states) of(command string) (ids []string) {
	for id, r := range s.Row {
		if slices.ContainsFunc(r.Figures, func(f figure) bool { return f.Of == command }) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// run runs a command and returns what it measured, as objects and as text.
func (c *command) run(root string) (measured, error) {
	file, err := os.CreateTemp("", "measured")
	if err != nil {
		return measured{}, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	var out bytes.Buffer
	cmd := exec.Command("bash", "-c", c.Run)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "MEASURED="+file.Name())
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, os.Stdout), os.Stderr
	if err := cmd.Run(); err != nil {
		return measured{}, err
	}
	text, err := os.ReadFile(file.Name()) // by name: a command may have put another one in its place
	if err != nil {
		return measured{}, err
	}
	if len(text) == 0 {
		text = out.Bytes()
	}
	return measured{readObjects(text), string(text)}, nil
}

// measured is what a command printed.
type measured struct {
	objects []object
	text    string
}

var benchmarkPattern = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// readObjects finds the JSON objects in an output (one a line, or one document
// with lists of objects), and the lines of Go benchmarks.
func readObjects(out []byte) (all []object) {
	var document map[string]any
	if json.Unmarshal(out, &document) == nil {
		for _, v := range document {
			list, _ := v.([]any)
			for _, o := range list {
				if o, ok := o.(map[string]any); ok {
					all = append(all, o)
				}
			}
		}
		return append(all, document)
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if m := benchmarkPattern.FindStringSubmatch(line); m != nil {
			o := object{"benchmark": m[1]}
			words := strings.Fields(m[2])
			for i := 0; i+1 < len(words); i += 2 {
				if v, err := strconv.ParseFloat(words[i], 64); err == nil {
					o[words[i+1]] = v
				}
			}
			all = append(all, o)
		}
		var o object
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &o) == nil {
			all = append(all, o)
		}
	}
	return all
}

// value finds a figure in what its command printed.
func (f figure) value(got measured) (float64, error) {
	v, err := f.number(got)
	if err == nil && (f.By != "" || f.ByWhere != nil) {
		field, where := f.By, f.ByWhere
		if field == "" {
			field = f.Field
		}
		if where == nil {
			where = f.Where
		}
		var by float64
		by, err = pick(got.objects, where, field)
		v /= by
	}
	if f.Scale != 0 {
		v *= f.Scale
	}
	return v, err
}

func (f figure) number(got measured) (float64, error) {
	if f.Match == "" {
		return pick(got.objects, f.Where, f.Field)
	}
	m := regexp.MustCompile(f.Match).FindStringSubmatch(got.text)
	if len(m) < 2 {
		return 0, fmt.Errorf("nothing measured matches %q", f.Match)
	}
	return strconv.ParseFloat(m[1], 64)
}

// pick is a field of the last object that has the values.
func pick(all []object, where map[string]any, field string) (float64, error) {
	for _, o := range slices.Backward(all) {
		fits := true
		for key, want := range where {
			fits = fits && fmt.Sprint(o[key]) == fmt.Sprint(want)
		}
		if v, ok := o.at(field); fits && ok {
			return v, nil
		}
	}
	return 0, fmt.Errorf("nothing measured has %v and a number %q", where, field)
}

// at is the number under a key; a.b.c is c of b of a.
func (o object) at(field string) (float64, bool) {
	if v, ok := o[field].(float64); ok {
		return v, true
	}
	key, rest, ok := strings.Cut(field, ".")
	inner, isObject := o[key].(map[string]any)
	if !ok || !isObject {
		return 0, false
	}
	return object(inner).at(rest)
}

// take publishes the figures of a row that come from a command.
func (p published) take(id string, list []figure, command string, got measured) (missed error) {
	for _, f := range list {
		if f.Of != command {
			continue
		}
		v, err := f.value(got)
		if err != nil {
			missed = errors.Join(missed, fmt.Errorf("%s: %s: %w", id, f.Name, err))
			continue
		}
		verdict := "met"
		if !f.met(v) {
			verdict = "MISSED"
			missed = errors.Join(missed, fmt.Errorf("%s: %s is %s %s, the bar is %s", id, f.Name, number(v), f.Unit, f.bar()))
		}
		fmt.Printf("%s: %s: %s %s (%s): %s\n", id, f.Name, number(v), f.Unit, f.bar(), verdict)
		list := slices.DeleteFunc(p[id], func(old value) bool { return old.Name == f.Name })
		p[id] = append(list, value{f.Name, v, f.Unit, time.Now().Format(time.DateOnly) + ", " + machine()})
	}
	return missed
}

// write writes the figures that rows still ask for.
func (p published) write(name string, s states) error {
	for id, list := range p {
		p[id] = slices.DeleteFunc(list, func(v value) bool {
			return s.Row[id] == nil || !slices.ContainsFunc(s.Row[id].Figures, func(f figure) bool { return f.Name == v.Name })
		})
		if len(p[id]) == 0 {
			delete(p, id)
		}
		slices.SortFunc(p[id], func(a, b value) int { return strings.Compare(a.Name, b.Name) })
	}
	text, err := json.MarshalIndent(p, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

var modelPattern = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)

// machine names where the figures come from.
func machine() string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := modelPattern.FindSubmatch(text); m != nil {
			model = string(m[1])
		}
	}
	return fmt.Sprintf("%d cores of %s, %s", runtime.NumCPU(), model, runtime.Version())
}
