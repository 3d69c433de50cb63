package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/durable"
)

func newKeysRotateCmd() *cobra.Command {
	var expires string
	var succeed, finish, force bool
	cmd := &cobra.Command{
		Use:   "rotate {FILE | --authority | --finish}",
		Short: "Replace a credential by one with a new key, or the authority of a run",
		Long: `Replace a credential by one with a new key, for the same endpoint, groups and
rights. An endpoint that runs reads its file again within a heartbeat and shows the new
one in every connection that it makes or takes from then on; no connection ends. Where
the endpoint is elsewhere, copy the file there under another name, and rename it.

The former certificate is valid until it expires. To end it at once, revoke its serial
number when the connections that were made with it are over.

With --authority the run gets a new authority, for which the former one vouches: both are
trusted, and every endpoint goes on. Rotate each credential then, the master's first or
last. --finish ends the trust in the former one. It refuses while an endpoint has no
credential of the new one.`,
		Example: `  gopccl keys rotate gpu-7.pem --dir run-keys
  gopccl keys rotate head.pem --dir run-keys --expires 90d
  gopccl keys rotate --authority --dir run-keys
  gopccl keys rotate --finish --dir run-keys`,
		Args: cobra.MaximumNArgs(1),
	}
	dir := dirFlag(cmd)
	cmd.Flags().StringVar(&expires, "expires", "30d", "how long it is valid, 24h to 400d")
	cmd.Flags().BoolVar(&succeed, "authority", false, "make another authority for the run")
	cmd.Flags().BoolVar(&finish, "finish", false, "end the trust in the former authority")
	cmd.Flags().BoolVar(&force, "force", false, "with --finish: also if endpoints are left that have no other credential")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		const op = "rotate credential"
		if what := len(args); succeed && finish || (succeed || finish) != (what == 0) || force && !finish {
			return usage(op, "want one of FILE, --authority and --finish; --force goes with --finish")
		}
		life, err := parseDays(expires)
		if err != nil {
			return usage(op, "--expires: %w", err)
		}
		d, err := authority.Open(*dir, time.Now)
		if err != nil {
			return err
		}
		if succeed || finish {
			return rotateAuthority(cmd, d, finish, force)
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
		if err := durable.Replace(args[0], text, 0o600); err != nil {
			return errs.New(errs.InvalidConfig, op, fmt.Errorf("the certificate with serial number %s is in the log, and not in a file: %w", e.Serial, err))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s until %s: %s, serial %s\n", e.Role, e.Name, e.NotAfter.UTC().Format(time.RFC3339), args[0], e.Serial)
		return err
	}
	return cmd
}

// rotateAuthority makes another authority for the run, or ends the trust in the former one,
// and says what is to be done next.
func rotateAuthority(cmd *cobra.Command, d *authority.Dir, finish, force bool) error {
	if finish {
		if err := d.Finish(force); err != nil {
			return err
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "the former authority is no longer named in credentials that are made: copy revoked.crl to the master")
		return err
	}
	if err := d.Succeed(); err != nil {
		return err
	}
	behind, err := d.Behind()
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), "the run has a new authority; rotate these, and finish:")
	for _, e := range behind {
		fmt.Fprintf(cmd.OutOrStdout(), "%s %s until %s\n", e.Role, e.Name, e.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}
