package arch

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// leaves matches a reader that may end before what it reads: "grep -q", "grep -m", "head" and a sed that quits.
var leaves = regexp.MustCompile(`[^|]\|\s*(grep\s+(-\w+\s+)*-\w*[qm]|head\b|sed\s[^|]*\dq\b)`)

// early returns the lines of a script that pipe into a reader that may leave early.
func early(script string) (bad []string) {
	for line := range strings.Lines(script) {
		if leaves.MatchString(line) {
			bad = append(bad, strings.TrimSpace(line))
		}
	}
	return bad
}

// A writer whose reader has left is killed by the system. With pipefail the line fails then, now and then: a check that
// holds becomes one that does not. Scripts read to the end, or into a variable first.
func TestReadersStayToTheEnd(t *testing.T) {
	scripts := files(t, func(name string) bool { return path.Ext(name) == ".sh" || path.Base(name) == "Makefile" })
	require.Greater(t, len(scripts), 20)
	for _, name := range scripts {
		require.Empty(t, early(string(source(t, name))), name)
	}
	for _, line := range []string{"tar -tf x | grep -q y", "ls a b | head -n 1", "ls | grep -E -m 1 x", "ls | sed 1q"} {
		require.Len(t, early(line), 1, line)
	}
	for _, line := range []string{"grep -q x file", "a || grep -q x file", "ls | grep x | sed -n 1p", "ls | grep x >/dev/null"} {
		require.Empty(t, early(line), line)
	}
}
