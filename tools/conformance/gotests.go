package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/gopccl/gopccl/"

// goFile is a parsed file of Go.
type goFile struct {
	name    string
	set     *token.FileSet
	file    *ast.File
	src     []byte
	imports map[string]string // local name to import path
}

// goFiles finds the labels of the Go tests. First it learns which functions of
// the repository assert, since a call of one of those is an assertion.
func (s *scanner) goFiles(packages map[string][]string) {
	all := map[string][]*goFile{}
	for dir, names := range packages {
		for _, name := range names {
			f, err := s.parse(name)
			if err != nil {
				s.problems = append(s.problems, err.Error())
				continue
			}
			all[dir] = append(all[dir], f)
		}
	}
	know := helpers(all)
	for dir, files := range all {
		for _, f := range files {
			if strings.HasSuffix(f.name, "_test.go") {
				s.goTests(dir, f, files, know)
			}
		}
	}
	slices.Sort(s.problems)
}

func (s *scanner) parse(name string) (*goFile, error) {
	src, err := fs.ReadFile(s.fsys, name)
	if err != nil {
		return nil, err
	}
	f := &goFile{name: name, set: token.NewFileSet(), src: src, imports: map[string]string{}}
	if f.file, err = parser.ParseFile(f.set, name, src, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	for _, i := range f.file.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		local := path.Base(p)
		if i.Name != nil {
			local = i.Name.Name
		}
		f.imports[local] = p
	}
	return f, nil
}

// knowledge has the functions and methods that assert, by directory.
type knowledge map[string]map[string]bool

// helpers finds the functions that take a test and assert, or call what does.
func helpers(all map[string][]*goFile) knowledge {
	know := knowledge{}
	for dir := range all {
		know[dir] = map[string]bool{}
	}
	for changed := true; changed; {
		changed = false
		for dir, files := range all {
			for _, f := range files {
				for _, decl := range f.file.Decls {
					fn, ok := decl.(*ast.FuncDecl)
					if !ok || fn.Body == nil || know[dir][fn.Name.Name] || !takesTest(fn) && fn.Recv == nil {
						continue
					}
					a := asserter{f, dir, know, closures(f, dir, know, fn)}
					if a.within(fn.Body) {
						know[dir][fn.Name.Name] = true
						changed = true
					}
				}
			}
		}
	}
	return know
}

// takesTest reports whether a parameter is a test of some kind.
func takesTest(fn *ast.FuncDecl) bool {
	for _, p := range fn.Type.Params.List {
		typ := p.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if sel, ok := typ.(*ast.SelectorExpr); ok && slices.Contains([]string{"T", "TB", "F", "TestingT"}, sel.Sel.Name) {
			return true
		}
	}
	return false
}

// closures are the variables of a function that hold a function that asserts,
// or testify's assertions for a test.
func closures(f *goFile, dir string, know knowledge, fn *ast.FuncDecl) map[string]bool {
	local := map[string]bool{}
	for changed := true; changed; {
		changed = false
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			var names, values []ast.Expr
			switch n := n.(type) {
			case *ast.AssignStmt:
				names, values = n.Lhs, n.Rhs
			case *ast.ValueSpec:
				for _, id := range n.Names {
					names = append(names, id)
				}
				values = n.Values
			}
			if len(names) != len(values) {
				return true
			}
			for i, name := range names {
				id, ok := name.(*ast.Ident)
				if !ok || local[id.Name] {
					continue
				}
				a := asserter{f, dir, know, local}
				lit, isFunc := values[i].(*ast.FuncLit)
				call, isCall := values[i].(*ast.CallExpr)
				if isFunc && a.within(lit.Body) || isCall && a.testify(call, "New") {
					local[id.Name] = true
					changed = true
				}
			}
			return true
		})
	}
	return local
}

// asserter tells assertions from other calls, inside one function.
type asserter struct {
	f     *goFile
	dir   string
	know  knowledge
	local map[string]bool
}

// within reports whether a node holds an assertion.
func (a asserter) within(n ast.Node) (yes bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && a.call(call) {
			yes = true
		}
		return !yes
	})
	return yes
}

// testify reports whether the call is one of a function of require or assert;
// name is that function, empty for any that asserts.
func (a asserter) testify(call *ast.CallExpr, name string) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	if !ok || !strings.HasPrefix(a.f.imports[id.Name], "github.com/stretchr/testify/") {
		return false
	}
	return sel.Sel.Name == name || name == "" && sel.Sel.Name != "New"
}

var failures = []string{"Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow"}

// call reports whether the call asserts.
func (a asserter) call(call *ast.CallExpr) bool {
	fun := call.Fun
	if index, ok := fun.(*ast.IndexExpr); ok { // a type argument
		fun = index.X
	}
	if id, ok := fun.(*ast.Ident); ok {
		return a.local[id.Name] || a.know[a.dir][id.Name]
	}
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if a.testify(call, "") {
		return true
	}
	id, ok := sel.X.(*ast.Ident)
	if ok && a.local[id.Name] {
		return true // require.New
	}
	if ok {
		if imported, isPackage := a.f.imports[id.Name]; isPackage {
			dir, own := strings.CutPrefix(imported, module)
			return own && a.know[dir][sel.Sel.Name]
		}
		if slices.Contains(failures, sel.Sel.Name) && (len(id.Name) <= 2 || id.Name == "test") {
			return true // t, tb, rt
		}
	}
	// A method of the package, or of a suite that it imports.
	if a.know[a.dir][sel.Sel.Name] {
		return true
	}
	for _, imported := range a.f.imports {
		if dir, own := strings.CutPrefix(imported, module); own && strings.HasSuffix(dir, "test") && a.know[dir][sel.Sel.Name] {
			return true
		}
	}
	return false
}

// goTests finds the labels of one test file.
func (s *scanner) goTests(dir string, f *goFile, files []*goFile, know knowledge) {
	for _, group := range f.file.Comments {
		ids := idPattern.FindAllString(commentText(group), -1)
		if len(ids) == 0 {
			continue
		}
		at := f.set.Position(group.Pos()).Line
		fn := enclosing(f, group)
		switch {
		case fn == nil:
			s.complain(f.name, at, ids, "the label stands outside a test, on no assertion")
		case strings.HasPrefix(fn.Name.Name, "Benchmark"):
			s.complain(f.name, at, ids, "the label stands in a benchmark, which make test does not run")
		case !s.runs(f.name, reachedFrom(fn.Name.Name, files)):
			s.complain(f.name, at, ids, "make test does not run the tests of this file")
		default:
			test := reachedFrom(fn.Name.Name, files)
			a := asserter{f, dir, know, closures(f, dir, know, fn)}
			switch {
			case test == "":
				s.complain(f.name, at, ids, "the label stands in no test, nor in what a test calls")
			case skipsBefore(fn, group.Pos()):
				s.complain(f.name, at, ids, "the test may have been skipped before")
			case !a.on(fn, f.target(group)):
				s.complain(f.name, at, ids, "the label stands on no assertion, nor directly above one")
			default:
				s.add(dir, test, ids)
			}
		}
	}
}

func commentText(group *ast.CommentGroup) string {
	var b strings.Builder
	for _, c := range group.List {
		b.WriteString(c.Text + "\n")
	}
	return b.String()
}

// enclosing is the function inside which a comment stands, or whose
// documentation it is.
func enclosing(f *goFile, group *ast.CommentGroup) *ast.FuncDecl {
	for _, decl := range f.file.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok {
			start := fn.Pos()
			if fn.Doc != nil {
				start = fn.Doc.Pos()
			}
			if start <= group.Pos() && group.End() <= fn.End() {
				return fn
			}
		}
	}
	return nil
}

// target is the line that a comment belongs to: its own if code precedes it,
// else the next.
func (f *goFile) target(group *ast.CommentGroup) int {
	start := f.set.Position(group.Pos())
	lines := strings.Split(string(f.src), "\n")
	if strings.TrimSpace(lines[start.Line-1][:start.Column-1]) != "" {
		return start.Line
	}
	return f.set.Position(group.End()).Line + 1
}

// on reports whether an assertion begins on the line: a call, or an if whose
// branch fails the test.
func (a asserter) on(fn *ast.FuncDecl, line int) (yes bool) {
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if n == nil || yes {
			return false
		}
		if a.f.set.Position(n.Pos()).Line != line {
			return true
		}
		switch n := n.(type) {
		case *ast.CallExpr:
			yes = a.call(n)
		case *ast.IfStmt:
			for _, stmt := range n.Body.List {
				if e, ok := stmt.(*ast.ExprStmt); ok {
					if call, ok := e.X.(*ast.CallExpr); ok && a.call(call) {
						yes = true
					}
				}
			}
		}
		return !yes
	})
	return yes
}

// skipsBefore reports whether a test can be skipped before the position.
func skipsBefore(fn *ast.FuncDecl, pos token.Pos) (yes bool) {
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || call.Pos() > pos {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
			yes = true
		}
		return true
	})
	return yes
}

// reachedFrom is the test from which a function of a package is reached: it
// itself, or the first by name that calls it, directly or not. Empty: none.
func reachedFrom(name string, files []*goFile) string {
	isTest := func(n string) bool {
		return strings.HasPrefix(n, "Test") && n != "TestMain" || strings.HasPrefix(n, "Fuzz")
	}
	callers := map[string][]string{}
	for _, f := range files {
		for _, decl := range f.file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil || !strings.HasSuffix(f.name, "_test.go") {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					callers[id.Name] = append(callers[id.Name], fn.Name.Name)
				}
				return true
			})
		}
	}
	seen, reached := map[string]bool{}, []string{}
	for next := []string{name}; len(next) > 0; next = next[1:] {
		n := next[0]
		if seen[n] {
			continue
		}
		seen[n] = true
		if isTest(n) {
			reached = append(reached, n)
			continue
		}
		next = append(next, callers[n]...)
	}
	if len(reached) == 0 {
		return ""
	}
	return slices.Min(reached)
}
