package process

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// Machine says in words what this program runs on.
func Machine() string {
	cpu := ""
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				cpu = ", " + strings.TrimLeft(strings.TrimSpace(name), ": \t")
				break
			}
		}
	}
	system := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "GOOS" || s.Key == "GOARCH" {
				system += s.Value + " "
			}
		}
	}
	return fmt.Sprintf("%s%d cores%s, loopback, %s", system, runtime.NumCPU(), cpu, runtime.Version())
}
