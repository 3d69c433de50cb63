package arch

import (
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

// structs returns the fields of every struct type of the product below the
// directories, by "dir.Type", and which of them have a mutex.
func structs(t testing.TB, dirs ...string) (fields map[string][]string, locked []string) {
	fields = map[string][]string{}
	for _, name := range files(t, func(name string) bool {
		below := func(dir string) bool { return strings.HasPrefix(name, dir+"/") }
		return isGo(name) && !strings.HasSuffix(name, "_test.go") && slices.ContainsFunc(dirs, below)
	}) {
		src := source(t, name)
		if src == nil {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			owner := path.Dir(name) + "." + spec.Name.Name
			fields[owner] = []string{}
			for _, field := range st.Fields.List {
				for _, id := range field.Names {
					fields[owner] = append(fields[owner], id.Name)
				}
				if sel, ok := field.Type.(*ast.SelectorExpr); ok && strings.HasSuffix(sel.Sel.Name, "Mutex") {
					locked = append(locked, owner)
				}
			}
			return true
		})
	}
	return fields, locked
}

// The table of structures and owners names what exists, and every structure of
// the engine that has a mutex.
func TestTableOfOwners(t *testing.T) {
	_, section, found := strings.Cut(string(source(t, "docs/architecture.md")), "## Who owns what")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	fields, locked := structs(t, "core", "internal", "platform")
	named := map[string]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		name := quoted.FindStringSubmatch(cells[1])[1]
		named[name] = true
		if fields[name] == nil {
			assert.Fail(t, "a row of the table of owners is about no struct", name)
			continue
		}
		for _, cell := range cells[2:4] {
			for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
				others := m[1] == "mu" && strings.Contains(cell, "the engine's")
				assert.True(t, others || slices.Contains(fields[name], m[1]), "the table of owners names a field %s, which %s does not have", m[1], name)
			}
		}
	}
	require.Greater(t, len(named), 10)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(locked))) {
		// The doubles of tests and the plugin host, whose locks are its own, have no rows.
		if !strings.Contains(name, "test.") && !strings.HasPrefix(name, "internal/plugin/") && !strings.HasPrefix(name, "internal/cuda/") {
			assert.True(t, named[name], "%s has a mutex and no row in the table of owners", name) // S4-22
		}
	}
	require.Contains(t, slices.Collect(maps.Keys(fields)), "internal/reduce.Op")
	require.Contains(t, locked, "internal/reduce.Op")
}
