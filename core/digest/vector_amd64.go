//go:build amd64 && !noasm

package digest

import (
	"golang.org/x/sys/cpu"

	"github.com/gopccl/gopccl/core/dtype"
)

// byVector is a variable for the tests.
var byVector = cpu.X86.HasAVX2

const (
	vectorName  = "cpu_avx"
	vectorNeeds = "AVX2"
)

// mixRowsByVector takes whole rows of b into acc, which is all zeros, and
// returns how many.
func mixRowsByVector(acc *[threads]uint32, b []byte) int {
	rows := len(b) / rowSize
	if rows == 0 {
		return 0
	}
	dtype.RaceRead(b[:rows*rowSize])
	mixRowsAVX2(acc, &b[0], rows)
	for i := 0; i < threads; i += 8 {
		a := (*[8]uint32)(acc[i:])
		*a = [8]uint32{a[0], a[4], a[1], a[5], a[2], a[6], a[3], a[7]}
	}
	return rows
}
