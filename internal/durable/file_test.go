package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/internal/scratch"
)

// A test runs this program again, with these in the environment: which file it is to write,
// and at which step it dies.
const (
	dieWriting = "DURABLE_DIE_WRITING"
	dieAt      = "DURABLE_DIE_AT"
	dead       = 7
)

func TestMain(m *testing.M) {
	if path := os.Getenv(lockThis); path != "" {
		os.Exit(lockAndWait(path))
	}
	if path := os.Getenv(dieWriting); path != "" {
		last, _ := strconv.Atoi(os.Getenv(dieAt))
		at = func(string, string) {
			if last--; last < 0 {
				os.Exit(dead) // nothing that is deferred is done
			}
		}
		write := Replace
		if filepath.Base(path) == "new" {
			write = Create
		}
		if err := write(path, []byte(after), 0o600); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const before, after = "what was there", "what has come since, and is longer"

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	require.NoError(t, err)
	return string(b)
}

// watch returns the steps that are taken while f runs.
func watch(f func()) (steps []string) {
	defer func(was func(string, string)) { at = was }(at)
	at = func(step, path string) { steps = append(steps, step+" "+path) }
	f()
	return steps
}

// A process that dies at any step leaves what was there or what was to be, and the next one
// writes as if nothing had happened.
func TestProcessDiesAtEachStep(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	for _, name := range []string{"old", "new"} {
		became := 0
		for step := 0; ; step++ {
			dir := scratch.Dir(t)
			path := filepath.Join(dir, name)
			first := ""
			if name == "old" {
				first = before
				require.NoError(t, Replace(path, []byte(first), 0o600))
			}
			cmd := exec.Command(program)
			cmd.Env = append(os.Environ(), dieWriting+"="+path, dieAt+"="+strconv.Itoa(step))
			out, err := cmd.CombinedOutput()
			if err == nil { // it had no such step
				require.Equal(t, 5, step, "create, write, sync, rename, sync directory")
				require.Equal(t, after, read(t, path))
				break
			}
			var died *exec.ExitError
			require.ErrorAs(t, err, &died)
			require.Equal(t, dead, died.ExitCode(), "%s", out)
			switch read(t, path) {
			case first:
				require.Zero(t, became, "step %d", step)
			case after:
				became++
			default:
				t.Fatalf("step %d: the file has %q", step, read(t, path))
			}
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			for _, f := range files {
				of, ok := Leaving(f.Name())
				require.True(t, f.Name() == name || ok && of == name, f.Name())
			}
			require.NoError(t, Replace(path, []byte("next"), 0o600))
			require.Equal(t, "next", read(t, path))
			Clean(dir, 0, name)
			files, err = os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, files, 1)
		}
		require.Equal(t, 1, became, "the rename is all that shows")
	}
}

// The machine may lose power at any time: a name is given to what is on the disk already,
// and the directory follows.
func TestOrder(t *testing.T) {
	dir := scratch.Dir(t)
	path := filepath.Join(dir, "x")
	want := []string{"create " + path, "write " + path, "sync " + path, "rename " + path, "sync directory " + dir}
	require.Equal(t, want, watch(func() { require.NoError(t, Replace(path, nil, 0o600)) }))
	path = filepath.Join(dir, "y")
	require.Equal(t, strings.ReplaceAll(strings.Join(want, "|"), filepath.Join(dir, "x"), path),
		strings.Join(watch(func() { require.NoError(t, Create(path, nil, 0o600)) }), "|"))
}

// Every directory that is made is on the disk: the one above each is synced. A second time
// there is nothing to do.
func TestNewDirectories(t *testing.T) {
	base := scratch.Dir(t)
	dir := filepath.Join(base, "a", "b", "c")
	make := func(dir string) []string { return watch(func() { require.NoError(t, MakeDir(dir, 0o700)) }) }
	require.Equal(t, []string{
		"sync directory " + base, "sync directory " + filepath.Join(base, "a"), "sync directory " + filepath.Join(base, "a", "b"),
	}, make(dir+string(filepath.Separator)))
	require.Empty(t, make(dir))
	file := filepath.Join(base, "file")
	require.NoError(t, Create(file, nil, 0o600))
	require.Error(t, MakeDir(file, 0o700))
	require.Error(t, MakeDir(filepath.Join(file, "below"), 0o700))
}

// What fails leaves nothing, and what was there as it was.
func TestFailures(t *testing.T) {
	dir := scratch.Dir(t)
	path := filepath.Join(dir, "x")
	require.ErrorIs(t, Replace(filepath.Join(dir, "none", "x"), nil, 0o600), fs.ErrNotExist)
	require.NoError(t, Create(path, []byte(before), 0o600))
	require.ErrorIs(t, Create(path, []byte(after), 0o600), fs.ErrExist)
	f, err := Begin(path, 0o600)
	require.NoError(t, err)
	_, err = f.WriteString(after)
	require.NoError(t, err)
	f.Drop()
	f.Drop()
	require.Error(t, f.Keep(), "it was dropped")
	f, err = Begin(path, 0o600)
	require.NoError(t, err)
	require.NoError(t, f.Close()) // so that it cannot be synced
	require.Error(t, f.Keep())
	require.Equal(t, before, read(t, path))
	occupied := filepath.Join(dir, "directory")
	require.NoError(t, os.Mkdir(occupied, 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(occupied, "x"), 0o700))
	require.Error(t, Replace(occupied, nil, 0o600))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2)
}

// What crashes leave is known by its name, and removed at an age; nothing else is.
func TestClean(t *testing.T) {
	for name, want := range map[string]string{
		".x.0123456789abcdef.part":    "x",
		"..x.y.0123456789abcdef.part": ".x.y",
		".x.0123456789abcde.part":     "",
		".x.0123456789abcdeg.part":    "",
		"x.0123456789abcdef.part":     "",
		".x.0123456789abcdef":         "",
		"..0123456789abcdef.part":     "",
		".part":                       "",
		".x.part":                     "",
	} {
		of, ok := Leaving(name)
		require.Equal(t, want != "", ok, name)
		if ok {
			require.Equal(t, want, of)
		}
	}
	dir := scratch.Dir(t)
	left := func(name string, age time.Duration) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		then := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(path, then, then))
	}
	left(".x.0123456789abcdef.part", 2*time.Hour)
	left(".x.0123456789abcde0.part", 0)
	left(".x.part", 2*time.Hour)
	left("x", 2*time.Hour)
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".y.0123456789abcdef.part"), 0o700))
	names := func() (names []string) {
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, f := range files {
			names = append(names, f.Name())
		}
		return names
	}
	Clean(dir, 0, "y", "z")
	require.Len(t, names(), 5)
	Clean(dir, time.Hour)
	require.Equal(t, []string{".x.0123456789abcde0.part", ".x.part", ".y.0123456789abcdef.part", "x"}, names())
	Clean(dir, 0)
	require.Equal(t, []string{".x.part", ".y.0123456789abcdef.part", "x"}, names())
	Clean(filepath.Join(dir, "none"), 0)
}
