package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
)

func newKeysRotateCmd() *cobra.Command {
	var expires string
	cmd := &cobra.Command{
		Use:   "rotate FILE",
		Short: "Replace a credential by one with a new key",
		Long: `Replace a credential by one with a new key, for the same endpoint, groups and
rights. An endpoint that runs reads its file again within a heartbeat and shows the new
one in every connection that it makes or takes from then on; no connection ends. Where
the endpoint is elsewhere, copy the file there under another name, and rename it.

The former certificate is valid until it expires. To end it at once, revoke its serial
number when the connections that were made with it are over.`,
		Example: `  gopccl keys rotate gpu-7.pem --dir run-keys
  gopccl keys rotate head.pem --dir run-keys --expires 90d`,
		Args: cobra.ExactArgs(1),
	}
	dir := dirFlag(cmd)
	cmd.Flags().StringVar(&expires, "expires", "30d", "how long it is valid, 24h to 400d")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		const op = "rotate credential"
		life, err := parseDays(expires)
		if err != nil {
			return usage(op, "--expires: %w", err)
		}
		d, err := authority.Open(*dir, time.Now)
		if err != nil {
			return err
		}
		c, err := secure.LoadCredential(args[0], secure.LoadOptions{})
		if err != nil {
			return err
		}
		text, e, err := d.Rotate(c, life)
		if err != nil {
			return err
		}
		defer clear(text)
		if err := authority.WriteFile(args[0], text, true); err != nil {
			return errs.New(errs.InvalidConfig, op, fmt.Errorf("the certificate with serial number %s is in the log, and not in a file: %w", e.Serial, err))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s until %s: %s, serial %s\n", e.Role, e.Name, e.NotAfter.UTC().Format(time.RFC3339), args[0], e.Serial)
		return err
	}
	return cmd
}
