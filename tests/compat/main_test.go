// Package compat runs gopccl together with the original PCCL 1.0.0: masters and
// peers of both, in all mixtures, in one run.
package compat

import (
	"flag"
	"os"
	"testing"
)

// driverEnv makes the test binary a child that speaks the line protocol of package pccl.
const driverEnv = "GOPCCL_COMPAT_DRIVER"

func TestMain(m *testing.M) {
	if os.Getenv(driverEnv) != "" {
		os.Exit(runDriver())
	}
	flag.Parse()
	// The worlds wait for each other's ten second measurements far more than they compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
