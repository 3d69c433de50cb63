package main

import (
	"bufio"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
	"github.com/gopccl/gopccl/internal/determinism"
)

func TestVerifyDeterminismOfTheProcessor(t *testing.T) {
	code, out, errOut := gopccl(t, "verify", "determinism", "--cpu", "--step", "65536")
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "comparisons are equal")
	require.NotContains(t, out, "DIFFERENT")
	require.Regexp(t, `hash +long +hasher cpu_generic .* ok`, out)

	code, out, errOut = gopccl(t, "verify", "determinism", "--cpu", "--elements", "64", "--step", "4194304", "--json", "-")
	require.Equal(t, exitOK, code, errOut)
	checks := map[string]int{}
	lines := bufio.NewScanner(strings.NewReader(out))
	for lines.Scan() {
		var r determinism.Row
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		checks[r.Check]++
		require.True(t, r.OK)
	}
	require.Len(t, checks, 6)
	require.Equal(t, 5, checks["exp"]) // S0-22
	require.GreaterOrEqual(t, checks["reduce"], 60)
}

func TestVerifyDeterminismRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"--elements 0":      {"--elements", "0"},
		"--step 5000000000": {"--step", "5000000000"},
	} {
		code, _, errOut := gopccl(t, append([]string{"verify", "determinism", "--cpu"}, args...)...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, errOut, want)
	}
	// Without a driver: what is missing, and what to do.
	code, out, errOut := gopccl(t, "verify", "determinism", "--step", "0")
	require.Equal(t, exitFailed, code)
	require.Empty(t, out)
	require.Regexp(t, "(?i)open cuda", errOut)
	require.Contains(t, errOut, "--cpu compares without a device")
}

// The whole command on a device that the interpreter stands for.
func TestVerifyDeterminismOfADevice(t *testing.T) {
	d := ptxtest.New(ptxtest.Options{})
	system := cudaDriver
	cudaDriver = func() (driver.Driver, error) { return d, nil }
	t.Cleanup(func() { cudaDriver = system })

	code, out, errOut := gopccl(t, "verify", "determinism", "--step", "4194304", "--elements", "40")
	require.Equal(t, exitOK, code, errOut)
	require.Contains(t, out, "comparisons are equal")
	require.Regexp(t, `exp +NaN +cuda:0 .* NaN inputs`, out) // S0-22
	require.Regexp(t, `reduce +prod bfloat16 +cuda:0 .* ok`, out)

	code, _, errOut = gopccl(t, "verify", "determinism", "--device", "77")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "there is no device 77: this machine has 1")
	require.Contains(t, errOut, "nvidia-smi")
	require.Equal(t, ptxtest.Counts{}, d.Live())
}
