package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the record of the API (docs/api.txt)")

// exported is what `go list -export` says about a package.
type exported struct {
	ImportPath, Name, Export string
	GoFiles                  []string
	DepOnly                  bool
}

// promised reads the table of docs/compatibility.md: patterns of packages that
// others may import, and of those that they may only read.
func promised(t testing.TB) (public, read []string) {
	page := string(source(t, "docs/compatibility.md"))
	_, table, ok := strings.Cut(page, "\n| Packages |")
	require.True(t, ok, "docs/compatibility.md has a table of packages")
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) < 3 {
			continue
		}
		names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1)
		for _, m := range names {
			if strings.HasPrefix(strings.TrimSpace(cells[2]), "to be read") {
				read = append(read, m[1])
			} else {
				public = append(public, m[1])
			}
		}
		if strings.TrimSpace(row) == "" {
			break
		}
	}
	require.NotEmpty(t, public)
	require.NotEmpty(t, read)
	return public, read
}

// internalPath reports whether only this module can import a package of it.
func internalPath(name string) bool { return slices.Contains(strings.Split(name, "/"), "internal") }

// load type-checks nothing: it reads what the compiler exports of the public
// packages on linux/amd64.
func load(t testing.TB) (pkgs map[string]*types.Package) {
	public, read := promised(t)
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Name,Export,GoFiles,DepOnly", "./...")
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", stderr.String())
	files := map[string]string{}
	var names []string
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p exported
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		files[p.ImportPath] = p.Export
		below, ours := strings.CutPrefix(p.ImportPath, module+"/")
		if !ours || p.Name == "main" || len(p.GoFiles) == 0 || internalPath(below) || matches(below, read) {
			continue
		}
		if assert.True(t, matches(below, public), "%s can be imported: make it internal, or promise it in docs/compatibility.md", below) {
			names = append(names, below)
		}
	}
	for _, pattern := range public {
		require.True(t, slices.ContainsFunc(names, func(n string) bool { return matches(n, []string{pattern}) }), "no package is %s", pattern)
	}
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(name string) (io.ReadCloser, error) { return os.Open(files[name]) })
	pkgs = map[string]*types.Package{}
	for _, name := range names {
		pkgs[name], err = imp.Import(module + "/" + name)
		require.NoError(t, err, name)
	}
	return pkgs
}

// recorder writes what the public packages export, and notes which types of
// internal packages a user would have to name.
type recorder struct {
	bytes.Buffer
	own    *types.Package
	shown  map[*types.TypeName]string // types of internal packages, by their alias in a public one
	leaks  map[string]bool
	seen   map[types.Type]bool
	within string
}

func (r *recorder) qualify(p *types.Package) string {
	if p == r.own {
		return ""
	}
	return strings.TrimPrefix(p.Path(), module+"/")
}

// check notes the internal types in t that no alias makes public.
func (r *recorder) check(t types.Type) {
	if r.seen[t] {
		return
	}
	r.seen[t] = true
	switch t := t.(type) {
	case *types.Named:
		o := t.Obj()
		if o.Pkg() != nil && o.Exported() && strings.HasPrefix(o.Pkg().Path(), module+"/") && internalPath(o.Pkg().Path()) && r.shown[o] == "" {
			r.leaks[r.within+" mentions "+types.TypeString(t, r.qualify)] = true
		}
		for a := range t.TypeArgs().Types() {
			r.check(a)
		}
	case *types.Alias:
		r.check(types.Unalias(t))
	case *types.Map:
		r.check(t.Key())
		r.check(t.Elem())
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
		r.check(t.Elem())
	case *types.Signature:
		for v := range t.Params().Variables() {
			r.check(v.Type())
		}
		for v := range t.Results().Variables() {
			r.check(v.Type())
		}
	case *types.Struct:
		for v := range t.Fields() {
			if v.Exported() {
				r.check(v.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			r.check(m.Type())
		}
	}
}

func (r *recorder) line(indent, format string, args ...any) {
	fmt.Fprintf(r, indent+format+"\n", args...)
}

// object records one exported identifier of the package.
func (r *recorder) object(o types.Object) {
	r.within, r.seen = r.ownPath()+"."+o.Name(), map[types.Type]bool{}
	switch o := o.(type) {
	case *types.Const:
		r.line("", "const %s %s = %s", o.Name(), types.TypeString(o.Type(), r.qualify), o.Val().ExactString())
		r.check(o.Type())
	case *types.Var:
		r.line("", "var %s %s", o.Name(), types.TypeString(o.Type(), r.qualify))
		r.check(o.Type())
	case *types.Func:
		r.line("", "func %s%s", o.Name(), r.signature(o.Signature()))
		r.check(o.Type())
	case *types.TypeName:
		r.typeName(o)
	}
}

func (r *recorder) ownPath() string { return strings.TrimPrefix(r.own.Path(), module+"/") }

func (r *recorder) typeName(o *types.TypeName) {
	if o.IsAlias() {
		r.line("", "type %s = %s", o.Name(), types.TypeString(types.Unalias(o.Type()), r.qualify))
	}
	named, ok := types.Unalias(o.Type()).(*types.Named)
	if !ok || o.IsAlias() && !internalPath(named.Obj().Pkg().Path()) {
		return // recorded where it is declared
	}
	switch under := named.Underlying().(type) {
	case *types.Struct:
		r.line("", "type %s%s struct", o.Name(), params(named, r.qualify))
		for f := range under.Fields() {
			if f.Exported() {
				r.line("\t", "%s %s", f.Name(), types.TypeString(f.Type(), r.qualify))
				r.check(f.Type())
			}
		}
	case *types.Interface:
		r.line("", "type %s%s interface", o.Name(), params(named, r.qualify))
		for m := range under.Methods() {
			r.line("\t", "%s%s", m.Name(), r.signature(m.Signature()))
			r.check(m.Type())
		}
		return
	default:
		r.line("", "type %s%s %s", o.Name(), params(named, r.qualify), types.TypeString(under, r.qualify))
		r.check(under)
	}
	set := types.NewMethodSet(types.NewPointer(named))
	for sel := range set.Methods() {
		if m := sel.Obj().(*types.Func); m.Exported() {
			r.line("\t", "func %s%s", m.Name(), r.signature(m.Signature()))
			r.check(m.Type())
		}
	}
}

// signature writes parameters and results without their names, which are not promised.
func (r *recorder) signature(s *types.Signature) string {
	if s.TypeParams().Len() == 0 && s.RecvTypeParams().Len() == 0 {
		bare := func(in *types.Tuple) *types.Tuple {
			var list []*types.Var
			for v := range in.Variables() {
				list = append(list, types.NewVar(token.NoPos, nil, "", v.Type()))
			}
			return types.NewTuple(list...)
		}
		s = types.NewSignatureType(nil, nil, nil, bare(s.Params()), bare(s.Results()), s.Variadic())
	}
	return strings.TrimPrefix(types.TypeString(s, r.qualify), "func")
}

// params writes the type parameters of a generic type.
func params(named *types.Named, q types.Qualifier) string {
	if named.TypeParams().Len() == 0 {
		return ""
	}
	var list []string
	for p := range named.TypeParams().TypeParams() {
		list = append(list, p.Obj().Name()+" "+types.TypeString(p.Constraint(), q))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// record returns the exported API of the packages as text, and the leaks.
func record(pkgs map[string]*types.Package) (text string, leaks []string) {
	r := recorder{shown: map[*types.TypeName]string{}, leaks: map[string]bool{}}
	for _, p := range pkgs {
		for _, name := range p.Scope().Names() {
			if o, ok := p.Scope().Lookup(name).(*types.TypeName); ok && o.Exported() && o.IsAlias() {
				if named, ok := types.Unalias(o.Type()).(*types.Named); ok {
					r.shown[named.Obj()] = name
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pkgs)) {
		r.own = pkgs[name]
		r.line("", "\npackage %s", name)
		for _, id := range r.own.Scope().Names() {
			if o := r.own.Scope().Lookup(id); o.Exported() {
				r.object(o)
			}
		}
	}
	return r.String(), slices.Sorted(maps.Keys(r.leaks))
}

const apiHead = "What the public packages export (docs/compatibility.md), on linux/amd64.\nWritten by `go test ./tests/arch -run TestAPI -update`; a change of it belongs into the changelog.\n"

// A change of the public API is a decision: it shows in the record, and in a diff.
func TestAPI(t *testing.T) {
	text, leaks := record(load(t))
	require.Empty(t, leaks, "users cannot import internal packages: name these types publicly")
	text = apiHead + text
	if *update {
		require.NoError(t, os.WriteFile(filepath.Join(root(t), "docs", "api.txt"), []byte(text), 0o666))
	}
	was, now := strings.Split(string(source(t, "docs/api.txt")), "\n"), strings.Split(text, "\n")
	var diff []string
	for _, l := range without(was, now) {
		diff = append(diff, "- "+l)
	}
	for _, l := range without(now, was) {
		diff = append(diff, "+ "+l)
	}
	require.Empty(t, diff, "the API has changed: if it is meant to, write it (-update) and a line of the changelog")
	require.Equal(t, was, now, "the order of the record has changed: write it with -update")
}

// without returns the lines of a that b does not have as often.
func without(a, b []string) (rest []string) {
	n := map[string]int{}
	for _, l := range b {
		n[l]++
	}
	for _, l := range a {
		if n[l]--; n[l] < 0 {
			rest = append(rest, l)
		}
	}
	return rest
}

// The record sees fields, methods, constants and leaks.
func TestAPIRecordSeesChanges(t *testing.T) {
	secret := types.NewPackage(module+"/internal/secret", "secret")
	hidden := types.NewTypeName(token.NoPos, secret, "Hidden", nil)
	types.NewNamed(hidden, types.NewStruct(nil, nil), nil)
	p := types.NewPackage(module+"/core/x", "x")
	name := types.NewTypeName(token.NoPos, p, "T", nil)
	named := types.NewNamed(name, types.NewStruct([]*types.Var{
		types.NewField(token.NoPos, p, "A", types.Typ[types.Int], false),
		types.NewField(token.NoPos, p, "b", hidden.Type(), false),
	}, nil), nil)
	self := types.NewVar(token.NoPos, p, "t", named)
	result := types.NewTuple(types.NewVar(token.NoPos, p, "", types.NewSlice(hidden.Type())))
	named.AddMethod(types.NewFunc(token.NoPos, p, "M", types.NewSignatureType(self, nil, nil, nil, result, false)))
	p.Scope().Insert(name)
	text, leaks := record(map[string]*types.Package{"core/x": p})
	require.Equal(t, "\npackage core/x\ntype T struct\n\tA int\n\tfunc M() []internal/secret.Hidden\n", text)
	require.Equal(t, []string{"core/x.T mentions internal/secret.Hidden"}, leaks)
	p.Scope().Insert(types.NewTypeName(token.NoPos, p, "Open", hidden.Type()))
	_, leaks = record(map[string]*types.Package{"core/x": p})
	require.Empty(t, leaks, "an alias makes it public")
	require.Equal(t, []string{"b"}, without([]string{"a", "b", "b"}, []string{"b", "a"}))
}
