package arch

import (
	"fmt"
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
	heading  = regexp.MustCompile(`(?m)^#{2,3} ([0-9]+(?:\.[0-9]+)?)\.? `)
	citation = regexp.MustCompile(`(?i)\b(control|data|hashing) spec,? sections? ([0-9][0-9.]*(?:(?:,| and| to)? [0-9][0-9.]*)*)`)
	number   = regexp.MustCompile(`[0-9]+(?:\.[0-9]+)?`)
	quirk    = regexp.MustCompile(`\bQ([0-9]+)\b|_Q([0-9]+)(?:_|\b)`)
	inName   = regexp.MustCompile(`func Test\w+?_Section([0-9]+)(?:_([0-9]+))?`)
	wrapped  = regexp.MustCompile(`\n[\t ]*(?://|\*|#)? ?`)
	quirkRow = regexp.MustCompile(`(?m)^\| Q([0-9]+) \|(.*)\| \*\*(Mended|Kept|Avoided|Coped with|Cannot arise)\.\*\* (.*) \|$`)
	testName = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	titled   = regexp.MustCompile(`extensions\.md\)?, "([^"]+)"`)
	mdLink   = regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
)

// sections returns the numbers of the headings of one page of the specification.
func sections(t testing.TB, page string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(string(source(t, "docs/spec/"+page+".md")), -1) {
		all = append(all, m[1])
	}
	require.NotEmpty(t, all, page)
	return all
}

// unresolved returns the citations of src that lead nowhere.
func unresolved(src string, pages map[string][]string, quirks []string) (bad []string) {
	src = wrapped.ReplaceAllString(src, " ")
	for _, m := range citation.FindAllStringSubmatch(src, -1) {
		for _, n := range number.FindAllString(m[2], -1) {
			if page := strings.ToLower(m[1]); !slices.Contains(pages[page], n) {
				bad = append(bad, fmt.Sprintf("%s spec, section %s", page, n))
			}
		}
	}
	for _, m := range quirk.FindAllStringSubmatch(src, -1) {
		if n := m[1] + m[2]; !slices.Contains(quirks, n) {
			bad = append(bad, "quirk Q"+n)
		}
	}
	for _, m := range inName.FindAllStringSubmatch(src, -1) {
		n := m[1]
		if m[2] != "" {
			n += "." + m[2]
		}
		if !slices.Contains(pages["control"], n) {
			bad = append(bad, "_Section"+strings.ReplaceAll(n, ".", "_"))
		}
	}
	return bad
}

// What code, tests and pages cite of the specification stands in docs/spec.
func TestCitationsResolve(t *testing.T) {
	pages := map[string][]string{}
	for _, page := range []string{"control", "data", "hashing"} {
		pages[page] = sections(t, page)
	}
	var quirks []string
	for _, m := range quirkRow.FindAllStringSubmatch(string(source(t, "docs/spec/quirks.md")), -1) {
		quirks = append(quirks, m[1])
	}
	require.Equal(t, []string{"control spec, section 77.1", "quirk Q999", "_Section77_1"},
		unresolved("// control spec, section 1 and\n// 77.1; quirks Q1 and Q999\nfunc TestX_Section77_1(", pages, quirks), "the test sees what it must see")
	cited := 0
	for _, name := range files(t, func(name string) bool {
		return slices.Contains([]string{".go", ".md", ".py", ".c", ".h"}, path.Ext(name)) && name != "tests/arch/citations_test.go"
	}) {
		src := string(source(t, name))
		cited += len(citation.FindAllString(wrapped.ReplaceAllString(src, " "), -1))
		require.Empty(t, unresolved(src, pages, quirks), name)
	}
	require.Greater(t, cited, 100)
}

// A part of docs/spec/extensions.md that is cited by its title has that title.
func TestExtensionsAreCitedByTitle(t *testing.T) {
	page := string(source(t, "docs/spec/extensions.md"))
	require.NotEmpty(t, page)
	cited := 0
	for _, name := range files(t, func(name string) bool {
		return slices.Contains([]string{".go", ".md", ".py", ".c", ".h"}, path.Ext(name)) && name != "tests/arch/citations_test.go"
	}) {
		for _, m := range titled.FindAllStringSubmatch(wrapped.ReplaceAllString(string(source(t, name)), " "), -1) {
			assert.Regexp(t, "(?m)^#{2,3} "+regexp.QuoteMeta(m[1])+"$", page, "%s cites it", name)
			cited++
		}
	}
	require.Greater(t, cited, 10)
}

// Links between the pages lead to files that exist.
func TestLinksResolve(t *testing.T) {
	for _, name := range files(t, func(name string) bool { return path.Ext(name) == ".md" }) {
		for _, m := range mdLink.FindAllStringSubmatch(string(source(t, name)), -1) {
			to := path.Join(path.Dir(name), m[1])
			_, err := os.Stat(filepath.Join(root(t), to))
			assert.NoError(t, err, "%s links to %s", name, m[1])
		}
	}
}

// A quirk that is mended names tests; they exist, and their package names the quirk.
func TestMendedQuirksAreTested(t *testing.T) {
	where := map[string][]string{} // directories by name of a test
	texts := map[string]string{}   // test files by directory
	for _, name := range files(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") }) {
		src := string(source(t, name))
		for _, m := range testFunc.FindAllStringSubmatch(src, -1) {
			where[m[1]] = append(where[m[1]], path.Dir(name))
		}
		texts[path.Dir(name)] += src
	}
	rows := quirkRow.FindAllStringSubmatch(string(source(t, "docs/spec/quirks.md")), -1)
	require.Equal(t, strings.Count(string(source(t, "docs/spec/quirks.md")), "\n| Q"), len(rows), "every row has a decision")
	for _, m := range rows {
		names := testName.FindAllStringSubmatch(m[4], -1)
		require.False(t, m[3] == "Mended" && len(names) == 0, "quirk Q%s names no test", m[1])
		for _, name := range names {
			dirs := where[name[1]]
			assert.NotEmpty(t, dirs, "quirk Q%s names %s, which does not exist", m[1], name[1])
			assert.True(t, slices.ContainsFunc(dirs, func(dir string) bool {
				return regexp.MustCompile(`\bQ` + m[1] + `\b|_Q` + m[1] + `(?:_|\b)`).MatchString(texts[dir])
			}), "%s does not name quirk Q%s", name[1], m[1])
		}
	}
}
