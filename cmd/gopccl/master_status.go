package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/lead"
)

func newMasterStatusCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say which master leads, and what its groups are",
		Long: `Ask every master of peer.master whether it leads, and the one that does for its
groups. A master that does not lead, or that is not there, does not answer.

With --state also print what a directory of a master says: its term, and how far each
group has come with its shared state. That works without a master, too.

It ends with an error if no master leads.`,
		Example: `  gopccl master status --master a:48148,b:48148,c:48148
  gopccl master status --master 127.0.0.1:48148 --state /var/lib/gopccl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if dir := c.MasterOptions(nil).State; dir != "" {
				if err := showKept(out, dir); err != nil {
					return err
				}
			}
			return showLeader(cmd.Context(), out, c)
		},
	}
	cmd.Flags().String("master", "", "`HOST:PORT,...` of the masters (default 127.0.0.1:48148)")
	cmd.Flags().String("state", "", "`DIR` of a master")
	peerFlags(cmd)
	return cmd
}

// showKept writes what the directory of a master says.
func showKept(out io.Writer, dir string) error {
	term, k, err := lead.Read(dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: term %d\n", dir, term)
	for _, g := range k.Registry.Groups {
		fmt.Fprintf(out, "  group %d: %d members that can come back, next revision %d\n", g.ID, len(g.Members), g.NextRevision)
	}
	return nil
}

// showLeader writes which of the masters answers, and its groups.
func showLeader(ctx context.Context, out io.Writer, c *conf.Config) error {
	found := false
	var failed []error
	for master := range strings.SplitSeq(c.Peer.Master, ",") {
		master = strings.TrimSpace(master)
		t, err := askTopology(ctx, c, master)
		if err != nil {
			failed = append(failed, err)
			fmt.Fprintf(out, "%s: does not lead, or is not there\n", master)
			continue
		}
		found = true
		fmt.Fprintf(out, "%s: leads\n", master)
		for _, g := range t.Groups {
			fmt.Fprintf(out, "  group %d: %d members\n", g.Group, len(g.Peers))
		}
	}
	if !found {
		return errs.New(errs.MasterConnectionFailed, "ask masters", errors.Join(failed...)).
			WithHint("start a master, or a majority of them")
	}
	return nil
}
