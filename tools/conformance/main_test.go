package main

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestRowsAreComplete(t *testing.T) {
	rows, err := parseRows(rowsFile)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range rows {
		count[r.id[:2]]++
	}
	if want := map[string]int{"S0": 25, "S1": 37, "S2": 59, "S3": 21, "S4": 34}; !reflect.DeepEqual(count, want) {
		t.Fatalf("rows per document: %v, want %v", count, want)
	}
	if _, err := parseStates(statesFile); err != nil {
		t.Fatal(err)
	}
}

// What this table takes for runs of make test is what the scripts do.
func TestWorldsAreThoseOfTheScripts(t *testing.T) {
	s := scanner{fsys: os.DirFS("../..")}
	reached := s.scripts("test.sh", nil)
	for _, w := range worlds {
		if !slices.Contains(reached, w.script) || !s.contains("tools/ci/"+w.script, w.line) {
			t.Errorf("make test does not run %q of %s", w.line, w.script)
		}
	}
}

// id makes a label that a scan of this file does not take for one.
func id(n string) string { return "S1" + "-" + n }

// repository is one with the scripts that the tool knows, and the given files.
func repository(files map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	all := ""
	for _, w := range worlds {
		name := "tools/ci/" + w.script
		if fsys[name] == nil {
			fsys[name] = &fstest.MapFile{}
			all += "tools/ci/" + w.script + "\n"
		}
		fsys[name].Data = append(fsys[name].Data, w.line+"\npackages=(./core/w/...)\n"...)
	}
	if fsys["tools/ci/test.sh"] == nil {
		fsys["tools/ci/test.sh"] = &fstest.MapFile{Data: []byte(all + files["test.sh"])}
	}
	return fsys
}

// body makes a test file with a function; X is the label, as a comment.
func body(function string) string {
	return "package x\n\nimport (\n\t\"testing\"\n\t\"github.com/stretchr/testify/require\"\n)\n\n" +
		strings.ReplaceAll(function, "X", "// "+id("29")) + "\n"
}

func TestLabelsThatCount(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"on the line":       {"core/x/x_test.go", "func TestA(t *testing.T) {\n\trequire.True(t, true) X\n}", "TestA"},
		"above":             {"core/x/x_test.go", "func TestA(t *testing.T) {\n\tX: why\n\trequire.True(t, true)\n}", "TestA"},
		"an if that fails":  {"core/x/x_test.go", "func TestA(t *testing.T) {\n\tif 1 > 2 { X\n\t\tt.Fatal(1)\n\t}\n}", "TestA"},
		"a failure":         {"core/x/x_test.go", "func TestA(t *testing.T) {\n\tif 1 > 2 {\n\t\tt.Errorf(\"no\") X\n\t}\n}", "TestA"},
		"a helper":          {"core/x/x_test.go", "func holds(t *testing.T) { require.True(t, true) }\nfunc TestA(t *testing.T) {\n\tholds(t) X\n}", "TestA"},
		"in a helper":       {"core/x/x_test.go", "func holds(t *testing.T) {\n\trequire.True(t, true) X\n}\nfunc TestA(t *testing.T) { holds(t) }", "TestA"},
		"a closure":         {"core/x/x_test.go", "func TestA(t *testing.T) {\n\tc := func() { require.True(t, true) }\n\tc() X\n}", "TestA"},
		"a method":          {"core/x/x_test.go", "type w struct{ t *testing.T }\nfunc (w w) is() { require.True(w.t, true) }\nfunc TestA(t *testing.T) {\n\tw{t}.is() X\n}", "TestA"},
		"in a subtest":      {"core/x/x_test.go", "func TestA(t *testing.T) {\n\tt.Run(\"\", func(t *testing.T) {\n\t\trequire.True(t, true) X\n\t})\n}", "TestA"},
		"a fuzz test":       {"core/x/x_test.go", "func FuzzA(f *testing.F) {\n\trequire.True(f, true) X\n}", "FuzzA"},
		"under Wine":        {"core/w/x_windows_test.go", "func TestA(t *testing.T) {\n\trequire.True(t, true) X\n}", "TestA"},
		"several, as lists": {"core/x/x_test.go", "func TestA(t *testing.T) {\n\trequire.True(t, true) X, " + id("30") + "\n}", "TestA"},
	} {
		t.Run(name, func(t *testing.T) {
			found, problems := scan(repository(map[string]string{c.file: body(c.text)}))
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			if got := references(found[id("29")]); !strings.HasSuffix(got, " "+c.want) {
				t.Fatalf("found %q, want %s", got, c.want)
			}
		})
	}
}

func TestLabelsThatDoNotCount(t *testing.T) {
	for name, c := range map[string]struct{ file, text, why string }{
		"a benchmark":      {"core/x/x_test.go", "func BenchmarkA(b *testing.B) {\n\trequire.True(b, true) X\n}", "benchmark"},
		"a whole function": {"core/x/x_test.go", "X\nfunc TestA(t *testing.T) {\n\trequire.True(t, true)\n}", "no assertion"},
		"a tag":            {"core/x/x_test.go", "func TestA(t *testing.T) {\n\trequire.True(t, true) X\n}", "does not run"},
		"another system":   {"core/x/x_darwin_test.go", "func TestA(t *testing.T) {\n\trequire.True(t, true) X\n}", "does not run"},
		"Windows, no list": {"core/x/x_windows_test.go", "func TestA(t *testing.T) {\n\trequire.True(t, true) X\n}", "does not run"},
		"no assertion":     {"core/x/x_test.go", "func TestA(t *testing.T) {\n\tt.Log(1) X\n}", "no assertion"},
		"no test at all":   {"core/x/x_test.go", "func holds(t *testing.T) {\n\trequire.True(t, true) X\n}", "no test"},
		"outside":          {"core/x/x_test.go", "var x = 1 X", "outside a test"},
		"a skipped test":   {"core/x/x_test.go", "func TestA(t *testing.T) {\n\tt.Skip()\n\trequire.True(t, true) X\n}", "skipped"},
		"above a block":    {"core/x/x_test.go", "func TestA(t *testing.T) {\n\tX\n\tfor range 3 {\n\t\trequire.True(t, true)\n\t}\n}", "no assertion"},
		"testify's New":    {"core/x/x_test.go", "func TestA(t *testing.T) {\n\trequire.New(t) X\n}", "no assertion"},
	} {
		t.Run(name, func(t *testing.T) {
			text := body(c.text)
			if name == "a tag" {
				text = "//go:build wan\n\n" + text
			}
			found, problems := scan(repository(map[string]string{c.file: text}))
			if len(found) > 0 {
				t.Errorf("found %v", found)
			}
			if all := strings.Join(problems, "\n"); !strings.Contains(all, c.why) || !strings.Contains(all, id("29")) {
				t.Errorf("problems: %q, want %q", all, c.why)
			}
		})
	}
}

// Where make test runs one test of a package, the others prove nothing.
func TestOneTestOfAPackage(t *testing.T) {
	text := "//go:build wan\n\n" + body("func TestInAContainersNetwork(t *testing.T) {\n\trequire.True(t, true) X\n}\nfunc TestB(t *testing.T) {\n\trequire.True(t, true) // "+id("30")+"\n}")
	found, problems := scan(repository(map[string]string{"tests/internal/netns/x_test.go": text}))
	if len(found) != 1 || len(found[id("29")]) != 1 || len(problems) != 1 || !strings.Contains(problems[0], "does not run") {
		t.Fatalf("%v, %q", found, problems)
	}
}

func TestOtherLanguages(t *testing.T) {
	x, fail := id("29"), " || fail \"no\""
	files := map[string]string{
		"bindings/python/tests/test_a.py": "def test_sum():\n    # " + x + "\n    assert 1 == 1\n\ndef helper():\n    pass  # " + id("30") + "\n",
		"tests/cabi/programs/user.c":      "static void sum(int a) {\n    EXPECT(1, a); /* " + x + " */\n}\n",
		"tests/cabi/programs/other.c":     "int main(void) {\n    EXPECT(1, 1); /* " + id("31") + " */\n}\n",
		"tests/cabi/cabi_test.go":         "package cabi\n\nvar programs = []string{\"user.c\"}\n",
		"tools/ci/test.sh":                "tools/ci/race.sh\ntools/ci/speed.sh\ntools/ci/windows.sh\ntools/ci/arm64.sh\ntools/ci/run.sh\n# tools/ci/unused.sh\n",
		"tools/ci/run.sh":                 "go vet" + fail + " # " + x + "\n",
		"tools/ci/unused.sh":              "go vet" + fail + " # " + id("32") + "\n",
	}
	found, problems := scan(repository(files))
	want := "`bindings/python/tests` test_a.py test_sum, `tests/cabi/programs` user.c sum, `tools/ci` run.sh"
	if got := references(found[x]); got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if len(found) != 1 || len(problems) != 3 {
		t.Errorf("found %v, problems %q; want three of these", found, problems)
	}
}

const someStates = `
[command.bench]
run = "true"
seconds = 1

[row.S1-30]
state = "measured"
figures = [{name = "latency", of = "bench", where = {benchmark = "Post", n = 2}, field = "ns/op", scale = 0.001, unit = "us", atmost = 1.5}]

[row.S1-31]
state = "left out"
because = "Nobody needs it."

[row.S1-33]
state = "test"
because = "On Linux."
`

func TestSettle(t *testing.T) {
	s, err := parseStates(someStates)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]mention{"S1-29": {{"core/x", "TestA"}}, "S1-33": {{"core/x", "TestB"}}}
	rows := []row{{"S1-29", "a|b"}, {"S1-30", "c"}, {"S1-31", "d"}, {"S1-33", "e"}}
	figures := published{"S1-30": {{Name: "latency", Value: 1.2, Unit: "us"}}}
	table, problems := settle(rows, s, found, figures)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	text := string(render(table))
	for _, line := range []string{
		"| S1-29 | a\\|b | test | `core/x` TestA |", "| S1-30 | c | measured | latency: 1.20 us (at most 1.50). By `true`. |",
		"| S1-31 | d | left out | Nobody needs it. |", "| S1-33 | e | test | `core/x` TestB. On Linux. |",
		"4 rows: 2 tested, 1 measured, 1 left out, 0 open.",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("missing %q in\n%s", line, text)
		}
	}
	if got, err := countsInto([]byte("We have 1 rows: 2 tested, 3 measured, 4 left out, 5 open!"), counts(table)); err != nil || string(got) != "We have 4 rows: 2 tested, 1 measured, 1 left out, 0 open!" {
		t.Errorf("%s, %v", got, err)
	}

	for name, c := range map[string]struct {
		found   map[string][]mention
		figures published
		want    string
	}{
		"nothing":      {map[string][]mention{"S1-33": found["S1-33"]}, figures, "S1-29 has no test"},
		"unknown row":  {map[string][]mention{"S1-33": found["S1-33"], "S1-29": found["S1-29"], "S1-39": found["S1-29"]}, figures, "S1-39"},
		"not measured": {found, nil, "has not been measured"},
		"missed":       {found, published{"S1-30": {{Name: "latency", Value: 1.6}}}, "the bar is at most 1.50"},
		"only words":   {map[string][]mention{"S1-29": found["S1-29"]}, figures, "a remark and no test"},
	} {
		if _, problems := settle(rows, s, c.found, c.figures); len(problems) != 1 || !strings.Contains(problems[0], c.want) {
			t.Errorf("%s: problems %q, want %q", name, problems, c.want)
		}
	}
}

func TestStatesAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"[row.S1-30]\nstate = \"done\"":                                    "want test, measured",
		"[row.S1-30]\nstate = \"open\"":                                    "does not say why",
		"[row.S1-30]\nstate = \"measured\"":                                "no figure",
		"[row.S1-30]\nstate = \"open\"\nbecause = \"x\"\nwhy = 3":          "no such key",
		strings.Replace(someStates, ", atmost = 1.5", "", 1):               "one bar",
		strings.Replace(someStates, "of = \"bench\"", "of = \"bank\"", 1):  "a command",
		strings.Replace(someStates, "run = \"true\"", "needs = \"\"", 1):   "run and seconds",
		strings.Replace(someStates, "[row.S1-31]", "[row.S1]", 1):          "no id",
		"[row.S1-30]\nstate = \"open\"\nbecause = \"x\"\n[row.S1-30]\nx=1": "states.toml",
	} {
		if _, err := parseStates(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, want %q", text, err, want)
		}
	}
}

func TestFigures(t *testing.T) {
	const text = "goos: linux\nBenchmarkPost/n-2-2   \t 100\t 1200 ns/op\t 3.5 p99-us\nsome text\n{\"a\": 1, \"b\": \"x\", \"c\": 4}\n{\"a\": 2, \"b\": \"x\", \"c\": 8, \"d\": {\"e\": 3}}\n"
	all := measured{readObjects([]byte(text)), text}
	four, half := 4.0, 0.5
	for _, c := range []struct {
		f    figure
		want float64
		met  bool
	}{
		{figure{Where: map[string]any{"benchmark": "Post/n-2"}, Field: "p99-us", AtMost: &four}, 3.5, true},
		{figure{Where: map[string]any{"benchmark": "Post/n-2"}, Field: "ns/op", Scale: 0.001, AtLeast: &four}, 1.2, false},
		{figure{Where: map[string]any{"b": "x"}, Field: "c", AtLeast: &four}, 8, true},
		{figure{Where: map[string]any{"a": int64(1)}, Field: "c", ByWhere: map[string]any{"a": 2}, AtMost: &half}, 0.5, true},
		{figure{Where: map[string]any{"a": int64(1)}, Field: "c", By: "a", AtMost: &half}, 4, false},
		{figure{Field: "d.e", AtMost: &four}, 3, true},
		{figure{Match: `(?m)^Bench.* ([0-9.]+) p99`, AtMost: &four}, 3.5, true},
	} {
		v, err := c.f.value(all)
		if err != nil || v != c.want || c.f.met(v) != c.met {
			t.Errorf("%+v: %v, %v", c.f, v, err)
		}
	}
	for _, f := range []figure{{Where: map[string]any{"a": 3}, Field: "c"}, {Field: "d.f"}, {Field: "b.c"}, {Match: "no (1)"}} {
		if _, err := f.value(all); err == nil {
			t.Errorf("%+v: a figure that nobody printed", f)
		}
	}
	if all := readObjects([]byte("{\"results\": [{\"world\": 2, \"median\": 0.5}], \"go\": \"x\"}")); len(all) != 2 || all[0]["median"] != 0.5 {
		t.Errorf("%v", all)
	}
}

// A measurement runs the command once, publishes what it says and tells what
// missed its bar; a command that fails leaves the old figures.
func TestMeasure(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(root+"/docs", 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(command, only string) (published, error) {
		s, err := parseStates(strings.Replace(someStates, `run = "true"`, `run = '''`+command+`'''`, 1))
		if err != nil {
			t.Fatal(err)
		}
		missed, err := measure(root, s, only)
		if err != nil {
			t.Fatal(err)
		}
		figures, err := readFigures(root + "/docs/measured.json")
		if err != nil {
			t.Fatal(err)
		}
		return figures, missed
	}
	print := func(ns string) string { return `echo '{"benchmark": "Post", "n": 2, "ns/op": ` + ns + `}'` }
	if p, err := run(print("1200"), "bench"); err != nil || p["S1-30"][0].Value != 1.2 || p["S1-30"][0].On == "" {
		t.Errorf("%v, %v", p, err)
	}
	if p, err := run(print("2000"), "S1-30"); err == nil || !strings.Contains(err.Error(), "the bar is") || len(p["S1-30"]) != 1 || p["S1-30"][0].Value != 2 {
		t.Errorf("%v, %v", p, err)
	}
	for _, command := range []string{"false", "true", print("1200") + `; echo no >"$MEASURED"`} {
		if p, err := run(command, ""); err == nil || p["S1-30"][0].Value != 2 {
			t.Errorf("%s: %v, %v", command, p, err)
		}
	}
	if p, err := run("false", "other"); err != nil || len(p) != 1 {
		t.Errorf("%v, %v", p, err)
	}
}
