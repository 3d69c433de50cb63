// Command gotest runs go test, prints what go test prints, and says which tests
// were skipped and why, which go test keeps to itself where a package passes, and
// of packages that take long, which tests take most of that.
//
//	gotest [-skips FILE] ARGUMENTS OF GO TEST
//
// With -skips a line is added to FILE for each package with skipped tests. With
// CI=true in the environment a skipped test is a failure, unless its reason
// begins with "only on" (another system): what can be run there has to run.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	args, file := os.Args[1:], ""
	if len(args) > 1 && args[0] == "-skips" {
		file, args = args[1], args[2:]
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
	skipped := filter(out, os.Stdout)
	err = cmd.Wait()
	if file != "" && len(skipped) > 0 {
		err = appendLines(file, skipped, err)
	}
	for _, s := range skipped {
		fmt.Println("skipped:", s)
	}
	if err != nil {
		os.Exit(1)
	}
	missing := slices.ContainsFunc(skipped, func(s string) bool { return !strings.Contains(s, ": "+elsewhere) })
	if missing && os.Getenv("CI") == "true" {
		fmt.Println("gotest: CI=true, and tests were skipped")
		os.Exit(1)
	}
}

func appendLines(name string, lines []string, before error) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(f, strings.Join(lines, "\n")+"\n"); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return before
}

// elsewhere begins the reason of a test that has nothing to test on this
// system, which is not a failure anywhere.
const elsewhere = "only on "

// event is one of `go test -json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds, of what has ended
}

// unit is a test, or a package where it has no name.
type unit struct{ pkg, test string }

// filter prints results of packages and the output of what failed, and returns
// a line for every package with skipped tests.
func filter(in io.Reader, out io.Writer) (skipped []string) {
	output := map[unit][]string{}
	skips := map[string][]string{} // by package and reason
	ended := map[string][]event{}  // tests that have passed, by package
	var order []string
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(out, lines.Text()) // no event: said before the tests began
			continue
		}
		u := unit{e.Package, e.Test}
		switch e.Action {
		case "output":
			if e.Test == "" && (strings.HasPrefix(e.Output, "ok ") || strings.HasPrefix(e.Output, "FAIL\t")) {
				fmt.Fprint(out, e.Output)
				continue
			}
			output[u] = append(output[u], e.Output)
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "pass":
			if delete(output, u); e.Test == "" {
				fmt.Fprint(out, longest(e, ended[e.Package]))
			} else if !strings.Contains(e.Test, "/") {
				ended[e.Package] = append(ended[e.Package], e)
			}
		case "skip":
			if e.Test != "" {
				key := e.Package + ": " + reason(output[u])
				if !slices.Contains(order, key) {
					order = append(order, key)
				}
				skips[key] = append(skips[key], e.Test)
			}
			delete(output, u)
		case "fail":
			print(out, output, u)
		}
	}
	for _, key := range order {
		pkg, why, _ := strings.Cut(key, ": ")
		n := len(skips[key])
		word := "tests"
		if n == 1 {
			word = "test"
		}
		skipped = append(skipped, fmt.Sprintf("%s: %d %s, %s first: %s", strings.TrimPrefix(pkg, "github.com/gopccl/gopccl/"), n, word, skips[key][0], why))
	}
	return skipped
}

const (
	long = 60 // seconds
	most = 5
)

// longest names the tests that took most of a package's time, if that was long.
func longest(pkg event, tests []event) string {
	if pkg.Elapsed < long {
		return ""
	}
	slices.SortStableFunc(tests, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	var words []string
	for _, e := range tests[:min(len(tests), most)] {
		words = append(words, fmt.Sprintf("%s %.0f s", e.Test, e.Elapsed))
	}
	return "    longest: " + strings.Join(words, ", ") + "\n"
}

// print prints what a failed test said; of a package, what no test that passed
// has said, such as that of a process that ended in the middle.
func print(out io.Writer, output map[unit][]string, failed unit) {
	var units []unit
	for u := range output {
		if u == failed || failed.test == "" && u.pkg == failed.pkg {
			units = append(units, u)
		}
	}
	slices.SortFunc(units, func(a, b unit) int { return strings.Compare(a.test, b.test) })
	for _, u := range units {
		for _, line := range output[u] {
			if !strings.HasPrefix(line, "=== ") { // what -v would print
				fmt.Fprint(out, line)
			}
		}
		delete(output, u)
	}
}

// reason is what a test said before it was skipped, on one line.
func reason(output []string) string {
	var words []string
	for _, line := range output {
		line = strings.Trim(strings.TrimSpace(line), "*")
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- SKIP") {
			continue
		}
		// The place in the source, "name_test.go:12: ", tells nobody what to do.
		if _, rest, ok := strings.Cut(line, ".go:"); ok {
			_, line, _ = strings.Cut(rest, ":")
		}
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(words, line) {
			words = append(words, line)
		}
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}
