//go:build arm64 && !noasm

package digest

import "github.com/gopccl/gopccl/core/dtype"

// byVector is a variable for the tests, which compare both ways. Every
// processor has the instructions.
var byVector = true

// mixRowsByVector takes whole rows of b into acc and returns how many.
func mixRowsByVector(acc *[threads]uint32, b []byte) int {
	rows := len(b) / rowSize
	if !byVector || rows == 0 {
		return 0
	}
	dtype.RaceRead(b[:rows*rowSize])
	mixRowsNEON(acc, &b[0], rows)
	return rows
}
