//go:build arm64 && !noasm

package digest

import "github.com/gopccl/gopccl/core/dtype"

// byVector is a variable for the tests. Every processor has the instructions.
var byVector = true

const (
	vectorName  = "cpu_neon"
	vectorNeeds = "Advanced SIMD"
)

// mixRowsByVector takes whole rows of b into acc and returns how many.
func mixRowsByVector(acc *[threads]uint32, b []byte) int {
	rows := len(b) / rowSize
	if rows == 0 {
		return 0
	}
	dtype.RaceRead(b[:rows*rowSize])
	mixRowsNEON(acc, &b[0], rows)
	return rows
}
