package sim

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// Worlds are small and die young: collecting them as seldom as memory allows, and without
// samples of who allocated, makes the seeds a third faster.
func TestMain(m *testing.M) {
	runtime.MemProfileRate = 0
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}
