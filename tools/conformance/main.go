// Command conformance writes docs/conformance.md: every row of the checklist
// (rows.tsv) with its state and what shows it.
//
//	go run -C tools ./conformance          # write the document
//	go run -C tools ./conformance -check   # fail if it is stale, or a claim does not hold
//	go run -C tools ./conformance -measure # run the commands of measured rows, check their bars, publish the figures
//
// A row is in one of four states. Test: an assertion that runs in `make test`
// has the row's id in a comment on its line, or directly above it. Measured: a
// command prints a figure that is held against a bar (states.toml). Left out,
// or open, because of what states.toml says.
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed rows.tsv
var rowsFile string

//go:embed states.toml
var statesFile string

// figuresFile holds the figures of the last measurement, below the root.
var figuresFile = filepath.Join("docs", "measured.json")

func main() {
	root := flag.String("root", "..", "repository root, relative to the tools directory")
	check := flag.Bool("check", false, "compare instead of writing")
	measuring := flag.Bool("measure", false, "run the commands of measured rows first")
	only := flag.String("only", "", "with -measure: the commands or rows that match this expression")
	flag.Parse()
	if err := run(*root, *check, *measuring, *only); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(root string, check, measuring bool, only string) error {
	rows, err := parseRows(rowsFile)
	if err != nil {
		return err
	}
	states, err := parseStates(statesFile)
	if err != nil {
		return err
	}
	var missed error
	if measuring {
		if missed, err = measure(root, states, only); err != nil {
			return err
		}
	}
	figures, err := readFigures(filepath.Join(root, figuresFile))
	if err != nil {
		return err
	}
	found, problems := scan(os.DirFS(root))
	table, more := settle(rows, states, found, figures)
	if problems = append(problems, more...); len(problems) > 0 {
		if measuring && only != "" { // the rest is for the others
			fmt.Printf("conformance: %d things are not as they should be; run it without -measure\n", len(problems))
			return missed
		}
		return errors.New(strings.Join(problems, "\n"))
	}
	if err := publish(root, check, table); err != nil {
		return err
	}
	fmt.Printf("conformance: %s\n", counts(table))
	return missed
}

// publish writes the document and the line of the README, or compares them.
func publish(root string, check bool, table []line) error {
	for name, text := range map[string]func(old []byte) ([]byte, error){
		filepath.Join("docs", "conformance.md"): func([]byte) ([]byte, error) { return render(table), nil },
		"README.md":                             func(old []byte) ([]byte, error) { return countsInto(old, counts(table)) },
	} {
		old, err := os.ReadFile(filepath.Join(root, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		want, err := text(old)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if bytes.Equal(old, want) {
			continue
		}
		if check {
			return fmt.Errorf("%s is stale; run `make conformance` and commit the result", name)
		}
		if err := os.WriteFile(filepath.Join(root, name), want, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// row is one line of the checklist.
type row struct{ id, what string }

// parseRows reads "id<tab>what" lines below a header line.
func parseRows(file string) (rows []row, err error) {
	lines := strings.Split(strings.TrimSpace(file), "\n")
	for _, line := range lines[1:] {
		id, what, ok := strings.Cut(line, "\t")
		if !ok || !idPattern.MatchString(id) {
			return nil, fmt.Errorf("rows.tsv: bad line %q", line)
		}
		rows = append(rows, row{id, what})
	}
	return rows, nil
}

var idPattern = regexp.MustCompile(`\bS[0-4]-\d\d\b`)
