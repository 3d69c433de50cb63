//go:build unix

package main

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
	"github.com/gopccl/gopccl/tests/internal/process"
)

func init() {
	testDrivers["frozen"] = func() (driver.Driver, error) { return frozen{ptxtest.New(ptxtest.Options{})}, nil }
}

// frozen is a device that stops the whole process, its watchdog included.
type frozen struct{ *ptxtest.Device }

func (f frozen) Retain(int) (driver.Context, error) {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return 0, err
	}
	return 0, process.Pause(self)
}

// A process in which not even the watchdog runs is ended from outside.
func TestAFrozenPartIsEnded(t *testing.T) {
	var out bytes.Buffer
	a := assignment{Part: "hash", Driver: "frozen", Small: true, Limit: time.Second, Patience: 100 * time.Millisecond}
	err := a.start(t.Context(), func(message) {}, &out)
	require.ErrorContains(t, err, "it has not ended within 1s")
}
