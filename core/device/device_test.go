package device_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
)

// fake knows the addresses from 100 to 199.
type fake struct{ device.Platform }

func (fake) Configure(s device.Settings) error {
	if s.Reduce == "abacus" {
		return errs.InvalidConfig
	}
	return nil
}

func (fake) Identify(ptr uint64) (int, bool) { return 3, ptr/100 == 1 }

// A buffer that nothing serves is an error that says what is missing.
func TestUnserved(t *testing.T) {
	_, err := device.Lookup(device.CUDA)
	require.ErrorIs(t, err, errs.InvalidArgument)
	require.ErrorContains(t, err, `nothing serves "cuda" memory in this program`)
	require.ErrorContains(t, err, "build it without the tag nocuda")
	_, err = device.Lookup("abacus")
	require.ErrorContains(t, err, "import the platform's package")
	_, ok := device.Identify(1, 4)
	require.False(t, ok)
}

func TestRegistry(t *testing.T) {
	device.Register("one", fake{})
	require.Panics(t, func() { device.Register("one", fake{}) })
	require.Panics(t, func() { device.Register("", fake{}) })
	back := device.Replace("two", fake{})
	require.Equal(t, []string{"one", "two"}, device.Names())
	back()
	require.Equal(t, []string{"one"}, device.Names())
	back = device.Replace("one", fake{})
	back()
	p, err := device.Lookup("one")
	require.NoError(t, err)
	require.Equal(t, fake{}, p)

	b, ok := device.Identify(150, 8)
	require.True(t, ok)
	require.Equal(t, device.Buffer{Platform: "one", Ptr: 150, Bytes: 8, Device: 3}, b)
	require.Equal(t, "8 bytes at 0x96 of one device 3", b.String())
	_, ok = device.Identify(50, 8)
	require.False(t, ok)

	require.NoError(t, device.Configure(device.Settings{Reduce: "host"}))
	require.ErrorIs(t, device.Configure(device.Settings{Reduce: "abacus"}), errs.InvalidConfig)

	require.True(t, device.Buffer{}.None())
	require.Equal(t, "no device memory", device.Buffer{}.String())
	b.Device = device.Any
	require.Equal(t, "8 bytes at 0x96 of one", b.String())
}
