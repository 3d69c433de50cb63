package arch

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	// place is a path of the repository in a text, from one of its folders.
	place = regexp.MustCompile(`(?:^|[\s("'=,])(?:\./)?((?:backends|bindings|cmd|conf|core|docs|examples|internal|platform|plugins|quantizers|solvers|tests|tools)/[\w./*-]*[\w*])`)
	span  = regexp.MustCompile("`([^`\n]+)`")
	block = regexp.MustCompile("(?ms)^```.*?^```")
	goal  = regexp.MustCompile(`(?:^|[\s(])make ([a-z][a-z-]+)`)
)

// missing returns the paths of text that lead to nothing. A path may end with a
// pattern, or with an identifier of the package.
func missing(dir, text string) (bad []string) {
	for _, m := range place.FindAllStringSubmatch(text, -1) {
		name := strings.TrimSuffix(strings.TrimSuffix(m[1], "/..."), "/*")
		for _, try := range []string{name, strings.TrimSuffix(name, path.Ext(name)), strings.SplitN(name, ".", 2)[0]} {
			if found, _ := filepath.Glob(filepath.Join(dir, try)); len(found) > 0 {
				name = ""
				break
			}
		}
		if name != "" {
			bad = append(bad, m[1])
		}
	}
	return bad
}

// shown is what a page shows as code.
func shown(page string) (texts []string) {
	texts = block.FindAllString(page, -1)
	for _, m := range span.FindAllStringSubmatch(block.ReplaceAllString(page, ""), -1) {
		texts = append(texts, m[1])
	}
	return texts
}

// docs/README.md is the map: it leads to every page beside it.
func TestMapOfTheDocs(t *testing.T) {
	links := map[string]bool{}
	for _, m := range mdLink.FindAllStringSubmatch(string(source(t, "docs/README.md")), -1) {
		links[path.Join("docs", m[1])] = true
	}
	pages := files(t, func(name string) bool {
		return strings.HasPrefix(name, "docs/") && path.Ext(name) == ".md" && name != "docs/README.md"
	})
	require.Greater(t, len(pages), 10)
	for _, name := range pages {
		assert.True(t, links[name], "%s is not on the map of the documentation", name)
	}
}

// The files, packages and goals of make that pages, comments and help texts name exist.
func TestNamedPathsExist(t *testing.T) {
	dir, makefile := root(t), string(source(t, "Makefile"))
	paths, goals := 0, 0
	for _, name := range files(t, func(name string) bool {
		return slices.Contains([]string{".go", ".md", ".sh", ".py", ".c", ".h"}, path.Ext(name)) && name != "tests/arch/docs_test.go" && name != "CHANGELOG.md"
	}) {
		src := source(t, name)
		if src == nil {
			continue
		}
		var texts []string
		if path.Ext(name) == ".md" {
			texts = shown(string(src))
		} else {
			texts, _ = prose(t, name, src)
		}
		for _, text := range texts {
			assert.Empty(t, missing(dir, text), "%s names it", name)
			paths += len(place.FindAllString(text, -1))
			if path.Ext(name) != ".md" {
				continue
			}
			for _, m := range goal.FindAllStringSubmatch(text, -1) {
				assert.Regexp(t, "(?m)^"+m[1]+":", makefile, "%s says make %s", name, m[1])
				goals++
			}
		}
	}
	require.Greater(t, paths, 300)
	require.Greater(t, goals, 10)
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	require.Equal(t, []string{"core/plan", "tests/nowhere/x.go"},
		missing(dir, "core/topo.Solver and core/topo, core/topo/*, ./cmd/gopccl; core/plan (tests/nowhere/x.go)"))
}
