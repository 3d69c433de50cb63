//go:build linux

package cabi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a program says of heartbeats counts where neither the configuration nor the
// environment says anything.
func TestDefaultHeartbeat(t *testing.T) {
	program := compileWith(t, "libgopccl.so", "heartbeat.c")
	const (
		usual = "  heartbeats every 2s, who is silent for 8s is dropped\n"
		said  = "  heartbeats every 500ms, who is silent for 1.5s is dropped\n"
		long  = "  heartbeats every 3s, who is silent for 8s is dropped\n"
		short = "  heartbeats every 2s, who is silent for 5s is dropped\n"
	)
	for want, env := range map[string][]string{
		usual + said:  nil,
		long + long:   {"GOPCCL_MASTER_HEARTBEAT_INTERVAL=3s"},
		short + short: {"GOPCCL_MASTER_HEARTBEAT_TIMEOUT=5s"},
	} {
		out, _ := execute(t, env, program, port(), port())
		require.Equal(t, want, out)
	}
}
