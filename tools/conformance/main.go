// Command conformance writes docs/conformance.md: every row of the checklist
// (rows.tsv) with the tests that name its id in a comment, or "open".
//
//	go run -C tools ./conformance          # write the document
//	go run -C tools ./conformance -check   # fail if it is stale
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:embed rows.tsv
var rowsFile string

func main() {
	root := flag.String("root", "..", "repository root, relative to the tools directory")
	check := flag.Bool("check", false, "compare instead of writing")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	rows, err := parseRows(rowsFile)
	if err != nil {
		return err
	}
	found, err := scan(os.DirFS(root))
	if err != nil {
		return err
	}
	text, open, err := render(rows, found)
	if err != nil {
		return err
	}
	name := filepath.Join(root, "docs", "conformance.md")
	old, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if bytes.Equal(old, text) {
		fmt.Printf("conformance: %d rows, %d covered, %d open\n", len(rows), len(rows)-open, open)
		return nil
	}
	if check {
		return errors.New("docs/conformance.md is stale; run `make conformance` and commit the result")
	}
	fmt.Printf("conformance: wrote docs/conformance.md: %d rows, %d covered, %d open\n", len(rows), len(rows)-open, open)
	return os.WriteFile(name, text, 0o644)
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
		rows = append(rows, row{id, strings.ReplaceAll(what, "|", `\|`)})
	}
	return rows, nil
}

var idPattern = regexp.MustCompile(`\bS[0-4]-\d\d\b`)

// mention is a test that names an id.
type mention struct {
	dir, name string // name is a function, or a file if the comment stands in none
}

func (m mention) String() string { return "`" + m.dir + "` " + m.name }

// scan finds the ids in the comments of all Go test files below fsys.
func scan(fsys fs.FS) (map[string][]mention, error) {
	found := map[string][]mention{}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata") || name == "tools" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, "_test.go") {
			return nil
		}
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		return scanFile(name, src, found)
	})
	return found, err
}

// scanFile adds the ids of one file. A comment belongs to the function whose
// documentation it is, or inside which it stands.
func scanFile(name string, src []byte, found map[string][]mention) error {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, group := range file.Comments {
		m := mention{path.Dir(name), path.Base(name)}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			start := f.Pos()
			if f.Doc != nil {
				start = f.Doc.Pos()
			}
			if start <= group.Pos() && group.End() <= f.End() {
				m.name = f.Name.Name
			}
		}
		for _, c := range group.List {
			for _, id := range idPattern.FindAllString(c.Text, -1) {
				if !slices.Contains(found[id], m) {
					found[id] = append(found[id], m)
				}
			}
		}
	}
	return nil
}

var documents = map[string]string{
	"S0": "Chapter notes on PCCL's internals", "S1": "Implementation documents of PCCL", "S2": "Technical report",
	"S3": "TCCL article", "S4": "RCCL proxy threading model",
}

// render makes the document and counts the open rows. An id that no row has
// is an error: a slip of the pen in a test.
func render(rows []row, found map[string][]mention) (text []byte, open int, err error) {
	known := map[string]bool{}
	for _, r := range rows {
		known[r.id] = true
		if len(found[r.id]) == 0 {
			open++
		}
	}
	for id, m := range found {
		if !known[id] {
			return nil, 0, fmt.Errorf("%s of %v is no row of the checklist", id, m[0])
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Conformance\n\nWhat the documents about PCCL and its relatives name, row by row, with the tests that show it here. Made by `make conformance` from the ids in comments of the tests; not edited by hand.\n\n%d rows, %d covered, %d open.\n", len(rows), len(rows)-open, open)
	document := ""
	for _, r := range rows {
		if d := r.id[:2]; d != document {
			document = d
			fmt.Fprintf(&b, "\n## %s %s\n\n| Id | What | Tests |\n|---|---|---|\n", d, documents[d])
		}
		tests := "open"
		if list := found[r.id]; len(list) > 0 {
			slices.SortFunc(list, func(a, b mention) int { return strings.Compare(a.String(), b.String()) })
			var names []string
			for _, m := range list {
				names = append(names, m.String())
			}
			tests = strings.Join(names, ", ")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.id, r.what, tests)
	}
	return b.Bytes(), open, nil
}
