// Package process starts the child processes of tests and measurements, hears
// what they report, and ends them with their parent, however that one ends.
package process

// Starter is the function of the goroutine from which children are started: it stays on
// purpose.
const Starter = "github.com/gopccl/gopccl/tests/internal/process.start"
