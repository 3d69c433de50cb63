// Command crossvet checks the packages of the current directory for systems and
// architectures other than this one: types of all files, tests included, and the
// analyzers of go vet that look at one package at a time.
//
//	crossvet [-tags LIST] [-packages PATTERNS] SYSTEM/ARCHITECTURE...
//
// go vet compiles the standard library and all modules for each of them first, which
// takes more than a minute per system where nothing is cached. Here they are read from
// source and only their declarations, within seconds. Analyzers that follow calls
// between packages (printf, lostcancel) are left to go vet on this system.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/passes/appends"
	"golang.org/x/tools/go/analysis/passes/asmdecl"
	"golang.org/x/tools/go/analysis/passes/assign"
	"golang.org/x/tools/go/analysis/passes/atomic"
	"golang.org/x/tools/go/analysis/passes/bools"
	"golang.org/x/tools/go/analysis/passes/buildtag"
	"golang.org/x/tools/go/analysis/passes/composite"
	"golang.org/x/tools/go/analysis/passes/copylock"
	"golang.org/x/tools/go/analysis/passes/defers"
	"golang.org/x/tools/go/analysis/passes/directive"
	"golang.org/x/tools/go/analysis/passes/errorsas"
	"golang.org/x/tools/go/analysis/passes/framepointer"
	"golang.org/x/tools/go/analysis/passes/ifaceassert"
	"golang.org/x/tools/go/analysis/passes/loopclosure"
	"golang.org/x/tools/go/analysis/passes/nilfunc"
	"golang.org/x/tools/go/analysis/passes/shift"
	"golang.org/x/tools/go/analysis/passes/sigchanyzer"
	"golang.org/x/tools/go/analysis/passes/stdmethods"
	"golang.org/x/tools/go/analysis/passes/stringintconv"
	"golang.org/x/tools/go/analysis/passes/structtag"
	"golang.org/x/tools/go/analysis/passes/testinggoroutine"
	"golang.org/x/tools/go/analysis/passes/tests"
	"golang.org/x/tools/go/analysis/passes/unmarshal"
	"golang.org/x/tools/go/analysis/passes/unreachable"
	"golang.org/x/tools/go/analysis/passes/unsafeptr"
	"golang.org/x/tools/go/packages"
)

var analyzers = []*analysis.Analyzer{
	appends.Analyzer, asmdecl.Analyzer, assign.Analyzer, atomic.Analyzer, bools.Analyzer, buildtag.Analyzer,
	composite.Analyzer, copylock.Analyzer, defers.Analyzer, directive.Analyzer, errorsas.Analyzer,
	framepointer.Analyzer, ifaceassert.Analyzer, loopclosure.Analyzer, nilfunc.Analyzer, shift.Analyzer,
	sigchanyzer.Analyzer, stdmethods.Analyzer, stringintconv.Analyzer, structtag.Analyzer,
	testinggoroutine.Analyzer, tests.Analyzer, unmarshal.Analyzer, unreachable.Analyzer, unsafeptr.Analyzer,
}

func main() {
	tags := flag.String("tags", "", "build tags, separated by commas")
	patterns := flag.String("packages", "./...", "which packages, separated by commas")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: crossvet [-tags LIST] [-packages PATTERNS] SYSTEM/ARCHITECTURE...")
		os.Exit(2)
	}
	failed := false
	for _, target := range flag.Args() {
		found, err := check(".", target, *tags, strings.Split(*patterns, ",")...)
		if err != nil {
			found = append(found, err.Error())
		}
		for _, f := range found {
			fmt.Fprintf(os.Stderr, "%s: %s\n", target, f)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// check returns what is wrong in packages of the module in dir as they are built for target.
func check(dir, target, tags string, patterns ...string) (found []string, err error) {
	system, arch, ok := strings.Cut(target, "/")
	if !ok {
		return nil, fmt.Errorf("%q is not SYSTEM/ARCHITECTURE, such as darwin/arm64", target)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	ours := func(file string) bool { return strings.HasPrefix(file, dir+string(filepath.Separator)) }
	cfg := &packages.Config{
		Mode: packages.LoadAllSyntax, Dir: dir, Tests: true, BuildFlags: []string{"-tags", tags},
		Env: append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0"),
		ParseFile: func(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
			if ours(name) {
				return parser.ParseFile(fset, name, src, parser.ParseComments)
			}
			f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
			if f != nil {
				strip(f)
			}
			return f, err
		},
	}
	list, err := packages.Load(cfg, patterns...)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{} // a package and its test variant report the same
	report := func(s string) {
		if !seen[s] {
			seen[s] = true
			found = append(found, s)
		}
	}
	// Without bodies imports are unused, which does not matter here.
	packages.Visit(list, nil, func(p *packages.Package) { p.IllTyped = false })
	var roots []*packages.Package
	for _, p := range list {
		if strings.HasSuffix(p.PkgPath, ".test") {
			continue
		}
		roots = append(roots, p)
		for _, e := range p.Errors {
			report(e.Error())
		}
	}
	if len(roots) == 0 {
		return nil, fmt.Errorf("no packages in %s", dir)
	}
	if len(found) > 0 {
		return found, nil
	}
	graph, err := checker.Analyze(analyzers, roots, nil)
	if err != nil {
		return nil, err
	}
	for act := range graph.All() {
		if !act.IsRoot {
			continue
		}
		if act.Err != nil {
			report(fmt.Sprintf("%s: %v", act, act.Err))
		}
		for _, d := range act.Diagnostics {
			report(fmt.Sprintf("%s: %s (%s)", act.Package.Fset.Position(d.Pos), d.Message, act.Analyzer.Name))
		}
	}
	return found, nil
}

// strip takes the bodies of functions, which say nothing to who imports the package.
func strip(f *ast.File) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			fn.Body = nil
		}
	}
}
