package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/lead"
	"github.com/gopccl/gopccl/internal/master"
	"github.com/gopccl/gopccl/internal/quorum"
	"github.com/gopccl/gopccl/internal/quorum/node"
	"github.com/gopccl/gopccl/internal/wire"
)

const opStatus = "ask masters"

func newMasterStatusCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say which master leads, whom it waits for, and what its groups are",
		Long: `Ask every master of peer.master how it stands: whether it leads, its groups, and,
while it recovers, which members have not come back and how long it still waits for
them. Of several masters (--peers, --etcd) each also says who leads, and the leader how
far behind the others are.

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
			if dir := c.MasterOptions(nil).State; dir != "" && !asJSON {
				if err := showKept(out, dir); err != nil {
					return err
				}
			}
			return showMasters(cmd.Context(), out, c, asJSON)
		},
	}
	cmd.Flags().String("master", "", "`HOST:PORT,...` of the masters (default 127.0.0.1:48148)")
	cmd.Flags().String("state", "", "`DIR` of a master")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write what the masters say as one JSON object")
	peerFlags(cmd)
	return cmd
}

// showKept writes what the directory of a master says, of one that is alone or among
// several.
func showKept(out io.Writer, dir string) error {
	term, k, err := lead.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		b, missing := os.ReadFile(filepath.Join(dir, node.StateName))
		if missing != nil {
			return err
		}
		members, term, entry, kept, err := quorum.Peek(b)
		var k lead.Kept
		if err == nil {
			k, err = lead.Decode(kept)
		}
		if err != nil {
			return errs.New(errs.CorruptFile, opStatus, fmt.Errorf("%s: %w", filepath.Join(dir, node.StateName), err))
		}
		fmt.Fprintf(out, "%s: one of the masters %s: term %d, entry %d\n", dir, members, term, entry)
		showRegistry(out, k)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: term %d\n", dir, term)
	showRegistry(out, k)
	return nil
}

func showRegistry(out io.Writer, k lead.Kept) {
	for _, g := range k.Registry.Groups {
		fmt.Fprintf(out, "  group %d: %d members that can come back, next revision %d\n", g.ID, len(g.Members), g.NextRevision)
	}
}

// said is what came of asking a master.
type said struct {
	Master string           `json:"master"`
	Status *master.Bulletin `json:"status,omitempty"`
	Error  string           `json:"error,omitempty"`
	err    error
}

// askMasters asks all at once: those that are not there must not hold the others up.
func askMasters(ctx context.Context, c *conf.Config) []said {
	addrs := strings.Split(c.Peer.Master, ",")
	all := make([]said, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		a := &all[i]
		a.Master = strings.TrimSpace(addr)
		wg.Go(func() {
			p, err := question[wire.M2CStatus](ctx, c, opStatus, a.Master, wire.C2MAskStatus{})
			if err == nil {
				a.Status = &master.Bulletin{}
				if err = json.Unmarshal([]byte(p.JSON), a.Status); err != nil {
					a.Status = nil
					err = errs.New(errs.Protocol, opStatus, err).WithPeer(a.Master)
				}
			}
			if err != nil {
				a.err, a.Error = err, err.Error()
			}
		})
	}
	wg.Wait()
	return all
}

// showMasters writes how the masters stand.
func showMasters(ctx context.Context, out io.Writer, c *conf.Config, asJSON bool) error {
	all := askMasters(ctx, c)
	leads := false
	var failed []error
	for _, a := range all {
		if a.err != nil {
			failed = append(failed, a.err)
		} else if a.Status.Role != master.Follows {
			leads = true
		}
	}
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", " ")
		if err := e.Encode(map[string]any{"masters": all}); err != nil {
			return err
		}
	} else {
		for _, a := range all {
			showMaster(out, a)
		}
	}
	if leads {
		return nil
	}
	if failed == nil {
		failed = append(failed, errors.New("no master leads"))
	}
	return errs.New(errs.MasterConnectionFailed, opStatus, errors.Join(failed...)).
		WithHint("start a master, or a majority of them")
}

func showMaster(out io.Writer, a said) {
	st := a.Status
	if st == nil {
		fmt.Fprintf(out, "%s: does not answer\n", a.Master)
		return
	}
	fmt.Fprintf(out, "%s: %s", a.Master, st.Role)
	if st.Role != master.Follows {
		fmt.Fprintf(out, ", term %d, %d clients", st.Term, st.Clients)
	} else if st.Leader != "" {
		fmt.Fprintf(out, " %s", st.Leader)
	}
	fmt.Fprintln(out)
	for _, line := range st.Masters {
		fmt.Fprintf(out, "  %s\n", line)
	}
	for _, g := range st.Groups {
		fmt.Fprintf(out, "  group %d: %d members, %d wait to be let in, next revision %d\n", g.ID, g.Members, g.Waiting, g.NextRevision)
	}
	if more := st.Total - len(st.Groups); more > 0 {
		fmt.Fprintf(out, "  and %d more groups\n", more)
	}
	if st.Recovery != nil {
		showRecovery(out, st.Recovery)
	}
}

func showRecovery(out io.Writer, r *master.RecoveryBulletin) {
	waited, left := time.Duration(r.WaitedMS)*time.Millisecond, time.Duration(r.LeftMS)*time.Millisecond
	fmt.Fprintf(out, "  recovers for %v", waited.Round(10*time.Millisecond))
	switch {
	case r.Stuck:
		fmt.Fprint(out, "; it does not go on without those who are missing (master.lost_members: drop)")
	default:
		fmt.Fprintf(out, ", and goes on in %v at the latest", left.Round(10*time.Millisecond))
	}
	if r.Silent > 0 {
		fmt.Fprintf(out, "; %d have come back and do not say what they hold", r.Silent)
	}
	fmt.Fprintln(out)
	for _, g := range r.Groups {
		fmt.Fprintf(out, "  group %d: %d of %d members are back\n", g.ID, g.Members-g.Lacks, g.Members)
		for _, m := range g.Missing {
			fmt.Fprintf(out, "    missing: %s", m.Peer)
			if m.Broken {
				fmt.Fprint(out, ", its connections have ended")
			}
			fmt.Fprintln(out)
		}
		if more := g.Lacks - len(g.Missing); more > 0 {
			fmt.Fprintf(out, "    and %d more\n", more)
		}
	}
}
