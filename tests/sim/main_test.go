package sim

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// Worlds are small and die young: they are collected seldom, and nothing samples who allocated
// them, which -memprofile has to ask for with -memprofilerate.
func TestMain(m *testing.M) {
	runtime.MemProfileRate = 0
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}
