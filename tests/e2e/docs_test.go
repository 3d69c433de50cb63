package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// structs returns the fields of every struct type below the directories, by
// "dir.Type", and which of them have a mutex.
func structs(t *testing.T, dirs ...string) (fields map[string][]string, locked []string) {
	fields = map[string][]string{}
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			room, _ := filepath.Rel("../..", filepath.Dir(path))
			ast.Inspect(f, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				st, ok := spec.Type.(*ast.StructType)
				if !ok {
					return true
				}
				name := filepath.ToSlash(room) + "." + spec.Name.Name
				for _, field := range st.Fields.List {
					for _, id := range field.Names {
						fields[name] = append(fields[name], id.Name)
					}
					if sel, ok := field.Type.(*ast.SelectorExpr); ok && strings.HasSuffix(sel.Sel.Name, "Mutex") {
						locked = append(locked, name)
					}
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	return fields, locked
}

// The table of structures and owners names what exists, and every
// structure of the engine that has a mutex.
func TestTableOfOwners(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "## Who owns what")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	fields, locked := structs(t, "core", "internal", "platform")
	quoted := regexp.MustCompile("`([^`]+)`")
	named := map[string]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		name := quoted.FindStringSubmatch(cells[1])[1]
		require.Contains(t, fields, name)
		named[name] = true
		for _, cell := range cells[2:4] {
			for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
				if m[1] == "mu" && strings.Contains(cell, "the engine's") {
					continue
				}
				require.Contains(t, fields[name], m[1], "of %s", name)
			}
		}
	}
	require.Greater(t, len(named), 10)
	for _, name := range locked {
		// The doubles of tests and the plugin host, whose locks are its own, have no rows.
		if !strings.Contains(name, "test.") && !strings.HasPrefix(name, "internal/plugin/") && !strings.HasPrefix(name, "internal/cuda/") {
			require.True(t, named[name], "%s has a mutex and no row", name) // S4-22
		}
	}
	require.True(t, slices.Contains(locked, "internal/reduce.Op"))
}
