package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/durable"
)

// shownKey is what show says about a credential; it has nothing that is secret.
type shownKey struct {
	Run         string    `json:"run,omitempty"`
	Role        string    `json:"role,omitempty"`
	Name        string    `json:"name,omitempty"`
	Groups      []uint32  `json:"groups,omitempty"`
	Rights      []string  `json:"rights,omitempty"`
	Serial      string    `json:"serial"`
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	Fingerprint string    `json:"fingerprint"`
	Problem     string    `json:"problem,omitempty"`
}

func newKeysShowCmd() *cobra.Command {
	var asJSON, readable bool
	var dir string
	cmd := &cobra.Command{
		Use:   "show FILE|TOKEN|@FILE",
		Short: "Show what a credential or a join token says, and what is wrong with it",
		Long: `Show what a credential says, and what is wrong with it. Its key is not shown.
The exit code is 1 if it is not valid now.

A join token can be given as it is, or as @ and a file that has it: its id, its run and
its masters are shown, and with --dir what the directory knows of it. Its secret is not.`,
		Example: `  gopccl keys show gpu-7.pem
  gopccl keys show gpu-7.pem --json
  gopccl keys show @token.txt --dir run-keys`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if secure.IsJoin(args[0]) {
				return showToken(cmd, secure.Join(args[0]), dir, asJSON)
			}
			c, err := secure.LoadCredential(args[0], secure.LoadOptions{AllowReadable: readable})
			if err != nil {
				return err
			}
			leaf := c.Leaf()
			s := shownKey{Serial: fmt.Sprintf("%032x", leaf.SerialNumber), NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, Fingerprint: authority.Fingerprint(leaf)}
			if id, err := c.Identity(); err == nil {
				s.Run, s.Role, s.Name, s.Groups = id.Run, id.Role.String(), id.Name, id.Groups
				for _, r := range []struct {
					has  bool
					name string
				}{{id.Single, "single"}, {id.Enroll, "enroll"}, {id.Lead, "lead"}} {
					if r.has {
						s.Rights = append(s.Rights, r.name)
					}
				}
			}
			switch now := time.Now(); {
			case now.After(leaf.NotAfter):
				s.Problem = "expired"
			case now.Before(leaf.NotBefore):
				s.Problem = "not yet valid"
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), s)
			} else {
				err = s.table(cmd.OutOrStdout())
			}
			if err == nil && s.Problem != "" {
				err = fmt.Errorf("%s: %s, by the clock of this machine", args[0], s.Problem)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`DIR` that knows the join token")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	cmd.Flags().BoolVar(&readable, "allow-readable", false, "take a file that others can read")
	return cmd
}

func (s shownKey) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("run", s.Run)
	row("role", s.Role)
	row("name", s.Name)
	if s.Role != "" {
		row("groups", groupText(s.Groups))
	}
	row("rights", strings.Join(s.Rights, ", "))
	row("serial", s.Serial)
	row("valid", s.NotBefore.UTC().Format(time.RFC3339)+" to "+s.NotAfter.UTC().Format(time.RFC3339))
	row("fingerprint", s.Fingerprint)
	row("problem", s.Problem)
	return w.Flush()
}

func newKeysTokenCmd() *cobra.Command {
	var expires, life, role, out string
	var groups []string
	var o authority.TokenOptions
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a join token, with which new machines get credentials",
		Long: `Make a join token, and print it. A peer that has it (GOPCCL_JOIN, or --join) makes a
key of its own, and gets a credential from a master that runs with --enroll DIR. A
master sees tokens at once that are made in its directory.

DIR is that of the authority, or one that has the credential of an issuer in the file
issuer.pem: then the key of the authority is not needed on the master's machine.`,
		Example: `  gopccl keys token --dir run-keys --group 0 --master 203.0.113.5:48148
  gopccl keys token --dir run-keys --uses 16 --expires 2h --name 'gpu-*' --out token.txt`,
		Args: noArgs,
	}
	dir := dirFlag(cmd)
	fl := cmd.Flags()
	fl.IntVar(&o.Uses, "uses", 1, "machines that may join with it, 1 to 1024")
	fl.StringVar(&expires, "expires", "24h", "how long it can be used, 1m to 30d")
	fl.StringVar(&life, "life", "30d", "how long the certificates are valid, 24h to 400d")
	fl.StringVar(&role, "role", "peer", "peer or observer")
	fl.StringSliceVar(&groups, "group", nil, "peer groups `N,M` that they may enter (default: all)")
	fl.StringVar(&o.Name, "name", "*", "`NAME` that they get; a * at its end stands for the name of the machine")
	fl.StringSliceVar(&o.Masters, "master", nil, "`HOST:PORT` of the master, for the token (default: the one that a peer is told to use)")
	fl.StringVar(&out, "out", "", "write it to a `FILE` of mode 0600 (--join @FILE), and do not print it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		const op = "make join token"
		var err error
		if o.Role, err = secure.ParseRole(role); err != nil {
			return usage(op, "--role: %w", err)
		}
		if o.Groups, err = parseGroups(groups); err != nil {
			return usage(op, "--group: %w", err)
		}
		if o.Life, err = parseDays(expires); err != nil {
			return usage(op, "--expires: %w", err)
		}
		if o.Member, err = parseDays(life); err != nil {
			return usage(op, "--life: %w", err)
		}
		d, err := authority.Open(*dir, time.Now)
		if err != nil {
			return err
		}
		t, e, err := d.NewToken(o)
		if err != nil {
			return err
		}
		text, err := t.Text()
		if err != nil {
			return errs.New(errs.Internal, op, err)
		}
		to := cmd.OutOrStdout()
		if out == "" { // the token alone, so that a script can take it
			_, err = fmt.Fprintln(to, text)
			to = cmd.ErrOrStderr()
		} else if err = durable.Create(out, []byte(text+"\n"), 0o600); err != nil {
			err = usage(op, "join token %s was made, and could not be written: %w", e.ID, err)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(to, "join token %s, uses: %d, until %s\n", e.ID, e.Left, e.Expires.Format(time.RFC3339))
		return err
	}
	return cmd
}

// shownToken is what show and list say about a join token; it has nothing that is
// secret.
type shownToken struct {
	ID      string     `json:"id"`
	Run     string     `json:"run,omitempty"`
	Masters []string   `json:"masters,omitempty"`
	State   string     `json:"state,omitempty"`
	Left    int        `json:"left"`
	Expires *time.Time `json:"expires,omitempty"`
	Role    string     `json:"role,omitempty"`
	Name    string     `json:"name,omitempty"`
	Groups  []uint32   `json:"groups,omitempty"`
	Joined  []string   `json:"joined,omitempty"`
}

func (s *shownToken) know(t authority.Token, now time.Time) {
	s.ID, s.State, s.Left, s.Expires, s.Role, s.Name, s.Groups = t.ID, t.State(now), t.Left, &t.Expires, t.Role, t.Name, t.Groups
	for _, g := range t.Given {
		s.Joined = append(s.Joined, g.Name)
	}
}

func showToken(cmd *cobra.Command, join secure.Join, dir string, asJSON bool) error {
	t, err := join.Token()
	if err != nil {
		return err
	}
	s := shownToken{ID: fmt.Sprintf("%x", t.ID), Run: t.Run(), Masters: t.Masters}
	if dir != "" {
		d, err := authority.Open(dir, time.Now)
		if err != nil {
			return err
		}
		list, err := d.Tokens()
		if err != nil {
			return err
		}
		s.State = "unknown"
		for _, k := range list {
			if k.ID == s.ID {
				s.know(k, time.Now())
			}
		}
	}
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), s)
	} else {
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "join token\t%s\nrun\t%s\nmasters\t%s\n", s.ID, s.Run, strings.Join(s.Masters, ", "))
		if s.State != "" {
			fmt.Fprintf(w, "state\t%s\n", s.State)
		}
		if s.Expires != nil {
			fmt.Fprintf(w, "uses left\t%d\nexpires\t%s\nrole\t%s\nname\t%s\ngroups\t%s\njoined\t%s\n",
				s.Left, s.Expires.Format(time.RFC3339), s.Role, s.Name, groupText(s.Groups), strings.Join(s.Joined, ", "))
		}
		err = w.Flush()
	}
	if err == nil && s.State != "" && s.State != "valid" {
		err = fmt.Errorf("join token %s: %s", s.ID, s.State)
	}
	return err
}

func listTokens(cmd *cobra.Command, d *authority.Dir, asJSON bool) error {
	known, err := d.Tokens()
	if err != nil {
		return err
	}
	list := make([]shownToken, len(known))
	for i, t := range known {
		list[i].know(t, time.Now())
	}
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), list)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STATE\tLEFT\tEXPIRES\tROLE\tNAME\tGROUPS\tID\tJOINED")
	for _, s := range list {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", s.State, s.Left, s.Expires.Format(time.RFC3339), s.Role, s.Name, groupText(s.Groups), s.ID, strings.Join(s.Joined, ","))
	}
	return w.Flush()
}
