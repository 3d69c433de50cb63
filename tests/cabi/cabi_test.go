//go:build linux

package cabi

import (
	"bytes"
	"context"
	"debug/elf"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/ports"
)

const bindings = "../../bindings/c"

// work holds what TestMain built: libpccl.so and libgopccl.so.
var work string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if work, err = os.MkdirTemp("", "cabi"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(work)
	for _, name := range []string{"libpccl.so", "libgopccl.so"} {
		out, err := exec.Command("bash", bindings+"/build.sh", filepath.Join(work, name)).CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", name, err, out)
			return 1
		}
	}
	return m.Run()
}

var strict = []string{"-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-pthread", "-I" + bindings}

// compile builds a program of the directory programs, linked with libpccl.so,
// and returns its path.
func compile(t *testing.T, source string, flags ...string) string {
	t.Helper()
	return compileWith(t, "libpccl.so", source, flags...)
}

// compileWith is compile with another library.
func compileWith(t *testing.T, lib, source string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), strings.TrimSuffix(source, filepath.Ext(source)))
	compiler, std := "gcc", "-std=c99"
	if filepath.Ext(source) == ".cpp" {
		compiler, std = "g++", "-std=c++11"
	}
	args := slices.Concat([]string{std}, strict, flags, []string{
		"-o", out, filepath.Join("programs", source),
		filepath.Join(work, lib), "-Wl,-rpath," + work, "-ldl",
	})
	text, err := exec.Command(compiler, args...).CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

// port returns one that no other test gets.
func port() string {
	free, err := ports.Free(1)
	if err != nil {
		panic(err)
	}
	return fmt.Sprint(free[0])
}

// execute runs a program and returns what it wrote. The settings come first,
// so that a test's environment can be stronger.
func execute(t *testing.T, env []string, program string, args ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(append(os.Environ(), "PCCL_LOG_LEVEL=ERR", "GOPCCL_TOPOLOGY_DURATION=100ms", "GODEBUG=cgocheck=1"), env...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	require.NoError(t, err, "%s\n%s%s", filepath.Base(program), out.String(), log.String()[max(0, log.Len()-2000):])
	return out.String(), log.String()
}

// Programs in the manner of PCCL's users, and what bad input gets (control
// spec, section 13.5). The layouts and numbers are asserted by their compilers.
func TestPrograms(t *testing.T) {
	address := []string{"-fsanitize=address", "-fno-omit-frame-pointer"}
	for name, c := range map[string]struct {
		source string
		flags  []string
	}{
		"C99":                      {"user.c", nil},
		"C++":                      {"user.cpp", nil},
		"bad input":                {"abuse.c", nil},
		"fork":                     {"fork.c", nil},
		"OpenMP and signals":       {"host.c", []string{"-fopenmp"}},
		"tags":                     {"tags.c", nil},
		"C99 with ASan":            {"user.c", address},
		"bad input with ASan":      {"abuse.c", address},
		"C99 optimized":            {"user.c", []string{"-O2"}},
		"C++17 optimized":          {"user.cpp", []string{"-O2", "-std=c++17"}},
		"bad input, C11 optimized": {"abuse.c", []string{"-std=c11", "-O2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := []string{port()}
			if c.source == "fork.c" { // a run in the child beside that of its parent
				at = append(at, port())
			}
			out, log := execute(t, nil, compile(t, c.source, c.flags...), at...)
			require.Equal(t, "passed\n", out, "the log goes to standard error") // S2-06, S1-35
			require.NotContains(t, log, "panic")
			require.NotContains(t, log, "internal error")
		})
	}
}

var soak = flag.Bool("soak", false, "run the full counts")

// A host that has left SIGPIPE to the system lives on when neighbours of its
// peer, or clients of its master, die in the middle of what is said to them.
func TestBrokenPipesEndNobody(t *testing.T) {
	kills := "20"
	if *soak {
		kills = "200"
	}
	program := compile(t, "sigpipe.c")
	for _, host := range []string{"neighbour", "master"} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			out, _ := execute(t, nil, program, host, port(), kills)
			require.Equal(t, "passed\n", out)
		})
	}
}

// A log that nobody reads holds up no call, nor does one whose reader is gone
// end a program that has left SIGPIPE to the system (host.c).
func TestNobodyReadsTheLog(t *testing.T) {
	out, _ := execute(t, []string{"PCCL_LOG_LEVEL=DEBUG"}, compile(t, "clogged.c"), port())
	require.Equal(t, "passed\n", out)
}

// The functions of gopccl.h.
func TestOurOwnFunctions(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		flags  []string
	}{
		"polls":                 {"polls.c", nil},
		"checkpoints":           {"checkpoint.c", []string{"-Wno-unused-function", "-fsanitize=address", "-fno-omit-frame-pointer"}},
		"collectives":           {"collect.c", []string{"-O2"}},
		"collectives with ASan": {"collect.c", []string{"-fsanitize=address", "-fno-omit-frame-pointer"}},
		"messages":              {"message.c", []string{"-O2"}},
		"messages with ASan":    {"message.c", []string{"-fsanitize=address", "-fno-omit-frame-pointer"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, log := execute(t, nil, compileWith(t, "libgopccl.so", c.source, c.flags...), port())
			require.Equal(t, "passed\n", out)
			require.NotContains(t, log, "panic")
			require.NotContains(t, log, "internal error")
		})
	}
}

// Exactly PCCL's functions are visible; libgopccl.so has ours beside them.
func TestSymbols(t *testing.T) {
	pccl := []string{
		"pcclAllReduce", "pcclAllReduceAsync", "pcclAllReduceMultipleWithRetry", "pcclArePeersPending",
		"pcclAwaitAsyncReduce", "pcclConnect", "pcclCreateCommunicator", "pcclCreateMaster", "pcclDestroyCommunicator",
		"pcclDestroyMaster", "pcclGetAttribute", "pcclGetBuildInfo", "pcclInit", "pcclInterruptMaster",
		"pcclMasterAwaitTermination", "pcclOptimizeTopology", "pcclRunMaster", "pcclSynchronizeSharedState",
		"pcclUpdateTopology",
	}
	visible := func(lib string) (names []string) {
		f, err := elf.Open(filepath.Join(work, lib))
		require.NoError(t, err)
		defer f.Close()
		symbols, err := f.DynamicSymbols()
		require.NoError(t, err)
		for _, s := range symbols {
			if s.Section != elf.SHN_UNDEF {
				names = append(names, s.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	require.Equal(t, pccl, visible("libpccl.so"))
	var ours []string
	for _, name := range visible("libgopccl.so") {
		if !slices.Contains(pccl, name) {
			ours = append(ours, name)
		}
	}
	require.Equal(t, []string{
		"gopcclAwaitAsyncReduce", "gopcclAwaitMessage", "gopcclClose", "gopcclCollect", "gopcclCollectAsync", "gopcclDumpState", "gopcclFindCheckpoint",
		"gopcclFindDevice", "gopcclGetGroup", "gopcclGetMasterPort", "gopcclGetRank", "gopcclGetTorn", "gopcclLastError", "gopcclLeave",
		"gopcclListAsyncReduces", "gopcclLoadCheckpoint", "gopcclReceive", "gopcclReceiveAsync", "gopcclSaveCheckpoint", "gopcclSend",
		"gopcclSendAsync", "gopcclSetCredential", "gopcclSetDefaultHeartbeat", "gopcclSetMasterCredential", "gopcclSetMasters", "gopcclSetPoll", "gopcclSetReattachTimeout",
		"gopcclSetStream", "gopcclSetTorn", "gopcclVersion", "gopcclWaitForPeers",
	}, ours)
}

// The environment as it is when a communicator is created, in a program that
// loads the library at run time.
func TestEnvironment(t *testing.T) {
	load := compile(t, "load.c")
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	require.NoError(t, os.WriteFile(wrong, []byte("data:\n  frame_bites: 4KiB\n"), 0o600))
	right := filepath.Join(t.TempDir(), "right.yaml")
	require.NoError(t, os.WriteFile(right, []byte("log:\n  level: warn\n"), 0o600))
	for name, c := range map[string]struct {
		vars   []string
		result string
		log    string
	}{
		"nothing":              {nil, "0", ""},
		"unknown key":          {[]string{"GOPCCL_CONFIG=" + wrong}, "3", "frame_bytes"},
		"no file":              {[]string{"GOPCCL_CONFIG=" + wrong + ".not"}, "3", "no such file"},
		"out of range":         {[]string{"GOPCCL_PEER_POOL_SIZE=1025"}, "3", "peer.pool_size"},
		"silent failure":       {[]string{"GOPCCL_PEER_POOL_SIZE=1025", "PCCL_LOG_LEVEL=NONE"}, "3", ""},
		"unknown level":        {[]string{"GOPCCL_PEER_POOL_SIZE=1025", "PCCL_LOG_LEVEL=LOUD"}, "3", ""},
		"only what is fatal":   {[]string{"GOPCCL_PEER_POOL_SIZE=1025", "PCCL_LOG_LEVEL=FATAL"}, "3", ""},
		"chunk size":           {[]string{"PCCL_MULTIPLEX_CHUNK_SIZE=1048576", "PCCL_LOG_LEVEL=WARN"}, "0", ""},
		"chunk size too small": {[]string{"PCCL_MULTIPLEX_CHUNK_SIZE=1", "PCCL_LOG_LEVEL=WARN"}, "0", "PCCL_MULTIPLEX_CHUNK_SIZE=1 is taken as 4096"},
		"no number":            {[]string{"PCCL_NUM_BENCHMARK_CONNECTIONS=many", "PCCL_LOG_LEVEL=WARN"}, "0", "PCCL_NUM_BENCHMARK_CONNECTIONS"},
		"quiet by default":     {[]string{"PCCL_NUM_BENCHMARK_CONNECTIONS=many", "PCCL_LOG_LEVEL=ERR"}, "0", ""},
		"ours is stronger":     {[]string{"PCCL_MULTIPLEX_CHUNK_SIZE=1", "GOPCCL_DATA_FRAME_BYTES=8KiB", "PCCL_LOG_LEVEL=WARN"}, "0", ""},
		"operations":           {[]string{"PCCL_MAX_CONCURRENT_COLLECTIVE_OPS=1", "PCCL_LOG_LEVEL=WARN"}, "0", ""},
		"level from the file":  {[]string{"PCCL_LOG_LEVEL", "GOPCCL_CONFIG=" + right, "PCCL_MULTIPLEX_CHUNK_SIZE=1"}, "0", "is taken as 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, lib := range []string{"libpccl.so", "libgopccl.so"} {
				out, log := execute(t, nil, load, append([]string{filepath.Join(work, lib)}, c.vars...)...)
				require.Equal(t, c.result+"\n", out, log)
				if c.log == "" {
					require.Empty(t, log)
				} else {
					require.Contains(t, log, c.log)
				}
			}
		})
	}
}

// 900 cycles leave descriptors, threads and memory where they were after 50.
func TestCycles(t *testing.T) {
	// Little garbage: how much there is when memory is read is chance.
	out, _ := execute(t, []string{"GOGC=25"}, compile(t, "cycles.c", "-O2"), port(), "300", "3")
	var fds, threads, pages [4]int
	for i, in := 0, strings.NewReader(out); i < len(fds); i++ {
		_, err := fmt.Fscan(in, &fds[i], &threads[i], &pages[i])
		require.NoError(t, err, out)
	}
	t.Logf("descriptors %v, threads %v, resident pages %v", fds, threads, pages)
	require.LessOrEqual(t, fds[3], fds[0])
	// The runtime starts a thread when more calls than ever block at the same time, and keeps it: on a busy
	// machine some at once. What is lost by cycles is lost in each 300 of them.
	require.LessOrEqual(t, min(threads[1]-threads[0], threads[2]-threads[1], threads[3]-threads[2]), 1)
	require.LessOrEqual(t, pages[3]*os.Getpagesize(), pages[0]*os.Getpagesize()+4<<20)
}
