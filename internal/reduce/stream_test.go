package reduce

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files of the connections name no operation and no plan: another collective
// brings a source and a sink, and they stay as they are.
func TestConnectionsKnowNoCollective(t *testing.T) {
	for _, name := range []string{"sender.go", "receiver.go", "gauge.go", "ping.go", "thread.go", "use.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				require.NotContains(t, []string{"Op", "Spec", "plan", "dtype", "quant"}, id.Name, "in %s", name)
			}
			return true
		})
	}
}
