// Package cudatest gives tests of CUDA a device: the interpreter of package
// ptxtest, or, with GOPCCL_GPU=1, the machine's own. So a test binary that was
// built with go test -c shows on a machine with a GPU what it shows here on
// every machine.
package cudatest

import (
	"os"
	"testing"

	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// Variable is the environment variable that chooses: "1" is the device of the
// system's driver, "interpreter" the interpreter behind what counts the calls of
// that driver, which shows that tests need no more than both have. Anything else
// is the interpreter itself.
const Variable = "GOPCCL_GPU"

// Device is a driver that counts, and fails on demand: what package ptxtest
// says of its own.
type Device interface {
	driver.Driver
	Live() ptxtest.Counts
	Calls() map[string]int
	Launches() map[string]int
	Copied() (toHost, toDevice int)
	Fail(call string, nth int, r driver.Result)
}

// Interpreter returns d for what the interpreter alone can do. A test that needs
// it is skipped on a device; it asks at its beginning.
func Interpreter(t testing.TB, d Device) *ptxtest.Device {
	t.Helper()
	i, ok := d.(*ptxtest.Device)
	if !ok {
		t.Skip("only the interpreter can do this")
	}
	return i
}

// Devices returns how many of n devices there are: fewer, but at least one, only
// with those of the system.
func Devices(t testing.TB, n int) int {
	t.Helper()
	if os.Getenv(Variable) != "1" {
		return n
	}
	have, err := opened(t, ptxtest.Options{}).Devices()
	if err != nil || have == 0 {
		t.Fatalf("%s=1: no device: %v", Variable, err)
	}
	return min(n, have)
}

// Open returns a machine that is as o says, as far as it can be chosen. With a
// device of the system the test is skipped if that has fewer devices, and what o
// says of the interpreter's own ways is ignored.
func Open(t testing.TB, o ptxtest.Options) Device {
	t.Helper()
	d := opened(t, o)
	if i, ok := d.(*ptxtest.Device); ok && os.Getenv(Variable) != "interpreter" {
		return i
	}
	n, err := d.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if n < o.Devices {
		t.Skipf("needs %d devices; this machine has %d", o.Devices, n)
	}
	return count(d)
}

// opened returns the driver that the environment asks for.
func opened(t testing.TB, o ptxtest.Options) driver.Driver {
	t.Helper()
	if os.Getenv(Variable) != "1" {
		return ptxtest.New(o)
	}
	d, err := system()
	if err != nil {
		t.Fatalf("%s=1: %v", Variable, err)
	}
	return d
}
