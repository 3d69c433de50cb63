package kernels

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

var entry = regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`)

// The names that are launched are those in the PTX, which asks for no newer
// driver and device than promised.
func TestFiles(t *testing.T) {
	for _, f := range Files() {
		var found []string
		for _, m := range entry.FindAllSubmatch(f.PTX, -1) {
			found = append(found, string(m[1]))
		}
		require.ElementsMatch(t, f.Kernels, found, f.Name)
		require.Contains(t, string(f.PTX), "\n.version 6.0\n.target sm_52\n.address_size 64\n")
		require.NotContains(t, string(f.PTX), ".local")
		if f.Name == Verification { // CUDA's own expf fuses
			continue
		}
		require.NotContains(t, string(f.PTX), "fma", "a product and a sum were contracted in %s", f.Name)
	}
}

// recorder is a driver that knows every kernel and writes down launches.
type recorder struct {
	driver.Driver
	names    []string
	loaded   int
	refuse   string // kernel that is not there
	launched []string
}

func (r *recorder) DeviceAttribute(a driver.Attribute, device int) (int, error) {
	if device != 3 {
		return 0, &driver.Error{Call: "cuDeviceGetAttribute", Device: device, Result: driver.InvalidDevice}
	}
	return 2, nil
}

func (r *recorder) ModuleLoad([]byte) (driver.Module, string, error) {
	if r.refuse == "module" {
		return 0, "line 1: nonsense", &driver.Error{Call: "cuModuleLoadDataEx", Device: 3, Result: driver.UnsupportedPTX}
	}
	r.loaded++
	return driver.Module(r.loaded), "", nil
}

func (r *recorder) ModuleUnload(driver.Module) error { r.loaded--; return nil }

func (r *recorder) Function(_ driver.Module, name string) (driver.Function, error) {
	if name == r.refuse {
		return 0, &driver.Error{Call: "cuModuleGetFunction", Device: 3, Result: driver.NotFound}
	}
	r.names = append(r.names, name)
	return driver.Function(len(r.names)), nil
}

func (r *recorder) Launch(f driver.Function, grid, block driver.Dim, shared uint32, s driver.Stream, args []byte) error {
	r.launched = append(r.launched, fmt.Sprintf("%s<%d,%d,%d,%d>(%x)", r.names[f-1], grid.X, block.X, shared, s, args))
	return nil
}

func loaded(t *testing.T) (*Set, *recorder) {
	r := &recorder{}
	k, err := Load(r, 3)
	require.NoError(t, err)
	require.Len(t, Files(), r.loaded)
	t.Cleanup(func() {
		require.NoError(t, k.Unload())
		require.Zero(t, r.loaded)
	})
	return k, r
}

// A device that does not take the kernels keeps none of them.
func TestLoadFails(t *testing.T) {
	for _, refuse := range []string{"module", hashFinish} {
		r := &recorder{refuse: refuse}
		_, err := Load(r, 3)
		var e *driver.Error
		require.ErrorAs(t, err, &e, refuse)
		require.Zero(t, r.loaded, refuse)
		if refuse == "module" {
			require.ErrorContains(t, err, "line 1: nonsense")
			require.ErrorContains(t, err, "update the NVIDIA driver")
		}
	}
	_, err := Load(&recorder{}, 4)
	require.ErrorIs(t, err, &driver.Error{Result: driver.InvalidDevice})
}

// Parameters are packed as the kernels take them; a grid is as large as the
// work, and not larger than what the device runs at once.
func TestLaunches(t *testing.T) {
	k, r := loaded(t)
	require.NoError(t, k.Reduce(dtype.Float32, dtype.Avg, 0x1000, 0x2000, 0x3000, 5, 7))
	require.NoError(t, k.Reduce(dtype.Int8, dtype.Prod, 0x1000, 0x2000, 0x3001, 257, 0))
	require.NoError(t, k.Reduce(dtype.Int8, dtype.Max, 0x1001, 0x2001, 0x3001, 1<<33, 0))
	require.NoError(t, k.Finalize(dtype.BFloat16, 0x1002, 9, 3, 2))
	require.NoError(t, k.Finalize(dtype.BFloat16, 0x1002, 9, 1, 2))
	require.NoError(t, k.Reduce(dtype.Float64, dtype.Sum, 0x1000, 0x2000, 0x3000, 0, 7))
	require.NoError(t, k.Hash(0x10, 0x20, 0x31, 16*256*3+21, 1))
	require.NoError(t, k.Hash(0x10, 0x20, 0, 0, 1))
	require.NoError(t, k.Hash(0x10, 0x20, 0x7f0000000000, 1<<40+1, 1))
	require.Equal(t, []string{
		"reduce_sum_float32<1,256,0,7>(0010000000000000002000000000000000300000000000000500000000000000)",
		"reduce_prod_uint8<2,256,0,0>(0010000000000000002000000000000001300000000000000101000000000000)",
		"reduce_max_int8<16,256,0,0>(0110000000000000012000000000000001300000000000000000000002000000)",
		"finalize_bfloat16<1,256,0,2>(0210000000000000090000000000000003000000)",
		"hash_blocks<4,256,0,1>(200000000000000031000000000000000103000000000000c100000000000000)",
		"hash_finish<1,256,0,1>(1000000000000000200000000000000004000000000000004130000000000000" + "05000000)",
		"hash_finish<1,256,0,1>(1000000000000000200000000000000000000000000000000000000000000000" + "00000000)",
		"hash_blocks<960,256,0,1>(200000000000000000000000007f000000000000100000004544440400000000)",
		"hash_finish<1,256,0,1>(10000000000000002000000000000000c0030000000000000000000000800000" + "01000000)",
	}, r.launched)
}

// What no kernel computes is refused, and nothing is launched.
func TestBadArguments(t *testing.T) {
	k, r := loaded(t)
	for _, err := range []error{
		k.Reduce(dtype.NumTypes, dtype.Sum, 0, 0, 0, 1, 0),
		k.Reduce(dtype.Float32, dtype.Set, 0, 0, 0, 1, 0),
		k.Reduce(dtype.Float32, dtype.NumOps, 0, 0, 0, 1, 0),
		k.Reduce(dtype.Float32, dtype.Sum, 0x1000, 0x1000, 0x1002, 1, 0),
		k.Finalize(dtype.NumTypes, 0, 1, 2, 0),
		k.Finalize(dtype.Int16, 0x1001, 1, 2, 0),
		k.Finalize(dtype.Int16, 0x1000, 1, 1<<31, 0),
	} {
		require.ErrorIs(t, err, errs.InvalidArgument)
	}
	require.Empty(t, r.launched)
	require.False(t, slices.Contains(r.names, ""))
}
