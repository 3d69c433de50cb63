// Command generic is a reduce backend plugin: the built-in cpu_generic in a
// process of its own, to show how one is made and to test that they work.
//
//	plugins:
//	  - {name: beside, kind: backend, command: generic}
//	data:
//	  backend: beside
package main

import (
	"fmt"
	"os"

	generic "github.com/gopccl/gopccl/backends/cpu_generic"
	"github.com/gopccl/gopccl/plugins/sdk"
)

func main() {
	b, err := generic.Driver{}.New()
	if err != nil {
		fmt.Fprintln(os.Stderr, "generic:", err)
		os.Exit(1)
	}
	sdk.ServeBackend(b, 0)
}
