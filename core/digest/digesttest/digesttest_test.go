package digesttest

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/internal/fenced"
)

// mutant computes other values where fault says so.
type mutant struct {
	fault       func(b []byte) bool
	simple, crc bool // which hash is wrong
}

func (mutant) Name() string { return "mutant" }

func (m mutant) SimpleHash(b []byte) uint32 {
	if m.simple && m.fault(b) {
		return digest.SimpleHash(b) + 1
	}
	return digest.SimpleHash(b)
}

func (m mutant) CRC32C(b []byte) uint32 {
	if m.crc && m.fault(b) {
		return digest.CRC32C(b) + 1
	}
	return digest.CRC32C(b)
}

// writer changes its buffer.
type writer struct{ mutant }

func (writer) SimpleHash(b []byte) uint32 {
	sum := digest.SimpleHash(b)
	if len(b) > 0 {
		b[len(b)-1]++
	}
	return sum
}

// cutter shares buffers out wrongly.
type cutter struct{ mutant }

func (cutter) Block(b []byte) uint32 { return uint32(len(b)) }

// Each check finds the fault that it is there for, in either hash.
func TestChecksFindFaults(t *testing.T) {
	fence := fenced.Memory(t, 4*row)
	aligned := func(b []byte) bool { return len(b) == 63 && address(b)%64 == 17 }
	for name, c := range map[string]struct {
		check func(digest.Hasher) error
		fault func(b []byte) bool
	}{
		"recorded": {checkRecorded, func(b []byte) bool { return len(b) == 4113 }},
		"text":     {checkText, func(b []byte) bool { return len(b) == 4199 }},
		"long":     {checkLong, func(b []byte) bool { return len(b) == edge+16 }},
		"address":  {checkAddresses, aligned},
		"types":    {checkTypes, func(b []byte) bool { return len(b) == 2*3001 }},
		"fences":   {func(h digest.Hasher) error { return checkFences(h, fence) }, func(b []byte) bool { return len(b) == 53*77 }},
	} {
		require.NoError(t, c.check(mutant{}), name)
		require.ErrorContains(t, c.check(mutant{fault: c.fault, simple: true}), "SimpleHash", name)
		require.ErrorContains(t, c.check(mutant{fault: c.fault, crc: true}), "CRC-32C", name)
	}
	require.NoError(t, checkUnchanged(mutant{}))
	require.Error(t, checkUnchanged(writer{}))
	require.NoError(t, checkSharedOut(mutant{}))
	require.ErrorContains(t, checkSharedOut(cutter{}), "workers")
	require.ErrorContains(t, checkSharedOut(mutant{crc: true, fault: func(b []byte) bool { return len(b) == 1<<20 }}), "CRC-32C")
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
