package arch

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// module is the import path of the product module.
const module = "github.com/gopccl/gopccl"

// pure is what knows neither time nor place: the state machines, and what they ask,
// and the controller of rates.
var pure = []string{"internal/master/fsm/...", "internal/message/fsm", "internal/pace", "internal/peer/fsm", "internal/quorum"}

// rule says what the packages that match where may import of our own
// packages. Patterns are paths below the module; "x/*" is one more element,
// "x/..." is x and everything below.
type rule struct {
	where, may []string
}

// rules is the table of docs/architecture.md. A package that no rule matches
// is an error, and the first match counts.
var rules = sync.OnceValue(func() []rule {
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		panic(err)
	}
	return readRules(string(page))
})

var (
	quoted  = regexp.MustCompile("`([^`]+)`")
	layered = regexp.MustCompile(`^layers? (\d)(?: to (\d))?$`)
)

// readRules reads the table of the section "Who may import whom". A cell that
// it does not understand is a panic.
func readRules(page string) (table []rule) {
	_, section, _ := strings.Cut(page, "## Who may import whom")
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][]string
	layers := map[string][]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 3 || !strings.HasPrefix(cells[1], "`") {
			continue
		}
		cells[0], cells[2] = strings.TrimPrefix(cells[0], "| "), strings.TrimSuffix(cells[2], " |")
		rows = append(rows, cells)
		layers[cells[0]] = append(layers[cells[0]], patterns(cells[1], nil)...)
	}
	for _, cells := range rows {
		r := rule{where: patterns(cells[1], nil)}
		if cells[2] != "nothing" {
			r.may = patterns(cells[2], layers)
		}
		table = append(table, r)
	}
	return table
}

// patterns reads the cell of a table: packages, and layers where they are known.
func patterns(cell string, layers map[string][]string) (all []string) {
	for _, item := range strings.Split(cell, ", ") {
		if m := quoted.FindStringSubmatch(item); m != nil && m[0] == item {
			all = append(all, m[1])
			continue
		}
		m := layered.FindStringSubmatch(item)
		if m == nil || layers == nil {
			panic("docs/architecture.md: the import table says " + item)
		}
		for layer := m[1]; layer <= max(m[1], m[2]); layer = string(layer[0] + 1) {
			if layers[layer] == nil {
				panic("docs/architecture.md: the import table has no layer " + layer)
			}
			all = append(all, layers[layer]...)
		}
	}
	return all
}

// foreign says who may import which module outside the standard library. The
// rest of core, the implementations and platform use the standard library and
// x/sys alone, so that a trainer that embeds the engine inherits nothing else.
var foreign = []struct {
	where  []string
	module []string
}{
	{[]string{"core/digest"}, []string{"github.com/minio/sha256-simd"}},
	{[]string{"internal/cuda/libcuda"}, []string{"github.com/ebitengine/purego", "golang.org/x/sys"}},
	{[]string{"internal/quorum"}, []string{"go.etcd.io/raft/v3", "google.golang.org/protobuf"}},
	{[]string{"core/...", "internal/...", "backends/...", "quantizers/...", "solvers/...", "platform/..."}, []string{"golang.org/x/sys"}},
	{[]string{"conf"}, []string{"github.com/knadh/koanf", "github.com/go-viper/mapstructure", "go.yaml.in/yaml"}},
	{[]string{"cmd/..."}, []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/lmittmann/tint", "golang.org/x/sys"}},
	{[]string{"plugins/...", "internal/plugin/..."}, []string{"github.com/hashicorp/go-plugin", "github.com/hashicorp/go-hclog", "google.golang.org/grpc", "google.golang.org/protobuf", "golang.org/x/sys"}},
	{[]string{"examples/...", "tests/..."}, []string{"golang.org/x/sys"}},
}

// testModules may be imported by test files and test suites everywhere.
var testModules = []string{"github.com/stretchr/testify", "pgregory.net/rapid", "go.uber.org/goleak"}

// testSuites are packages of test code that are not _test.go files.
var testSuites = []string{
	"core/backend/backendtest", "core/quant/quanttest", "core/topo/solvertest", "internal/allocs", "internal/scratch",
	"internal/transport/transporttest", "platform/platformtest", "internal/cuda/ptxtest", "internal/cuda/cudatest", "tests/...",
}

// pureForbidden are standard packages that what is pure may not import: it is
// deterministic, and knows neither time nor place.
var pureForbidden = []string{
	"net", "net/http", "os", "os/signal", "syscall", "sync", "sync/atomic", "math/rand", "math/rand/v2", "crypto/rand",
	"runtime", "context", "io/fs", "unsafe",
}

// pureCalls are functions of package time that it may not use.
var pureCalls = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// matches reports whether the path below the module fits one of the patterns.
func matches(pkg string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if p == "..." {
			return true
		}
		if base, ok := strings.CutSuffix(p, "/..."); ok {
			return pkg == base || strings.HasPrefix(pkg, base+"/")
		}
		if base, ok := strings.CutSuffix(p, "/*"); ok {
			return path.Dir(pkg) == base
		}
		return pkg == p
	})
}

// allowed returns what pkg may import of our own packages.
func allowed(pkg string) (may []string, known bool) {
	for _, r := range rules() {
		if matches(pkg, r.where) {
			return r.may, true
		}
	}
	return nil, false
}

// foreignAllowed reports whether pkg may import a package of a foreign module.
func foreignAllowed(pkg, imported string, test bool) bool {
	belongs := func(m string) bool { return imported == m || strings.HasPrefix(imported, m+"/") }
	if (test || matches(pkg, testSuites)) && slices.ContainsFunc(testModules, belongs) {
		return true
	}
	for _, f := range foreign {
		if matches(pkg, f.where) && slices.ContainsFunc(f.module, belongs) {
			return true
		}
	}
	return false
}
