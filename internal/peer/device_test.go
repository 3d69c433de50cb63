package peer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/peer/fsm"
)

// Arguments about device memory have to make sense before any peer votes.
func TestDeviceArguments(t *testing.T) {
	dev := device.Buffer{Platform: device.CUDA, Ptr: 4096, Bytes: 16}
	for _, c := range []struct {
		r    Reduce
		want string
	}{
		{Reduce{DeviceSrc: dev, DeviceDst: dev}, ""},
		{Reduce{DeviceSrc: dev, Dst: make([]byte, 16)}, "source (cuda) and destination (host) are not both on a device"},
		{Reduce{Src: make([]byte, 16), DeviceDst: dev}, "source (host) and destination (cuda) are not both on a device"},
		{Reduce{Src: make([]byte, 16), Dst: make([]byte, 16), DeviceSrc: dev, DeviceDst: dev}, "buffers of host and device are both given"},
		{Reduce{DeviceSrc: dev, DeviceDst: device.Buffer{Platform: device.CUDA, Ptr: 1, Bytes: 8}}, "source has 16 bytes, destination 8"},
		{Reduce{DeviceSrc: device.Buffer{Platform: device.CUDA, Bytes: 7}, DeviceDst: device.Buffer{Platform: device.CUDA, Bytes: 7}}, "7 bytes are not a whole number of float32 elements"},
	} {
		c.r.DType, c.r.Op = dtype.Float32, dtype.Sum
		err := check(c.r, &fsm.View{})
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, c.want)
	}
}
