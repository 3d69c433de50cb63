// Package pccl runs the original PCCL 1.0.0 as child processes, so that tests
// and benchmarks can put its masters and peers next to ours.
//
// Every process obeys one line protocol, described in original/driver.c: a C
// driver speaks it for the original library, and a test may start programs of
// its own that speak it too (Command). Numbers in the protocol are those of
// PCCL's public C enums.
package pccl

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed original/driver.c
var driverSource []byte

// Dir returns the directory that original/setup.sh prepares: $GOPCCL_ORIGINAL,
// or gopccl/original in the user's cache directory.
func Dir() (string, error) {
	if d := os.Getenv("GOPCCL_ORIGINAL"); d != "" {
		return d, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "gopccl", "original"), nil
}

// Find returns the prepared directory; ok is false where the original library
// has not been set up, or cannot be.
func Find() (dir string, ok bool) {
	dir, err := Dir()
	if err != nil {
		return "", false
	}
	for _, f := range []string{"ready", "run", filepath.Join("lib", "libpccl.so")} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			return dir, false
		}
	}
	return dir, true
}

const missing = "the original PCCL library is not set up in %s; run tools/ci/original.sh (about 10 seconds)"

// Require returns a Driver of the original library. Without the library the
// test fails in CI (CI=true) and is skipped elsewhere, and where the library was
// not published for this system; make test lists what was skipped.
func Require(t testing.TB) *Driver {
	t.Helper()
	dir, ok := Find()
	if !ok {
		if !published {
			t.Skip("only on Linux on x86-64, for which the original PCCL library was published")
		}
		if os.Getenv("CI") == "true" {
			t.Fatalf(missing, dir)
		}
		t.Skipf(missing, dir)
	}
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Driver is the compiled C driver of a prepared directory.
type Driver struct {
	run, program string
}

// Open compiles the driver in the prepared directory dir, unless it lies there
// already. It needs gcc. Several processes may do it at once.
func Open(dir string) (*Driver, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(driverSource)
	d := &Driver{
		run:     filepath.Join(dir, "run"),
		program: filepath.Join(dir, "driver-"+hex.EncodeToString(sum[:6])),
	}
	if _, err := os.Stat(d.program); err == nil {
		return d, nil
	}
	tmp, err := os.MkdirTemp(dir, "build")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	source, built := filepath.Join(tmp, "driver.c"), filepath.Join(tmp, "driver")
	if err := os.WriteFile(source, driverSource, 0o600); err != nil {
		return nil, err
	}
	// The library's own needs are met when it is run, not when the driver is linked.
	gcc := exec.Command("gcc", "-std=gnu11", "-O2", "-o", built, source,
		filepath.Join(dir, "lib", "libpccl.so"), "-Wl,--allow-shlib-undefined")
	if out, err := gcc.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the driver of the original library: %w\n%s", err, out)
	}
	if err := os.Rename(built, d.program); err != nil {
		return nil, err
	}
	return d, nil
}

// Command returns the command that starts the driver, with the pid of the
// driver itself. Bandwidth tests use one connection instead of sixteen.
func (d *Driver) Command() *exec.Cmd {
	cmd := exec.Command(d.run, d.program)
	cmd.Env = append(os.Environ(), "PCCL_NUM_BENCHMARK_CONNECTIONS=1")
	return cmd
}
