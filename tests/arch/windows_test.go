package arch

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var tempDir = regexp.MustCompile(`\b[bt]\.TempDir\(\)`)

// underWine returns the patterns of the packages whose tests run as Windows programs.
func underWine(script string) (ps []string) {
	_, list, _ := strings.Cut(script, "packages=(")
	list, _, _ = strings.Cut(list, ")")
	for _, p := range strings.Fields(list) {
		ps = append(ps, strings.TrimPrefix(p, "./"))
	}
	return ps
}

// Wine does not know the call with which the directories of testing are removed: tests that run
// there have those of internal/scratch.
func TestDirectoriesThatWineRemoves(t *testing.T) {
	ps := underWine(string(source(t, "tools/ci/windows.sh")))
	require.Greater(t, len(ps), 20)
	seen := 0
	for _, name := range files(t, isGo) {
		if !strings.HasSuffix(name, "_test.go") || !matches(path.Dir(name), ps) {
			continue
		}
		seen++
		if !strings.HasSuffix(name, "_linux_test.go") && !strings.HasSuffix(name, "_unix_test.go") {
			require.False(t, tempDir.Match(source(t, name)), "%s: use scratch.Dir", name)
		}
	}
	require.Greater(t, seen, 100)
	require.True(t, tempDir.MatchString("dir := t.TempDir()"))
}
