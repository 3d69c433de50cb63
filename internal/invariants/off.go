//go:build !invariants

// Package invariants holds internal checks that the build tag `invariants`
// switches on (tests, CI) and that compile to nothing without it.
package invariants

// Enabled is a constant, so guarded code compiles away.
const Enabled = false

// Check does nothing in this build.
func Check(bool, string, ...any) {}
