package main

import "github.com/spf13/cobra"

// newTopologyCmd returns the command that holds what is about rings.
func newTopologyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Bandwidths between peers, and the fastest ring",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTopologyMeasureCmd(), newTopologyShowCmd(), newTopologySolveCmd(), newTopologyExplainCmd())
	return cmd
}
