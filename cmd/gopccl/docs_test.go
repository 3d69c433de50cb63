package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/conf"
)

var (
	span    = regexp.MustCompile("`([^`]+)`")
	command = regexp.MustCompile(`(?:^|\s)(?:gopccl|go run \./cmd/gopccl) ([^#;|&]+)`)
	key     = regexp.MustCompile(`^([a-z]+(?:\.[a-z_]+)+)(?:: .*)?$`)
)

// quotes returns what a page shows as code: its spans, and the lines of its blocks.
func quotes(page string) (list []string) {
	fenced := false
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced, strings.HasPrefix(line, "    "):
			list = append(list, strings.TrimSpace(line))
		default:
			for _, m := range span.FindAllStringSubmatch(line, -1) {
				list = append(list, m[1])
			}
		}
	}
	return list
}

// wrongCommand says what is wrong with a command line of the program: its
// commands and flags have to exist.
func wrongCommand(root *cobra.Command, line string) error {
	words := strings.Fields(line)
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	if cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("%s has no command %q", cmd.CommandPath(), rest[0])
	}
	for _, word := range words {
		name, isFlag := strings.CutPrefix(word, "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && name != "" && name != "help" && cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
			return fmt.Errorf("%s has no flag --%s", cmd.CommandPath(), name)
		}
	}
	return nil
}

// Commands, flags and keys of the configuration that pages and help texts show exist.
func TestDocumentedCommandsExist(t *testing.T) {
	root := newRootCmd()
	sections := map[string]bool{}
	for _, k := range conf.Keys() {
		section, _, _ := strings.Cut(k, ".")
		sections[section] = true
	}
	commands, keys := 0, 0
	check := func(where, text string) {
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			assert.NoError(t, wrongCommand(root, m[1]), "%s: %s", where, text)
			commands++
		}
		if m := key.FindStringSubmatch(text); m != nil {
			if section, _, _ := strings.Cut(m[1], "."); sections[section] && path.Ext(m[1]) != ".go" && path.Ext(m[1]) != ".md" {
				assert.Contains(t, conf.Keys(), m[1], "%s names a key of the configuration", where)
				keys++
			}
		}
	}
	require.NoError(t, fs.WalkDir(os.DirFS("../.."), ".", func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && name != "." && name != ".github" && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if err == nil && path.Ext(name) == ".md" {
			page, err := os.ReadFile("../../" + name)
			require.NoError(t, err)
			for _, text := range quotes(string(page)) {
				check(name, text)
			}
		}
		return err
	}))
	require.Greater(t, commands, 30)
	require.Greater(t, keys, 20)
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			check("help of "+c.CommandPath(), strings.TrimSpace(line))
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)

	for _, wrong := range []string{"mastre", "bench allredcue", "master --lisen x", "config explain --sett=a"} {
		require.Error(t, wrongCommand(root, wrong), wrong)
	}
	require.True(t, slices.Equal([]string{"a b", "c"}, quotes("x `a b` y\n```sh\nc\n```\n")))
}
