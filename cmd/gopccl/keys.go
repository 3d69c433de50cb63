package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/durable"
)

// newKeysCmd returns the command that holds what is about credentials.
func newKeysCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Credentials of a run, whose connections are in TLS with them",
		Long: `Make an authority for a run, and credentials for its endpoints.

A master (gopccl master --credential FILE) and peers (GOPCCL_CREDENTIAL=FILE) that
have credentials of one run connect with each other in TLS, and with nobody else.
A peer with a join token (GOPCCL_JOIN=TOKEN) gets its credential from the master.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeysInitCmd(), newKeysIssueCmd(), newKeysTokenCmd(), newKeysRotateCmd(), newKeysListCmd(), newKeysRevokeCmd(), newKeysShowCmd())
	return cmd
}

// usage is an error of what was asked for, with exit code 2.
func usage(op, format string, a ...any) error {
	return errs.New(errs.InvalidConfig, op, fmt.Errorf(format, a...))
}

func dirFlag(cmd *cobra.Command) *string {
	dir := cmd.Flags().String("dir", "", "`DIR` of the authority")
	needs(cmd, "dir")
	return dir
}

// needs makes a flag one that has to be given. cobra's own way is asked too late to
// be wrong usage.
func needs(cmd *cobra.Command, flag string) {
	inner := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if f := cmd.Flags().Lookup(flag); f.Value.String() == "" {
			return fmt.Errorf("--%s is needed", flag)
		}
		return inner(cmd, args)
	}
}

func newKeysInitCmd() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "init",
		Short:   "Make the authority of a run",
		Long:    `Make the directory of a new authority: its key, its certificate and an empty revocation list. The key makes members of every kind, so keep the directory where only you can read it.`,
		Example: `  gopccl keys init --dir run-keys --run gpt-small`,
		Args:    noArgs,
	}
	dir := dirFlag(cmd)
	cmd.Flags().StringVar(&name, "run", "gopccl", "`NAME` of the run, for people")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		run, err := authority.Init(*dir, name, time.Now)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "run %s: authority in %s\n", run, *dir)
		return err
	}
	return cmd
}

func newKeysIssueCmd() *cobra.Command {
	var out, role, expires string
	var groups []string
	var id secure.Identity
	var force bool
	cmd := &cobra.Command{
		Use:   "issue NAME",
		Short: "Make a credential",
		Long: `Make a key and a credential for an endpoint of the run, in one file that only
its owner can read. The file is all that the endpoint needs.`,
		Example: `  gopccl keys issue head --dir run-keys --role master --out head.pem
  gopccl keys issue gpu-7 --dir run-keys --group 0,1 --expires 90d --out gpu-7.pem`,
		Args: cobra.ExactArgs(1),
	}
	dir := dirFlag(cmd)
	fl := cmd.Flags()
	fl.StringVar(&out, "out", "", "`FILE` for the credential")
	fl.StringVar(&role, "role", "peer", "peer, master, observer or issuer")
	fl.StringSliceVar(&groups, "group", nil, "peer groups `N,M` that it may enter (default: all)")
	fl.StringVar(&expires, "expires", "30d", "how long it is valid, 24h to 400d")
	fl.BoolVar(&id.Single, "single", false, "two sessions of the name at one time are refused")
	fl.BoolVar(&id.Lead, "lead", false, "a peer that may be a master, too")
	fl.BoolVar(&force, "force", false, "replace FILE")
	needs(cmd, "out")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		const op = "issue credential"
		var err error
		id.Name = args[0]
		if err := secure.CheckName(id.Name); err != nil {
			return errs.New(errs.InvalidConfig, op, err)
		}
		if id.Role, err = secure.ParseRole(role); err != nil {
			return usage(op, "--role: %w", err)
		}
		if id.Groups, err = parseGroups(groups); err != nil {
			return usage(op, "--group: %w", err)
		}
		life, err := parseDays(expires)
		if err != nil {
			return usage(op, "--expires: %w", err)
		}
		if _, err := os.Lstat(out); !force && !errors.Is(err, fs.ErrNotExist) {
			return usage(op, "%s exists: --force replaces it", out)
		}
		d, err := authority.Open(*dir, time.Now)
		if err != nil {
			return err
		}
		text, e, err := d.Issue(id, life, "issue")
		if err != nil {
			return err
		}
		defer clear(text)
		write := durable.Create
		if force {
			write = durable.Replace
		}
		if err := write(out, text, 0o600); err != nil {
			return errs.New(errs.InvalidConfig, op, fmt.Errorf("the certificate with serial number %s is in the log, and not in a file: %w", e.Serial, err))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s until %s: %s\n", e.Role, e.Name, e.NotAfter.UTC().Format(time.RFC3339), out)
		return err
	}
	return cmd
}

// parseGroups reads the numbers of groups; none is nil, which means all.
func parseGroups(texts []string) (groups []uint32, err error) {
	for _, s := range texts {
		n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q: want 0 to %d", s, uint32(math.MaxUint32))
		}
		groups = append(groups, uint32(n))
	}
	return groups, nil
}

// parseDays reads a duration that may be in days.
func parseDays(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("%q: want days such as 30d, or hours such as 36h", s)
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q: want days such as 30d, or hours such as 36h", s)
	}
	return d, nil
}

// listed is a certificate as list shows it.
type listed struct {
	authority.Entry
	State string `json:"state"`
}

func newKeysListCmd() *cobra.Command {
	var expiring string
	var asJSON, tokens bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the certificates that were made, or the join tokens",
		Example: `  gopccl keys list --dir run-keys
  gopccl keys list --dir run-keys --tokens
  gopccl keys list --dir run-keys --expiring 7d --json`,
		Args: noArgs,
	}
	dir := dirFlag(cmd)
	cmd.Flags().StringVar(&expiring, "expiring", "", "only valid ones that expire within a `TIME` such as 7d")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON array")
	cmd.Flags().BoolVar(&tokens, "tokens", false, "the join tokens")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var within time.Duration
		var err error
		if expiring != "" {
			if within, err = parseDays(expiring); err != nil {
				return usage("list credentials", "--expiring: %w", err)
			}
		}
		d, err := authority.Open(*dir, time.Now)
		if err != nil {
			return err
		}
		if tokens {
			return listTokens(cmd, d, asJSON)
		}
		log, err := d.Log()
		if err != nil {
			return err
		}
		l, err := d.List()
		if err != nil {
			return err
		}
		now, list := time.Now(), []listed{}
		for _, e := range log {
			state := "valid"
			switch {
			case authority.Revoked(l, e):
				state = "revoked"
			case now.After(e.NotAfter):
				state = "expired"
			}
			if expiring == "" || state == "valid" && e.NotAfter.Sub(now) <= within {
				list = append(list, listed{e, state})
			}
		}
		if asJSON {
			return writeJSON(cmd.OutOrStdout(), list)
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "STATE\tROLE\tNAME\tGROUPS\tUNTIL\tSERIAL")
		for _, e := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", e.State, e.Role, e.Name, groupText(e.Groups), e.NotAfter.UTC().Format(time.RFC3339), e.Serial)
		}
		return w.Flush()
	}
	return cmd
}

func groupText(groups []uint32) string {
	if groups == nil {
		return "all"
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(groups), "[]"), " ", ",")
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func newKeysRevokeCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke NAME|SERIAL|FINGERPRINT|TOKEN-ID | --list FILE",
		Short: "Put certificates on the revocation list, or withdraw a join token",
		Long: `Put certificates on the revocation list of the run: all that a name has so far,
or the one with a serial number or a fingerprint. A name can be issued again.

The id of a join token (gopccl keys list --tokens) withdraws the token: nobody joins
with it any more. Those who have joined stay; their certificates are revoked by name.

A directory that was restored from a copy has forgotten what came later. --list takes up
what a revocation list revokes that was in force, and --unlogged revokes what is not in the
log: a serial number of 32 digits, or with --role all certificates of a name in that role.`,
		Example: `  gopccl keys revoke gpu-7 --dir run-keys
  gopccl keys revoke 4f2a9c01d7e83b56 --dir run-keys
  gopccl keys revoke --list /etc/gopccl/revoked.crl --dir run-keys`,
	}
	var file, role string
	var unlogged bool
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case (file != "") == (len(args) > 0):
			return fmt.Errorf("want what is to be revoked, or --list (accepts 1 arg(s), received %d)", len(args))
		case file != "" && unlogged:
			return errors.New("--list and --unlogged do not go together")
		}
		return cobra.MaximumNArgs(1)(cmd, args)
	}
	dir := dirFlag(cmd)
	cmd.Flags().StringVar(&file, "list", "", "take up what the revocation list in `FILE` revokes")
	cmd.Flags().BoolVar(&unlogged, "unlogged", false, "a serial number that the log does not have, or a name (--role)")
	cmd.Flags().StringVar(&role, "role", "", "with --unlogged: what follows is a name in this role, peer, master, observer or issuer")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := authority.Open(*dir, time.Now)
		if err != nil {
			return err
		}
		if file != "" {
			return takeUp(cmd, d, file)
		}
		if unlogged {
			return unloggedOf(cmd, d, role, args[0])
		}
		if withdrawn, err := d.Withdraw(args[0]); err != nil {
			return err
		} else if withdrawn {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "withdrawn: join token %s\n", args[0])
			return err
		}
		found, err := d.Revoke(args[0])
		if err != nil {
			return err
		}
		for _, e := range found {
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "revoked %s %s, serial %s\n", e.Role, e.Name, e.Serial); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// unloggedOf revokes a serial number, or a name in a role, of which the log knows nothing. Which
// of the two it is has to be said: a serial number that was cut short would be a name.
func unloggedOf(cmd *cobra.Command, d *authority.Dir, role, what string) error {
	if role == "" {
		if err := d.RevokeSerial(what); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "revoked serial %s, which the log does not have\n", what)
		return err
	}
	is, err := secure.ParseRole(role)
	if err != nil {
		return usage("revoke", "--role: %w", err)
	}
	if err := d.RevokeName(is, what); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "revoked %s %s, which the log does not have\n", is, what)
	return err
}

// takeUp has the directory revoke what a list in a file does.
func takeUp(cmd *cobra.Command, d *authority.Dir, file string) error {
	l, err := secure.LoadList(file)
	if err != nil {
		return errs.New(errs.CorruptFile, "take up revocation list", err)
	}
	added, tokens, err := d.TakeUp(l)
	if err != nil {
		return err
	}
	for _, what := range added {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "revoked %s\n", what); err != nil {
			return err
		}
	}
	for _, id := range tokens {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "withdrew join token %s, of which more may be left than there was: make another one\n", id); err != nil {
			return err
		}
	}
	now, err := d.List()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "list %d: %d taken up from list %d\n", now.Number(), len(added), l.Number())
	return err
}
