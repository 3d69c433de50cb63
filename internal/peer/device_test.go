package peer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
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

// instant is a platform whose copies are done before Begin returns.
type instant struct {
	device.Platform
	device.Staging
	arrives bool
	err     error
}

func (p instant) Stage(device.Task) (device.Staging, error) { return p, nil }
func (p instant) Release()                                  {}

func (p instant) Begin(ranges []device.Range, e device.Events) {
	if p.arrives {
		e.Arrived(ranges[0].To)
	}
	e.Ended(p.err)
}

// A message whose copies have ended when its sender looks has arrived, unless the device
// failed, or stopped, before.
func TestMessageThatArrivesAtOnce(t *testing.T) {
	s := &Session{ctx: t.Context()}
	failed := errs.New(errs.DeviceFailed, "copy", errs.DeviceFailed)
	for range 64 {
		for want, p := range map[error]instant{
			nil:           {arrives: true},
			failed:        {err: failed},
			errs.Internal: {},
		} {
			back := device.Replace("instant", p)
			_, err := s.pack(t.Context(), "send", device.Buffer{Platform: "instant", Ptr: 8, Bytes: 8}, true)
			back()
			if want == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, want)
			}
		}
	}
}
