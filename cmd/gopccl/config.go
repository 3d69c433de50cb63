package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gopccl/gopccl/conf"
)

// configFlags maps flags of their own to the settings they stand for; any
// setting can be given with --set.
var configFlags = map[string]string{
	"log-format": "log.format",
	"log-level":  "log.level",
	"listen":     "master.listen",
	"master":     "peer.master",
	"credential": "security.credential",
	"join":       "security.join",
	"enroll":     "master.enroll",
	"state":      "master.state",
	"peers":      "master.peers",
	"self":       "master.self",
	"etcd":       "master.etcd",
}

func addConfigFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringArray("config", nil, "configuration `FILE`, may be repeated (default: the file named by GOPCCL_CONFIG, if set)")
	f.StringArray("set", nil, "set `KEY=VALUE`, such as peer.pool_size=4; may be repeated")
	f.String("log-format", "", "auto, text or json")
	f.String("log-level", "", "debug, info, warn or error")
}

// loadConfig reads the configuration that holds for a command line.
func loadConfig(cmd *cobra.Command) (*conf.Config, error) {
	files, err := cmd.Flags().GetStringArray("config")
	if err != nil {
		return nil, err
	}
	if name := os.Getenv("GOPCCL_CONFIG"); len(files) == 0 && name != "" {
		files = []string{name}
	}
	sets, err := cmd.Flags().GetStringArray("set")
	if err != nil {
		return nil, err
	}
	var flags []conf.Flag
	for _, s := range sets {
		key, value, _ := strings.Cut(s, "=")
		flags = append(flags, conf.Flag{Name: "--set " + key, Key: key, Value: value})
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if key, ok := configFlags[f.Name]; ok {
			flags = append(flags, conf.Flag{Name: "--" + f.Name, Key: key, Value: f.Value.String()})
		}
	})
	c, err := conf.Load(files, os.Environ(), flags)
	os.Unsetenv("GOPCCL_JOIN") // programs that this one starts have no use for it
	return c, err
}

// peerFlags are those of a command that speaks with a master.
func peerFlags(cmd *cobra.Command) {
	cmd.Flags().String("credential", "", "`FILE` of a credential: the master is asked in TLS")
	cmd.Flags().String("join", "", "join `TOKEN`, or @FILE, with which the master grants a credential; a token in the arguments can be seen by other users of the machine")
}

// configArgs repeats the configuration flags of a command line for a process
// that it starts; the environment is inherited anyway.
func configArgs(cmd *cobra.Command) (args []string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				args = append(args, "--"+f.Name, v)
			}
		}
	})
	return args
}

func newConfigCmd() *cobra.Command {
	config := &cobra.Command{
		Use:   "config",
		Short: "Show the configuration",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	config.AddCommand(&cobra.Command{
		Use:   "explain",
		Short: "Print every setting, its value and where the value comes from",
		Long: `Print every setting, its value and where the value comes from: the defaults, a
file, an environment variable or a flag, the later the stronger. Mistakes are
named with the nearest valid key.`,
		Example: `  gopccl config explain
  gopccl config explain --config run.yaml --set peer.pool_size=4
  GOPCCL_LOG_LEVEL=debug gopccl config explain`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			settings := c.Explain()
			key, value := 0, 0
			for _, s := range settings {
				key, value = max(key, len(s.Key)), max(value, len(s.Value))
			}
			for _, s := range settings {
				fmt.Fprintf(cmd.OutOrStdout(), "%-*s  %-*s  %s\n", key, s.Key, value, s.Value, s.Origin)
			}
			return nil
		},
	}, &cobra.Command{
		Use:     "defaults",
		Short:   "Print the commented list of all settings, to start a file from",
		Example: `  gopccl config defaults > run.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(conf.DefaultYAML)
			return err
		},
	})
	return config
}
