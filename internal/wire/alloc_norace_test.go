//go:build !race

package wire

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/allocs"
)

// A packet of a small operation costs one allocation, that of itself.
func TestReadAllocatesThePacket(t *testing.T) {
	raw := Append(nil, M2CCollectiveCommsCommence{Tag: 300, SeqNr: 300})
	src := bytes.NewReader(nil)
	r := bufio.NewReaderSize(src, 2<<10)
	require.EqualValues(t, 1, allocs.PerRun(100, func() {
		src.Reset(raw)
		if _, err := Read(r, M2C, MaxPacket); err != nil {
			t.Error(err)
		}
	}))
}
