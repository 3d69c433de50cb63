package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/examples/trainers"
)

// TestMain lets the test binary stand in for the program: commands that start
// processes start their own executable with a subcommand or a flag of its own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == pluginOfTests {
		servePluginOfTests()
	}
	if len(os.Args) > 1 && os.Args[1] == trainerOfTests {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		trainers.Main("ddp", trainers.DDP, trainers.DefaultOptions())
	}
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		main()
	}
	goleak.VerifyTestMain(m)
}

func gopccl(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 240*time.Second)
	defer cancel()
	var o, e bytes.Buffer
	code = execute(ctx, args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// Every command has a help text with an example, and help is not an error.
func TestHelpHasExamples(t *testing.T) {
	var visit func(path []string, c *cobra.Command)
	visit = func(path []string, c *cobra.Command) {
		for _, sub := range c.Commands() {
			visit(append(path[:len(path):len(path)], sub.Name()), sub)
		}
		if c.Hidden || c.Name() == "help" || c.Name() == "version" || !c.Runnable() || c.HasSubCommands() {
			return
		}
		code, out, _ := gopccl(t, append(path, "--help")...)
		require.Equal(t, exitOK, code)
		require.Contains(t, out, "Examples:\n  gopccl "+strings.Join(path, " "), "help of %v", path)
	}
	visit(nil, newRootCmd())
	code, out, _ := gopccl(t)
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "gopccl demo")
}

func TestWrongUsageExitsWithTwo(t *testing.T) {
	for want, args := range map[string][]string{
		`unknown command "mastre"`:        {"mastre"},
		"unknown flag: --lisen":           {"master", "--lisen", "x"},
		`does not take an argument "now"`: {"demo", "now"},
		`nearest: "peer.pool_size"`:       {"config", "explain", "--set", "peer.poolsize=1"},
		"master.listen":                   {"master", "--listen", "nowhere"},
		`nearest: "json"`:                 {"master", "--log-format", "jsn"},
		`unknown solver "best"`:           {"master", "--listen", "127.0.0.1:0", "--set", "topology.solver=best"},
		"no such file":                    {"config", "explain", "--config", "does-not-exist.yaml"},
		"no such directory":               {"demo", "--page", "does-not-exist/page.html"},
		"is below 1s":                     {"demo", "--duration", "0s"},
		"at least one local step":         {"demo", "--inner", "0"},
		"accepts 2 arg":                   {demoPeer},
	} {
		code, out, errOut := gopccl(t, args...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, errOut, want)
		require.Empty(t, out, args)
	}
}

func TestConfigExplainNamesOrigins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.yaml")
	require.NoError(t, os.WriteFile(path, []byte("peer:\n  group: 4\n  pool_size: 2\n"), 0o600))
	t.Setenv("GOPCCL_CONFIG", path)
	t.Setenv("GOPCCL_DATA_BACKEND", "cpu_generic")
	code, out, errOut := gopccl(t, "config", "explain", "--set", "peer.pool_size=3", "--log-level", "warn")
	require.Equal(t, exitOK, code, errOut)
	lines := map[string]string{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		lines[f[0]] = strings.Join(f[1:], " ")
	}
	require.Len(t, lines, len(conf.Keys()))
	require.Equal(t, "4 file "+path, lines["peer.group"])
	require.Equal(t, "3 flag --set peer.pool_size", lines["peer.pool_size"])
	require.Equal(t, "cpu_generic environment GOPCCL_DATA_BACKEND", lines["data.backend"])
	require.Equal(t, "warn flag --log-level", lines["log.level"])
	require.Equal(t, "0.0.0.0:48148 default", lines["master.listen"])

	code, out, _ = gopccl(t, "config", "defaults")
	require.Equal(t, exitOK, code)
	require.Equal(t, string(conf.DefaultYAML), out)
}

func TestVersion(t *testing.T) {
	code, out, _ := gopccl(t, "version")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "PCCL 1.0.0")
}

// The master says where it listens, one line per membership change, in JSON for
// machines, and ends well when it is interrupted.
func TestMasterTellsWhatHappens(t *testing.T) {
	ctx, interrupt := context.WithTimeout(context.Background(), time.Minute)
	defer interrupt()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		var errOut bytes.Buffer
		code <- execute(ctx, []string{"master", "--listen", "127.0.0.1:0", "--log-format", "json"}, strings.NewReader(""), w, &errOut)
		w.Close()
	}()
	type line struct{ Kind, Msg, Addr, Peer string }
	lines := bufio.NewScanner(r)
	next := func(kind string) line {
		for lines.Scan() {
			var l line
			require.NoError(t, json.Unmarshal(lines.Bytes(), &l), lines.Text())
			if l.Kind == kind {
				return l
			}
		}
		require.Fail(t, "no line of kind "+kind)
		return line{}
	}
	addr := next("listen").Addr
	comm, err := core.Connect(ctx, core.Options{Master: addr, ListenHost: "127.0.0.1", PortBase: -1})
	require.NoError(t, err)
	id := comm.Attributes().UUID.String()
	require.Equal(t, id, next("accepted").Peer)
	require.NoError(t, comm.Close())
	require.Equal(t, id, next("left").Peer)

	second, _, errOut := gopccl(t, "master", "--listen", addr)
	require.Equal(t, exitFailed, second, "the port is taken")
	require.Contains(t, errOut, addr)

	interrupt()
	next("end")
	require.Equal(t, exitOK, <-code)
}

// A log that nobody reads stops nothing; what was dropped is counted once it is
// read again.
func TestLineWriterNeverBlocks(t *testing.T) {
	r, pipe := io.Pipe()
	dropped := func(to io.Writer, lines int) { fmt.Fprintf(to, "%d dropped\n", lines) }
	w := newLineWriter(pipe, 2, dropped, func(err error) { assert.NoError(t, err) })
	for range 10 {
		n, err := w.Write([]byte("line\n"))
		require.NoError(t, err)
		require.Equal(t, 5, n)
	}
	read := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(r)
		read <- string(all)
	}()
	w.Close(time.Minute)
	pipe.Close()
	text := <-read
	require.Contains(t, text, "line\n")
	require.Contains(t, text, "dropped")
	require.Less(t, strings.Count(text, "line\n"), 10)
	w.Write([]byte("late"))
}

// A log that cannot be written any more is reported once, and stops nothing.
func TestLineWriterOutlivesItsReader(t *testing.T) {
	r, pipe := io.Pipe()
	require.NoError(t, r.Close())
	var failures []error
	w := newLineWriter(pipe, 8, func(io.Writer, int) {}, func(err error) { failures = append(failures, err) })
	for range 5 {
		_, err := w.Write([]byte("line\n"))
		require.NoError(t, err)
	}
	w.Close(time.Minute)
	require.Len(t, failures, 1)
	require.True(t, errors.Is(failures[0], io.ErrClosedPipe))
}

// The line about dropped lines has the format of the others.
func TestDroppedLinesAreSaidInTheLogsFormat(t *testing.T) {
	for format, want := range map[string]string{
		"json": `"level":"WARN","msg":"log lines were dropped","kind":"log","lines":812`,
		"text": "WRN log lines were dropped kind=log lines=812",
	} {
		c, err := conf.Load(nil, nil, nil)
		require.NoError(t, err)
		c.Log.Format = format
		var out bytes.Buffer
		w := newMasterLog(&cobra.Command{}, c)
		w.dropped(&out, 812)
		w.Close(time.Minute)
		require.Contains(t, out.String(), want)
	}
}

// The demo with real processes: one is killed in the middle of a reduce, two
// join, the loss falls, all hold the same bits after every step,
// and a page tells the story.
func TestDemo(t *testing.T) {
	page := filepath.Join(t.TempDir(), "demo.html")
	code, out, errOut := gopccl(t, "demo", "--duration", "8s", "--inner", "2", "--page", page, "--set", "quantize.algorithm=minmax", "--set", "peer.pool_size=2")
	require.Equal(t, exitOK, code, "%s\n%s", out, errOut)
	rows := map[string]string{}
	_, table, _ := strings.Cut(out, "loss before")
	for line := range strings.Lines("loss before" + table) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			rows[name] = strings.TrimSpace(value)
		}
	}
	require.Equal(t, "2", rows["joins"], out)
	require.NotEqual(t, "0", rows["kills"], out)
	require.NotEqual(t, "0", rows["aborted and retried operations"], out) // S2-14
	require.Equal(t, "0", rows["parity violations"], out)                 // S2-05
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "killed in the middle of the reduce")
	require.NotContains(t, out, "\x1b", "no escape sequences where there is no terminal")
}
