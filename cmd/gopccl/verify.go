package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/determinism"
)

// newVerifyCmd returns the command that holds what is checked on a machine.
func newVerifyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check what this machine computes",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVerifyDeterminismCmd())
	return cmd
}

// determinismCheck is what the flags of gopccl verify determinism say.
type determinismCheck struct {
	benchFlags
	cpuOnly          bool
	device, elements int
	step             uint64
}

func newVerifyDeterminismCmd() *cobra.Command {
	var b determinismCheck
	cmd := &cobra.Command{
		Use:   "determinism",
		Short: "Compare the bits that processor and GPU compute",
		Long: `Compare the bits that the kernels compute: every reduce operation and type, every
quantizer and the simple hash, on each backend and hasher of this machine and on a
CUDA device, with those of cpu_generic, and these with what was recorded; square
roots, quotients and fused products, which optimizers use, on the processor. Then
exp of all 2^32 float32 patterns: on the processor beside the recorded sums, on the
device beside those of PCCL's report. The exit code is 0 if everything is equal.

A digest takes all NaNs for one. "differ" counts elements with other bits, NaN or not.`,
		Example: `  gopccl verify determinism --cpu            # without a GPU; exp takes a minute or so
  gopccl verify determinism --cpu --step 0   # without exp
  gopccl verify determinism --device 1 --json -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	fl := cmd.Flags()
	fl.BoolVar(&b.cpuOnly, "cpu", false, "compare the processor's backends alone")
	fl.IntVar(&b.device, "device", 0, "number of the CUDA device")
	fl.IntVar(&b.elements, "elements", determinism.Elements, "elements of a case; digests were recorded for the default")
	fl.Uint64Var(&b.step, "step", 1, "evaluate exp at each `N`-th pattern; 0: not at all; sums are known for 1")
	fl.StringVar(&b.json, "json", "", "write one JSON object a line to `FILE`, - for standard output, instead of a table")
	return cmd
}

func (b *determinismCheck) run(cmd *cobra.Command) (err error) {
	if b.elements < 1 || b.elements > 1<<28 {
		return verifyUsage("--elements %d: want 1 to %d", b.elements, 1<<28)
	}
	if b.step > determinism.Patterns {
		return verifyUsage("--step %d: want 0 to %d", b.step, uint64(determinism.Patterns))
	}
	list, passed, err := determinism.CPUs()
	if err != nil {
		return err
	}
	hashers, notHere := determinism.Hashers()
	passed = append(passed, notHere...)
	plan := determinism.Plan{Reference: list[0], Others: list[1:], Hashers: hashers, Elements: b.elements, Step: b.step}
	if !b.cpuOnly {
		gpu, err := openGPU(b.device)
		if err != nil {
			return fmt.Errorf("%w (--cpu compares without a device)", err)
		}
		defer func() { err = errors.Join(err, gpu.Close()) }()
		plan.Others = append(plan.Others, gpu)
	}
	plan.Rest = func(m determinism.Machine) bool { // backends share all but the arithmetic
		_, gpu := m.(*determinism.GPU)
		return gpu
	}
	if b.json == "" {
		for _, p := range passed {
			fmt.Fprintln(cmd.OutOrStdout(), "not here:", p)
		}
	}
	return verifyDeterminism(cmd.Context(), cmd, plan, &b.benchFlags)
}

func openGPU(device int) (*determinism.GPU, error) {
	d, err := cudaDriver()
	if err != nil {
		return nil, err
	}
	return determinism.OpenGPU(d, device)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func verifyUsage(format string, args ...any) error {
	return errs.New(errs.InvalidConfig, "verify determinism", fmt.Errorf(format, args...))
}

func verifyDeterminism(ctx context.Context, cmd *cobra.Command, plan determinism.Plan, f *benchFlags) (err error) {
	out, err := f.open(cmd, "check", "case", "on", "against", "elements", "value", "wanted", "differ", "NaN", "s", "")
	if err != nil {
		return err
	}
	rows, bad := 0, 0
	ok, err := plan.Run(ctx, func(r determinism.Row) error {
		rows++
		if !r.OK {
			bad++
		}
		if out.json != nil {
			return out.json.Encode(r)
		}
		verdict := "ok"
		if !r.OK {
			verdict = "DIFFERENT"
		}
		return out.row(r.Check, r.Case, r.On, dash(r.Against), strconv.FormatUint(r.Elements, 10), r.Value, dash(r.Want),
			strconv.FormatUint(r.Differ, 10), strconv.FormatUint(r.NaNs, 10), fmt.Sprintf("%.3f", r.Seconds), verdict)
	})
	if err = errors.Join(err, out.close()); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("verify determinism: %d of %d comparisons are not equal", bad, rows)
	}
	if out.json == nil {
		_, err = io.WriteString(cmd.OutOrStdout(), fmt.Sprintf("all %d comparisons are equal\n", rows))
	}
	return err
}
