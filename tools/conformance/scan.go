package main

import (
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// mention is an assertion that carries an id.
type mention struct{ dir, name string }

func (m mention) String() string { return "`" + m.dir + "` " + m.name }

// scanner collects labels, and complaints about those that prove nothing.
type scanner struct {
	fsys     fs.FS
	found    map[string][]mention
	problems []string
}

func (s *scanner) add(dir, name string, ids []string) {
	for _, id := range ids {
		if m := (mention{dir, name}); !slices.Contains(s.found[id], m) {
			s.found[id] = append(s.found[id], m)
		}
	}
}

func (s *scanner) complain(file string, line int, ids []string, why string) {
	s.problems = append(s.problems, fmt.Sprintf("%s:%d: %s: %s", file, line, strings.Join(ids, " "), why))
}

// scan finds the labels of all tests below fsys: in Go, in the tests of the
// Python package, in the C programs and in the scripts of make test.
func scan(fsys fs.FS) (map[string][]mention, []string) {
	s := &scanner{fsys: fsys, found: map[string][]mention{}}
	packages := map[string][]string{} // Go files by directory
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata") || name == "tools/conformance" {
				return fs.SkipDir
			}
			return nil
		}
		dir := path.Dir(name)
		switch {
		case path.Ext(base) == ".go":
			packages[dir] = append(packages[dir], name)
		case dir == "bindings/python/tests" && strings.HasPrefix(base, "test_") && path.Ext(base) == ".py":
			return s.lines(name, pythonTests)
		case dir == "tests/cabi/programs":
			return s.lines(name, programs)
		case dir == "tools/ci" && (path.Ext(base) == ".sh" || path.Ext(base) == ".py"):
			return s.lines(name, scripts)
		}
		return nil
	})
	if err != nil {
		return nil, []string{err.Error()}
	}
	s.goFiles(packages)
	return s.found, s.problems
}

// language says how a source that is read line by line looks.
type language struct {
	comment *regexp.Regexp // where a comment begins
	unit    *regexp.Regexp // begins what is shown as the place; its first group is the name
	asserts *regexp.Regexp // a line that asserts
	must    bool           // a label outside a unit proves nothing
}

var (
	pythonTests = language{
		comment: regexp.MustCompile(`#`), must: true,
		unit:    regexp.MustCompile(`^(?:async )?def (\w+)`),
		asserts: regexp.MustCompile(`^\s*(?:assert\b|with pytest\.raises\()`),
	}
	programs = language{
		comment: regexp.MustCompile(`/[/*]`),
		unit:    regexp.MustCompile(`^static [^;=]*?(\w+)\([^;]*\{\s*$|^int (main)\(`),
		asserts: regexp.MustCompile(`\b(?:EXPECT|OK|TRUE)\(`),
	}
	scripts = language{
		comment: regexp.MustCompile(`#`),
		unit:    regexp.MustCompile(`^$^`),
		asserts: regexp.MustCompile(`\|\| fail\b|^\s*(?:assert|raise)\b`),
	}
)

// lines finds the labels of a file: on a line that asserts, or on a line of
// its own with nothing but comments between it and such a line.
func (s *scanner) lines(name string, l language) error {
	text, err := fs.ReadFile(s.fsys, name)
	if err != nil {
		return err
	}
	if !s.executed(name) {
		l.asserts = regexp.MustCompile(`^$^`)
	}
	place := ""
	var waiting []string // the labels above
	first := 0
	for i, line := range strings.Split(string(text), "\n") {
		if m := l.unit.FindStringSubmatch(line); m != nil {
			place = strings.Join(m[1:], "")
		}
		code, comment := line, ""
		if at := l.comment.FindStringIndex(line); at != nil && idPattern.MatchString(line[at[0]:]) {
			code, comment = line[:at[0]], line[at[0]:]
		}
		bare := strings.TrimSpace(code)
		if at := l.comment.FindStringIndex(bare); at != nil && at[0] == 0 {
			bare = ""
		}
		if ids := idPattern.FindAllString(comment, -1); len(ids) > 0 {
			if len(waiting) == 0 {
				first = i + 1
			}
			waiting = append(waiting, ids...)
		}
		if bare == "" && strings.TrimSpace(line) != "" || len(waiting) == 0 {
			continue // a comment; or nothing to settle
		}
		if l.asserts.MatchString(code) && (place == "" || !l.must || strings.HasPrefix(place, "test_")) && !(l.must && place == "") {
			s.add(path.Dir(name), strings.TrimSpace(path.Base(name)+" "+place), waiting)
		} else {
			s.complain(name, first, waiting, "the label stands on no line that asserts and runs in make test")
		}
		waiting = nil
	}
	if len(waiting) > 0 {
		s.complain(name, first, waiting, "the label stands above nothing")
	}
	return nil
}

// executed reports whether make test runs the file: a C program is named by
// the tests of its directory, a script by one that is run.
func (s *scanner) executed(name string) bool {
	base := path.Base(name)
	switch path.Dir(name) {
	case "tests/cabi/programs":
		tests, _ := fs.Glob(s.fsys, "tests/cabi/*_test.go")
		return slices.ContainsFunc(tests, func(test string) bool { return s.contains(test, `"`+base+`"`) })
	case "tools/ci":
		return slices.Contains(s.scripts("test.sh", nil), base)
	}
	return true
}

func (s *scanner) contains(name, part string) bool {
	text, err := fs.ReadFile(s.fsys, name)
	return err == nil && strings.Contains(string(text), part)
}

var scriptPattern = regexp.MustCompile(`tools/ci/([\w]+\.(?:sh|py))`)

// scripts lists the scripts that one runs, itself first.
func (s *scanner) scripts(name string, seen []string) []string {
	if slices.Contains(seen, name) {
		return seen
	}
	seen = append(seen, name)
	text, _ := fs.ReadFile(s.fsys, "tools/ci/"+name)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, m := range scriptPattern.FindAllStringSubmatch(line, -1) {
			seen = s.scripts(m[1], seen)
		}
	}
	return seen
}

// world is one way in which make test runs Go tests.
type world struct {
	script, line string   // the script has the line, or the world is not
	dirs         []string // patterns of directories; nil: the list "packages" of the script
	system, arch string
	tags         []string
	test         string // the only one that is run; empty: all
}

var worlds = []world{
	{script: "race.sh", line: `gotest -race -tags invariants`, dirs: []string{"..."}, system: "linux", arch: "amd64", tags: []string{"race", "invariants"}},
	{
		script: "speed.sh", line: `./internal/guard ./internal/link ./internal/collective ./internal/message ./internal/reduce ./internal/tlsconn ./internal/transport/... ./internal/wire "${compute[@]}"`,
		dirs: []string{
			"internal/guard", "internal/link", "internal/collective", "internal/message", "internal/reduce", "internal/tlsconn", "internal/transport/...", "internal/wire",
			"internal/master/fsm/...", "internal/message/fsm", "internal/peer/fsm/...", "internal/pace/...", "internal/plan/...", "internal/quorum/...", "tests/sim/...",
			"backends/...", "quantizers/...", "internal/cuda/...", "core/backend/...", "core/digest/...", "core/quant/...",
		},
		system: "linux", arch: "amd64", tags: []string{"invariants"},
	},
	{
		script: "wan.sh", line: `-tags wan -timeout 240s -run 'TestInAContainersNetwork$' ./tests/internal/netns`,
		dirs: []string{"tests/internal/netns"}, system: "linux", arch: "amd64", tags: []string{"wan"}, test: "TestInAContainersNetwork",
	},
	{
		script: "wan.sh", line: `-tags wan -timeout 240s -run 'TestChurnOverAWideArea$' ./tests/churn`,
		dirs: []string{"tests/churn"}, system: "linux", arch: "amd64", tags: []string{"wan"}, test: "TestChurnOverAWideArea",
	},
	{script: "windows.sh", line: `GOOS=windows GOARCH=amd64 go test -c`, system: "windows", arch: "amd64"},
	{script: "arm64.sh", line: `GOOS=linux GOARCH=arm64 go test -c -tags nocuda`, system: "linux", arch: "arm64", tags: []string{"nocuda"}},
}

var packagesPattern = regexp.MustCompile(`(?s)packages=\((.*?)\)`)

// runs reports whether make test runs the test of the Go test file.
func (s *scanner) runs(name, test string) bool {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	reached := s.scripts("test.sh", nil)
	return slices.ContainsFunc(worlds, func(w world) bool {
		script := "tools/ci/" + w.script
		if w.test != "" && w.test != test {
			return false
		}
		if !slices.Contains(reached, w.script) || !s.contains(script, w.line) {
			return false
		}
		patterns := w.dirs
		if patterns == nil {
			text, _ := fs.ReadFile(s.fsys, script)
			if m := packagesPattern.FindSubmatch(text); m != nil {
				patterns = strings.Fields(strings.ReplaceAll(string(m[1]), "./", ""))
			}
		}
		if !slices.ContainsFunc(patterns, func(p string) bool { return below(dir, p) }) {
			return false
		}
		c := build.Default
		c.GOOS, c.GOARCH, c.BuildTags, c.CgoEnabled = w.system, w.arch, w.tags, w.arch == "amd64" && w.system == "linux"
		c.OpenFile = func(name string) (io.ReadCloser, error) { return s.fsys.Open(name) }
		c.JoinPath = path.Join
		ok, err := c.MatchFile(dir, base)
		return err == nil && ok
	})
}

// below reports whether the directory is one of the pattern, as Go's tool has them.
func below(dir, pattern string) bool {
	if pattern == "..." {
		return !strings.HasPrefix(dir, "tools") // a module of its own
	}
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return dir == base || strings.HasPrefix(dir, base+"/")
	}
	return dir == pattern
}
