// Package arch holds tests about the source itself: the imports between rooms, what the
// state machines may know, where cgo may be, how large things get, what pages
// say about the code, and what must not be committed. The import rules are the
// table of docs/architecture.md.
package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	systems = []string{"linux", "darwin", "windows"}
	arches  = []string{"amd64", "arm64"}
	tagSets = []string{"", "noasm", "invariants", "nocuda"}
)

// pkg is what `go list -json` says about a package.
type pkg struct {
	ImportPath                         string
	Standard                           bool
	Imports, TestImports, XTestImports []string
	CgoFiles                           []string
	Error                              *struct{ Err string }
}

// path is the package's path below the module, "." for its root.
func (p pkg) path() string {
	if p.ImportPath == module {
		return "."
	}
	return strings.TrimPrefix(p.ImportPath, module+"/")
}

func root(t testing.TB) string {
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

func list(t testing.TB, system, arch, tags string) (pkgs []pkg) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Standard,Imports,TestImports,XTestImports,CgoFiles,Error", "-tags="+tags, "./...")
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", stderr.String())
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else {
			require.NoError(t, err)
		}
		pkgs = append(pkgs, p)
	}
}

// offences returns what is wrong with the imports of p.
func offences(p pkg) (bad []string) {
	own := p.path()
	may, known := allowed(own)
	if !known {
		return []string{fmt.Sprintf("%s: no rule says what it may import; add it to the table", own)}
	}
	say := func(format string, a ...any) { bad = append(bad, own+": "+fmt.Sprintf(format, a...)) }
	for _, imp := range p.Imports {
		switch below, ours := strings.CutPrefix(imp, module+"/"); {
		case imp == "C":
			if !matches(own, []string{"bindings/c/..."}) {
				say("cgo")
			}
		case ours || imp == module:
			if !matches(below, may) {
				say("may not import %s", below)
			}
		case strings.Contains(strings.Split(imp, "/")[0], "."):
			if !foreignAllowed(own, imp, false) {
				say("may not import %s", imp)
			}
		case matches(own, pure) && slices.Contains(pureForbidden, imp):
			say("what is pure may not import %s", imp)
		}
	}
	for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
		outside := strings.Contains(strings.Split(imp, "/")[0], ".") && !strings.HasPrefix(imp, module)
		if outside && !foreignAllowed(own, imp, true) {
			say("its tests may not import %s", imp)
		}
	}
	if len(p.CgoFiles) > 0 && !matches(own, []string{"bindings/c/..."}) {
		say("cgo files %v", p.CgoFiles)
	}
	return bad
}

// The import table holds for every supported system, architecture and tag set.
func TestImports(t *testing.T) {
	for _, system := range systems {
		for _, arch := range arches {
			for _, tags := range tagSets {
				t.Run(fmt.Sprintf("%s/%s/%s", system, arch, tags), func(t *testing.T) {
					t.Parallel()
					var bad []string
					pkgs := list(t, system, arch, tags)
					require.NotEmpty(t, pkgs)
					for _, p := range pkgs {
						bad = append(bad, offences(p)...)
					}
					require.Empty(t, bad)
				})
			}
		}
	}
}

// Every row of the import table is about packages that exist.
func TestImportTableIsCurrent(t *testing.T) {
	var pkgs []string
	for _, p := range list(t, "linux", "amd64", "cuda") {
		pkgs = append(pkgs, p.path())
	}
	for _, r := range rules() {
		for _, pattern := range slices.Concat(r.where, r.may) {
			assert.True(t, slices.ContainsFunc(pkgs, func(p string) bool { return matches(p, []string{pattern}) }), "no package is %s", pattern)
		}
	}
}

// The rules see what they must see.
func TestImportRulesHaveTeeth(t *testing.T) {
	for _, c := range []struct {
		where, imports, want string
	}{
		{"internal/wire", module + "/internal/plan", "may not import internal/plan"},
		{"core/dtype", module + "/core/errs", "may not import core/errs"},
		{"internal/master/fsm", module + "/internal/transport", "may not import internal/transport"},
		{"internal/master/fsm", "net", "may not import net"},
		{"internal/peer/fsm", "sync", "may not import sync"},
		{"internal/message/fsm", module + "/internal/link", "may not import internal/link"},
		{"internal/peer/fsm", module + "/internal/master/fsm/rings", "may not import internal/master/fsm/rings"},
		{"internal/master/fsm/rings", "math/rand", "may not import math/rand"},
		{"internal/master/fsm/links", module + "/internal/plan", "may not import internal/plan"},
		{"internal/peer", module + "/backends/cpu_generic", "may not import backends/cpu_generic"},
		{"core", module + "/conf", "may not import conf"},
		{"core/backend", module + "/core/backend/backendtest", "may not import core/backend/backendtest"},
		{"quantizers/minmax", module + "/core/backend", "may not import core/backend"},
		{"quantizers/minmax", module + "/quantizers/none", "may not import quantizers/none"},
		{"internal/reduce", "github.com/stretchr/testify/require", "may not import github.com/stretchr"},
		{"core/checkpoint", "github.com/minio/sha256-simd", "may not import github.com/minio"},
		{"examples/ddp", "github.com/knadh/koanf/v2", "may not import github.com/knadh"},
		{"internal/buf", "C", "cgo"},
		{"attic", "fmt", "no rule"},
	} {
		bad := offences(pkg{ImportPath: module + "/" + c.where, Imports: []string{c.imports}})
		require.Len(t, bad, 1, "%s imports %s", c.where, c.imports)
		require.Contains(t, bad[0], c.want)
	}
	for where, imports := range map[string]string{
		"internal/wire": module + "/core/errs", "internal/master/fsm": "time", "core/digest": "github.com/minio/sha256-simd",
		"backends/cpu_generic": module + "/core/backend", "core": module + "/internal/peer", "cmd/gopccl": module + "/backends/defaults",
	} {
		require.Empty(t, offences(pkg{ImportPath: module + "/" + where, Imports: []string{imports}}))
	}
	require.NotEmpty(t, offences(pkg{ImportPath: module + "/internal/wire", TestImports: []string{"github.com/spf13/cobra"}}))
	require.NotEmpty(t, offences(pkg{ImportPath: module + "/internal/wire", CgoFiles: []string{"x.go"}}))
}

// A trainer that embeds the engine links no gRPC, no YAML and no CLI.
func TestEngineClosure(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./core/...", "./bindings/c/...", "./backends/...", "./quantizers/...", "./solvers/...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	require.Contains(t, deps, module+"/internal/wire")
	for _, d := range deps {
		for _, banned := range []string{"google.golang.org/", "github.com/hashicorp/", "github.com/spf13/cobra", module + "/plugins"} {
			require.False(t, strings.HasPrefix(d, banned), "the engine links %s", d)
		}
	}
}

// What opens the CUDA driver is linked for systems that have one, unless the tag
// nocuda is set: then no program depends on anything of it.
func TestCUDAClosure(t *testing.T) {
	const opener = "github.com/ebitengine/purego"
	for _, c := range []struct {
		tags, system, arch string
		want               bool
	}{
		{"", "linux", "amd64", true},
		{"", "windows", "arm64", true},
		{"cuda", "linux", "arm64", true},
		{"nocuda", "linux", "amd64", false},
		{"", "darwin", "arm64", false},
		{"cuda", "darwin", "arm64", false},
		{"", "linux", "riscv64", false},
	} {
		cmd := exec.Command("go", "list", "-tags="+c.tags, "-deps", "./cmd/...", "./bindings/c/...", "./backends/defaults")
		cmd.Dir = root(t)
		cmd.Env = append(os.Environ(), "GOOS="+c.system, "GOARCH="+c.arch, "CGO_ENABLED=1")
		out, err := cmd.Output()
		require.NoError(t, err)
		deps := strings.Fields(string(out))
		require.Contains(t, deps, module+"/core/device")
		require.Equal(t, c.want, slices.Contains(deps, opener), "%+v", c)
		require.Equal(t, c.want, slices.Contains(deps, module+"/internal/cuda/libcuda"), "%+v", c)
	}
}

// files returns the repository's files that fit, as git knows them; what is
// ignored is not looked at.
func files(t testing.TB, fit func(name string) bool) (names []string) {
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil { // an unpacked archive, not a clone
		err = filepath.WalkDir(cmd.Dir, func(file string, d fs.DirEntry, err error) error {
			if name, rerr := filepath.Rel(cmd.Dir, file); rerr == nil && err == nil && !d.IsDir() && fit(filepath.ToSlash(name)) {
				names = append(names, filepath.ToSlash(name))
			}
			return err
		})
		require.NoError(t, err)
		return names
	}
	for name := range strings.Lines(string(out)) {
		if name = strings.TrimSpace(name); name != "" && fit(name) {
			names = append(names, name)
		}
	}
	return names
}

func isGo(name string) bool { return strings.HasSuffix(name, ".go") }

// source reads a file; nil if it has been removed but not yet from the index.
func source(t testing.TB, name string) []byte {
	b, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(name)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	return b
}

// selectors returns the uses of identifiers of the standard package imp in a
// file, such as "Now" for time.Now.
func selectors(t testing.TB, name string, src []byte, imp string) (uses []string) {
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
	require.NoError(t, err)
	local := ""
	for _, i := range file.Imports {
		if p, _ := strconv.Unquote(i.Path.Value); p == imp {
			local = filepath.Base(imp)
			if i.Name != nil {
				local = i.Name.Name
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && local != "" {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == local {
				uses = append(uses, s.Sel.Name)
			}
		}
		return true
	})
	return uses
}

// The state machines take time from outside, start nothing and lock nothing:
// what they do depends on their input alone.
func TestStateMachinesArePure(t *testing.T) {
	names := files(t, func(name string) bool {
		return isGo(name) && !strings.HasSuffix(name, "_test.go") && matches(filepath.ToSlash(filepath.Dir(name)), pure)
	})
	require.NotEmpty(t, names)
	for _, name := range names {
		src := source(t, name)
		if src == nil {
			continue
		}
		require.Empty(t, impurities(t, name, src), name)
	}
	require.ElementsMatch(t, []string{"time.Now", "go statement", "channel"}, impurities(t, "x.go", []byte(`package x
import tm "time"
func f(c chan int) { _ = tm.Now(); go f(c); var d tm.Duration; _ = d }`)))
}

func impurities(t testing.TB, name string, src []byte) (bad []string) {
	for _, use := range selectors(t, name, src, "time") {
		if slices.Contains(pureCalls, use) {
			bad = append(bad, "time."+use)
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.GoStmt:
			bad = append(bad, "go statement")
		case *ast.ChanType:
			bad = append(bad, "channel")
		case *ast.SelectStmt:
			bad = append(bad, "select statement")
		}
		return true
	})
	return bad
}

// Systems are told apart by file names and build lines, not at run time.
func TestNoRuntimeGOOS(t *testing.T) {
	for _, name := range files(t, isGo) {
		if src := source(t, name); src != nil {
			require.NotContains(t, selectors(t, name, src, "runtime"), "GOOS", name)
		}
	}
}

func TestGofmt(t *testing.T) {
	for _, name := range files(t, isGo) {
		src := source(t, name)
		if src == nil {
			continue
		}
		want, err := format.Source(src)
		require.NoError(t, err, name)
		require.True(t, bytes.Equal(want, src), "gofmt would change %s", name)
	}
}

const skipped = "test that is left out"

// forbidden are texts that no committed file holds. The expressions are
// written so that they do not match themselves.
var forbidden = map[string]*regexp.Regexp{
	"path of a machine":  regexp.MustCompile(`(^|[^\w.])/(wor[k]|home|roo[t]|User[s])/[\w.-]|/tm[p]/[a-z]+_jobs`),
	"host of a registry": regexp.MustCompile(`prox[y]\.golang|registr[y]\.npmjs|pyp[i]\.org|file[s]\.pythonhosted|de[b]\.debian`),
	"unfinished work":    regexp.MustCompile(`\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b`),
	skipped:              regexp.MustCompile(`\bt\.Ski[p](f|Now)?\(`),
}

// maySkip are tests of what cannot be had everywhere: they skip loudly, and a
// setting that CI uses turns the skip into a failure. Those of internal/cuda/cudatest
// are skipped on a device alone.
var maySkip = []string{"tests/compat", "tests/internal/pccl", "internal/cuda/cudatest"}

// hygiene returns the lines of a file that break a rule.
func hygiene(name string, src []byte) (bad []string) {
	line := 0
	for text := range strings.Lines(string(src)) {
		line++
		for what, re := range forbidden {
			if what == skipped && matches(path.Dir(name), maySkip) {
				continue
			}
			if re.MatchString(text) {
				bad = append(bad, fmt.Sprintf("%s:%d: %s: %.120s", name, line, what, strings.TrimSpace(text)))
			}
		}
	}
	return bad
}

// The repository speaks of the project alone and holds nothing unfinished.
func TestHygiene(t *testing.T) {
	text := func(name string) bool {
		if strings.Contains(name, "/testdata/") {
			return false
		}
		return slices.Contains([]string{".go", ".md", ".sh", ".yaml", ".yml", ".c", ".h", ".py", ".mod", ".s", ".tsv", ""}, filepath.Ext(name))
	}
	var bad []string
	for _, name := range files(t, text) {
		bad = append(bad, hygiene(name, source(t, name))...)
	}
	require.Empty(t, bad)

	for _, line := range []string{"see /wor" + "k/x", "// TOD" + "O: later", "GOPROXY=https://prox" + "y.golang.org", "t.Ski" + "p(\"slow\")"} {
		require.Len(t, hygiene("x.go", []byte(line)), 1, line)
	}
}
