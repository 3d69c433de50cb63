package device

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/cudatest"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// Messages go from device to device, and between devices and hosts, small and large, in
// their order.
func TestMessages(t *testing.T) {
	c := newCard(t, 2, device.Settings{})
	comms := members(t, 2, nil)
	rng := rand.New(rand.NewPCG(6, 6))
	for _, size := range []int{0, 4, 5000, 300_004} {
		for form := range 4 { // which ends are on a device
			first, second := floats(rng, size/4), floats(rng, size/4)
			room := [2][]byte{make([]byte, size), make([]byte, size)}
			x, y := c.put(0, append(bytes.Clone(first), 1)), c.put(1, append(bytes.Clone(room[0]), 1))
			on := func(b core.DeviceBuffer) core.DeviceBuffer {
				b.Bytes = size
				return b
			}
			each(t, 2, func(i int) error {
				var list []*core.Transfer
				for k := range 2 {
					begin, m := comms[i].SendAsync, core.MessageOf(1-i, 9, [][]byte{first, second}[k])
					if i == 1 {
						begin, m.Data = comms[i].ReceiveAsync, room[k]
					}
					if k == 0 && form>>i&1 == 1 {
						m = core.MessageOnDevice(1-i, 9, on([]core.DeviceBuffer{x, y}[i]))
					}
					tr, err := begin(t.Context(), m)
					if err != nil {
						return err
					}
					list = append(list, tr)
				}
				for _, tr := range list {
					if from, err := tr.Wait(t.Context()); err != nil || from != 1-i {
						return err
					}
				}
				return nil
			})
			if form>>1&1 == 1 {
				room[0] = c.get(on(y))
			}
			require.True(t, bytes.Equal(first, room[0]), "%d bytes, form %d", size, form)
			require.True(t, bytes.Equal(second, room[1]), "%d bytes, form %d", size, form)
			c.free(x, y)
		}
	}
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	c.close()
}

// A message that fails writes nothing to the device, and leaves nothing there: one that is
// given up, one of another size, one whose own device is late, bad ones.
func TestMessagesThatFail(t *testing.T) {
	c := newCard(t, 1, device.Settings{})
	only := cudatest.Interpreter(t, c.d)
	comms := members(t, 2, nil)
	given := floats(rand.New(rand.NewPCG(7, 7)), 50_000)
	x, y := c.put(0, given), c.put(0, given)

	tr, err := comms[0].ReceiveAsync(t.Context(), core.MessageOnDevice(1, 1, x))
	require.NoError(t, err)
	tr.Cancel()
	_, err = tr.Wait(t.Context())
	require.ErrorIs(t, err, errs.Canceled)

	each(t, 2, func(i int) error {
		m := core.MessageOnDevice(1-i, 2, []core.DeviceBuffer{x, y}[i])
		var err error
		if i == 0 {
			_, err = comms[i].Receive(t.Context(), m)
		} else {
			m.Device.Bytes /= 2
			err = comms[i].Send(t.Context(), m)
		}
		require.ErrorIs(t, err, errs.Mismatch)
		return nil
	})

	release := only.Hold(driver.Stream(x.Stream))
	for _, begin := range []func(context.Context, core.Message) (*core.Transfer, error){comms[0].SendAsync, comms[0].ReceiveAsync} {
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		before := c.d.Calls()["cuEventQuery"]
		go func() {
			_, err := begin(ctx, core.MessageOnDevice(1, 3, x))
			over <- err
		}()
		require.Eventually(t, func() bool { return c.d.Calls()["cuEventQuery"] > before }, patience, 1)
		cancel()
		require.ErrorIs(t, <-over, errs.Canceled)
	}
	release()

	for want, m := range map[string]core.Message{
		"buffers of host and device are both given": {Peer: 1, Data: given, Device: x},
		`nothing serves "rocm" memory`:              {Peer: 1, Device: core.DeviceBuffer{Platform: "rocm", Ptr: 8, Bytes: 8}},
		"the allocation ends":                       {Peer: 1, Device: window{0, 1 << 30}.on(x)},
	} {
		err := comms[0].Send(t.Context(), m)
		require.ErrorIs(t, err, errs.InvalidArgument)
		require.ErrorContains(t, err, want)
		_, err = comms[0].Receive(t.Context(), m)
		require.ErrorContains(t, err, want)
	}
	require.True(t, bytes.Equal(given, c.get(x)))
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	c.free(x, y)
	c.close()
}

// A device that fails while it takes a message fails the receive, and says so.
func TestDeviceFailsInAMessage(t *testing.T) {
	c := newCard(t, 1, device.Settings{})
	only := cudatest.Interpreter(t, c.d)
	comms := members(t, 2, nil)
	given := floats(rand.New(rand.NewPCG(8, 8)), 50_000)
	x := c.put(0, given)
	require.True(t, bytes.Equal(given, c.get(x)))
	tr, err := comms[0].ReceiveAsync(t.Context(), core.MessageOnDevice(1, 1, x))
	require.NoError(t, err)
	only.Fault(1, driver.LaunchFailed)
	require.NoError(t, comms[1].Send(t.Context(), core.MessageOf(0, 1, given)))
	_, err = tr.Wait(t.Context())
	require.ErrorIs(t, err, errs.DeviceFailed)
	require.ErrorContains(t, err, "receive")
	for _, comm := range comms {
		require.NoError(t, comm.Close())
	}
	require.NoError(t, c.p.Close())
}
