package arch

import (
	"path"
	"slices"
	"strings"
)

// module is the import path of the product module.
const module = "github.com/gopccl/gopccl"

// layer0 and layer1 may be imported by nearly everybody (docs/architecture.md, "Who may import whom").
var (
	layer0 = []string{"core/dtype", "core/errs", "internal/invariants"}
	layer1 = []string{"internal/buf", "internal/wire", "core/digest", "internal/stats", "core/trace"}
	layer2 = []string{"core/backend", "core/device", "core/quant", "core/topo", "internal/transport", "internal/plan"}
	layer4 = []string{"internal/reduce", "internal/sharedstate", "core/checkpoint", "internal/probe"}
	fsms   = []string{"internal/master/fsm", "internal/peer/fsm"}
)

// rule says what the packages that match where may import of our own
// packages. Patterns are paths below the module; "x/*" is one more element,
// "x/..." is x and everything below.
type rule struct {
	where []string
	may   []string
}

// rules is the import table. A package that no rule matches is an error, and
// the first match counts.
var rules = []rule{
	// Suites that prove an implementation live beside their extension point.
	{[]string{"core/backend/backendtest", "core/quant/quanttest", "core/topo/solvertest"}, join(layer0, layer1, layer2)},
	{[]string{"internal/transport/transporttest"}, join(layer0, layer1, layer2, []string{"platform"})},
	{[]string{"platform/platformtest"}, join(layer0, []string{"platform"})},

	// Layer 0.
	{join(layer0, []string{"platform/internal/linux", "platform/internal/darwin", "platform/internal/windows"}), nil},
	// Layer 1.
	{[]string{"internal/wire", "internal/buf", "core/digest", "internal/stats", "core/trace"}, layer0},
	{[]string{"platform"}, join(layer0, []string{"platform/internal/linux", "platform/internal/darwin", "platform/internal/windows"})},
	// Layer 2: extension points, transport, plans.
	{[]string{"internal/contention"}, layer0},
	{layer2, join(layer0, layer1)},
	{[]string{"core/topo/topofile"}, join(layer0, []string{"core/topo"})},
	// Layer 3: implementations, each with its own extension point only.
	{[]string{"backends/defaults"}, []string{"backends/*"}},
	{[]string{"quantizers/defaults"}, []string{"quantizers/*"}},
	{[]string{"solvers/defaults"}, []string{"solvers/*"}},
	// The vector backends leave to the oracle what they have no kernel for.
	{[]string{"backends/internal/vectors"}, join(layer0, layer1, []string{"core/backend", "backends/cpu_generic"})},
	{[]string{"backends/cpu_avx", "backends/cpu_neon"}, join(layer0, layer1, []string{"core/backend", "backends/internal/vectors"})},
	// CUDA: the calls, the real driver, the kernels, and a driver that is none.
	{[]string{"internal/cuda/driver"}, layer0},
	{[]string{"internal/cuda/libcuda"}, join(layer0, []string{"internal/cuda/driver"})},
	{[]string{"internal/cuda/kernels"}, join(layer0, layer1, []string{"internal/cuda/driver"})},
	{[]string{"internal/cuda/ptxtest"}, join(layer0, layer1, []string{"internal/cuda/driver"})},
	{[]string{"backends/cuda"}, join(layer0, layer1, []string{"core/backend", "core/device", "internal/cuda/..."})},
	{[]string{"backends/*"}, join(layer0, layer1, []string{"core/backend"})},
	{[]string{"quantizers/*"}, join(layer0, layer1, []string{"core/quant"})},
	// Plans for sites are made on simultaneous measurements, not on a matrix alone.
	{[]string{"solvers/hierarchical"}, join(layer0, layer1, []string{"core/topo", "internal/contention"})},
	// The search that the solvers share.
	{[]string{"solvers/internal/..."}, join(layer0, layer1, []string{"core/topo", "solvers/internal/..."})},
	{[]string{"solvers/*"}, join(layer0, layer1, []string{"core/topo", "solvers/internal/..."})},
	// Layer 3: the pure machines.
	{fsms, join(layer0, []string{"internal/wire", "core/topo", "internal/plan"})},
	// Layer 4.
	{layer4, join(layer0, layer1, layer2, []string{"platform"})},
	// Layer 5: the shells.
	{[]string{"internal/master", "internal/peer"}, join(layer0, layer1, layer2, layer4, fsms, []string{"platform"})},
	// Layer 6.
	{[]string{"core"}, []string{"core/...", "internal/master", "internal/peer", "internal/sharedstate", "internal/wire", "internal/invariants", "platform"}},
	// Layer 7. The programs among the plugins are built as others' are: from what they need.
	{[]string{"plugins/moonshot", "plugins/lpexact", "plugins/absmax", "plugins/generic"}, []string{"..."}},
	{[]string{"conf"}, join(layer0, layer1, layer2, []string{"core", "platform"})},
	{[]string{"plugins/...", "internal/plugin/..."}, join(layer0, layer1, layer2, []string{"core", "platform", "core/backend/backendtest", "core/quant/quanttest", "core/topo/solvertest", "plugins/proto", "plugins/sdk", "internal/plugin/host", "internal/plugin/shm"})},
	// Layer 8: programs, bindings, examples, tests.
	{[]string{"cmd/...", "internal/determinism", "bindings/...", "examples/...", "tests/...", "tools/..."}, []string{"..."}},
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
	{[]string{"core/...", "internal/...", "backends/...", "quantizers/...", "solvers/...", "platform/..."}, []string{"golang.org/x/sys"}},
	{[]string{"conf"}, []string{"github.com/knadh/koanf", "github.com/go-viper/mapstructure", "go.yaml.in/yaml"}},
	{[]string{"cmd/..."}, []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/lmittmann/tint", "golang.org/x/sys"}},
	{[]string{"plugins/...", "internal/plugin/..."}, []string{"github.com/hashicorp/go-plugin", "github.com/hashicorp/go-hclog", "google.golang.org/grpc", "google.golang.org/protobuf", "golang.org/x/sys"}},
	{[]string{"examples/...", "tests/..."}, []string{"golang.org/x/sys"}},
}

// testModules may be imported by test files and test suites everywhere.
var testModules = []string{"github.com/stretchr/testify", "pgregory.net/rapid", "go.uber.org/goleak"}

// testSuites are packages of test code that are no _test.go files.
var testSuites = []string{
	"core/backend/backendtest", "core/quant/quanttest", "core/topo/solvertest",
	"internal/transport/transporttest", "platform/platformtest", "internal/cuda/ptxtest", "tests/...",
}

// pureForbidden are standard packages that the state machines may not import:
// they are deterministic, and know neither time nor place.
var pureForbidden = []string{
	"net", "net/http", "os", "os/signal", "syscall", "sync", "sync/atomic", "math/rand", "math/rand/v2", "crypto/rand",
	"runtime", "context", "io/fs", "unsafe",
}

// pureCalls are functions of package time that the state machines may not use.
var pureCalls = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

func join(lists ...[]string) []string { return slices.Concat(lists...) }

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
	for _, r := range rules {
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
