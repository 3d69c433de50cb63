//go:build invariants

// Package invariants holds internal checks that the build tag `invariants`
// switches on (tests, CI) and that compile to nothing without it.
package invariants

import "fmt"

// Enabled is a constant, so guarded code compiles away.
const Enabled = true

// Check panics with the formatted message if ok is false.
func Check(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant violated: " + fmt.Sprintf(format, args...))
	}
}
