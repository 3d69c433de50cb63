package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and what the program was built with",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			version, commit, system := "(devel)", "", ""
			if info, ok := debug.ReadBuildInfo(); ok {
				if info.Main.Version != "" {
					version = info.Main.Version
				}
				for _, s := range info.Settings {
					switch s.Key {
					case "vcs.revision":
						commit = " commit " + s.Value
					case "GOOS":
						system = s.Value + system
					case "GOARCH":
						system += "/" + s.Value
					}
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "gopccl %s%s, protocol CCoIP of PCCL 1.0.0, %s %s\n",
				version, commit, runtime.Version(), system)
			return nil
		},
	}
}
