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
	isNo    = regexp.MustCompile(`(\S+) (?:is|are|was|were) no (\w+)`)
	ends    = regexp.MustCompile(`(?i)\b(?:gopccl|PCCL) ends?\b|\bbetween ends that\b`)
	whoever = regexp.MustCompile(`(?i)\bwhom?ever\b`)
	// who begins a sentence that is not a question.
	who  = regexp.MustCompile(`(?:^|[.:;] |// )(?:Who|Whom) [^.?!]+[.;]`)
	anew = regexp.MustCompile(`\b(?:made|built|written|writes|loaded|dialled|begun|started) (?:it )?anew\b`)
	code = regexp.MustCompile("`[^`]*`")

	comparatives = []string{"longer", "worse", "more", "less", "slower", "faster", "better", "later", "sooner", "larger", "smaller", "wider", "one", "doubt"}

	// spoken are rooms whose comments still have such phrases, and pages that
	// quote the text of others. Nothing new comes in.
	spoken = []string{
		"internal/reduce", "internal/link", "internal/mesh", "internal/master", "internal/master/fsm", "internal/master/fsm/rings",
		"internal/peer", "internal/peer/fsm", "tests/sim",
	}
	quoting = []string{"docs/conformance.md", "docs/spec/control.md", "docs/spec/data.md", "docs/spec/hashing.md", "docs/spec/quirks.md"}
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
	for _, m := range whoever.FindAllString(text, -1) {
		bad = append(bad, m+" (say: the peer that, a caller that)")
	}
	for _, m := range who.FindAllString(text, -1) {
		bad = append(bad, m+" (say: a peer that, a caller that)")
	}
	for _, m := range anew.FindAllString(text, -1) {
		bad = append(bad, m+" (say: again)")
	}
	return bad
}

// prose returns the comments of a file, each as one line, and its strings.
// What is not Go counts as one comment.
func prose(t testing.TB, name string, src []byte) (comments, strs []string) {
	if !isGo(name) {
		return []string{wrapped.ReplaceAllString(string(src), " ")}, nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	if ast.IsGenerated(file) {
		return nil, nil
	}
	for _, c := range file.Comments {
		comments = append(comments, strings.Join(strings.Fields(c.Text()), " "))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, _ := strconv.Unquote(lit.Value)
			strs = append(strs, text)
		}
		return true
	})
	return comments, strs
}

// Pages, comments and texts are idiomatic where a test can tell. Of rooms that
// are not there yet, the texts for users are.
func TestEnglish(t *testing.T) {
	read := 0
	for _, name := range files(t, func(name string) bool {
		return slices.Contains([]string{".go", ".md", ".py", ".sh", ".c", ".h"}, path.Ext(name)) &&
			!slices.Contains(quoting, name) && name != "tests/arch/english_test.go"
	}) {
		src := source(t, name)
		late := matches(path.Dir(name), spoken)
		if src == nil || late && strings.HasSuffix(name, "_test.go") {
			continue
		}
		comments, strs := prose(t, name, src)
		if late {
			comments = nil
		}
		for _, text := range slices.Concat(comments, strs) {
			assert.Empty(t, stilted(text), name)
		}
		read++
	}
	require.Greater(t, read, 400)
	require.Empty(t, stilted("There is no ring; it is no longer so, and no worse. Who asks? A peer that asks."))
	require.Len(t, stilted("%q is no number. Two gopccl ends meet. Whoever asks is told. Who asks is told. It is made anew."), 5)
	comments, strs := prose(t, "x.go", []byte("package x\n\n// Two lines\n// of one comment.\nvar x = \"text\"\n"))
	require.Equal(t, []string{"Two lines of one comment."}, comments)
	require.Equal(t, []string{"text"}, strs)
}
