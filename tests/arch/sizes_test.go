package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The largest that a file and a function get, in lines, and a struct, in
// fields. Generated code may be larger.
const (
	maxFile     = 700
	maxFunction = 100
	maxStruct   = 29
)

// sizes returns what a Go file holds that is too large, by "package.Name".
func sizes(t testing.TB, name string, src []byte) (found map[string]int) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	if ast.IsGenerated(file) {
		return nil
	}
	found = map[string]int{}
	if lines := bytes.Count(src, []byte("\n")); lines > maxFile {
		found[name] = lines
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if lines := fset.Position(n.End()).Line - fset.Position(n.Pos()).Line + 1; lines > maxFunction {
				found[path.Dir(name)+"."+receiver(n)+n.Name.Name] = lines
			}
		case *ast.TypeSpec:
			if st, ok := n.Type.(*ast.StructType); ok {
				fields := 0
				for _, f := range st.Fields.List {
					fields += max(1, len(f.Names))
				}
				if fields > maxStruct {
					found[path.Dir(name)+"."+n.Name.Name] = fields
				}
			}
		}
		return true
	})
	return found
}

// receiver returns the type of a method and a dot, and nothing for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	return fmt.Sprint(of) + "."
}

// Files and functions stay short enough to be read in one go, and structs
// small enough to have one subject.
func TestSizes(t *testing.T) {
	found := map[string]int{}
	for _, name := range files(t, isGo) {
		if src := source(t, name); src != nil {
			maps.Copy(found, sizes(t, name, src))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		assert.Fail(t, "too large; would two be clearer?", "%s: %d", name, found[name])
	}

	var long strings.Builder
	long.WriteString("package x\ntype s struct { a, b int; " + strings.Repeat("\n_ int", maxStruct-1) + "}\nfunc (*s) f() {")
	long.WriteString(strings.Repeat("\n", maxFile) + "}\n")
	require.Equal(t, map[string]int{"a/x.go": maxFile + maxStruct + 2, "a.s": maxStruct + 1, "a.s.f": maxFile + 1}, sizes(t, "a/x.go", []byte(long.String())))
}

// Failures that rapid has recorded are told in a report or mended, and not committed.
func TestNoRecordedFailures(t *testing.T) {
	require.Empty(t, files(t, func(name string) bool {
		return strings.HasSuffix(name, ".fail") || strings.Contains(name, "testdata/rapid/")
	}))
}
