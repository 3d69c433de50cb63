// Package allocs counts the allocations of a function in tests.
//
// testing.AllocsPerRun counts those of the whole process. A plugin's host asks
// for its health now and then, and a runtime timer or a connection of another
// test may fall into the measurement, too. What the function itself allocates
// it allocates every time.
package allocs

import "testing"

// tries bounds how often others may disturb a measurement.
const tries = 5

// PerRun returns the average number of allocations of runs calls of f, as
// testing.AllocsPerRun does, in the least disturbed of a few measurements. f is
// called once before each of them.
func PerRun(runs int, f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for try := 1; try < tries && least > 0; try++ {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}
