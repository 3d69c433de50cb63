package main

import "github.com/spf13/cobra"

// newBenchCmd returns the command that holds the measurements.
func newBenchCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "bench",
		Short: "Measure all-reduce, shared state and hashing",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}
