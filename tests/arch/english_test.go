package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	isNo = regexp.MustCompile(`(\S+) (?:is|are) no (\w+)`)
	ends = regexp.MustCompile(`\b(?:gopccl|PCCL) ends?\b`)
	code = regexp.MustCompile("`[^`]*`")

	comparatives = []string{"longer", "worse", "more", "less", "slower", "better", "later", "sooner"}
)

// stilted returns the phrases of a text that are not idiomatic.
func stilted(text string) (bad []string) {
	text = code.ReplaceAllString(text, "")
	for _, m := range isNo.FindAllStringSubmatch(text, -1) {
		// "there is no ring", "is no longer" and "is no worse" are right.
		if !strings.EqualFold(m[1], "there") && !slices.Contains(comparatives, m[2]) {
			bad = append(bad, m[0]+" (say: is not a "+m[2]+")")
		}
	}
	for _, m := range ends.FindAllString(text, -1) {
		bad = append(bad, m+" (say: peer, or endpoint)")
	}
	return bad
}

// Texts for users, in pages and in strings of the product, are idiomatic where
// a test can tell.
func TestEnglish(t *testing.T) {
	for _, name := range files(t, func(name string) bool {
		return path.Ext(name) == ".md" || isGo(name) && !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "tests/")
	}) {
		src := source(t, name)
		if src == nil {
			continue
		}
		if !isGo(name) {
			assert.Empty(t, stilted(string(src)), name)
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, _ := strconv.Unquote(lit.Value)
				assert.Empty(t, stilted(text), name)
			}
			return true
		})
	}
	require.Len(t, stilted("%q is no number. There is no ring; it is no longer so. Two gopccl ends meet."), 2)
}
