// Package sdk turns a ring solver, a quantizer or a reduce backend into a
// plugin: a program that a gopccl host starts and talks to (docs/plugins.md).
//
//	func main() { sdk.ServeSolver(mySolver{}) }
//
// A plugin ends when its host does, however that happens. What it prints
// appears in the host's log under the plugin's name.
package sdk

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/gopccl/gopccl/plugins/proto"
)

// serve runs the plugin until the host ends it. Started by hand it says what
// it is and exits with 1.
func serve(kind string, register func(*grpc.Server)) {
	if os.Getenv(proto.Handshake.MagicCookieKey) != proto.Handshake.MagicCookieValue {
		fmt.Fprintf(os.Stderr, "%s is a %s plugin of gopccl: name it in the configuration (gopccl config defaults shows how), or try\n  gopccl plugins check %s\n",
			os.Args[0], kind, os.Args[0])
		os.Exit(1)
	}
	if os.Getenv(proto.EnvWatch) == "stdin" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}
	if n, err := strconv.ParseInt(os.Getenv(proto.EnvMemory), 10, 64); err == nil && n > 0 {
		debug.SetMemoryLimit(n / 10 * 8) // collect garbage rather than be killed by the host
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: proto.Handshake,
		Plugins:         plugin.PluginSet{kind: proto.Service{Register: register}},
		Logger:          hclog.NewNullLogger(),
		GRPCServer: func(o []grpc.ServerOption) *grpc.Server {
			// A matrix of many peers exceeds gRPC's 4 MiB.
			return grpc.NewServer(append(o, grpc.MaxRecvMsgSize(16*proto.MaxPeers*proto.MaxPeers))...)
		},
	})
	os.Exit(0)
}
