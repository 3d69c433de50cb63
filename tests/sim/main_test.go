package sim

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// Worlds are small and die young: collecting them seldom, and without samples of who allocated
// (-memprofile wants a -memprofilerate here), makes the seeds a third faster.
func TestMain(m *testing.M) {
	runtime.MemProfileRate = 0
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}
