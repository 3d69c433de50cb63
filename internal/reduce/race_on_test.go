//go:build race

package reduce

// raceEnabled: the race detector makes sync.Pool forget at random, so
// allocations of the standard library cannot be counted.
const raceEnabled = true
