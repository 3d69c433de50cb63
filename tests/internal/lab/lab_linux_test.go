//go:build wan

package lab

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/tests/internal/lab/netem"
)

func start(t testing.TB, text string) *Lab {
	p, err := Parse("test", strings.NewReader(text))
	require.NoError(t, err)
	l, err := Start(p, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// pipe returns the ends of a TCP connection from one host to another.
func pipe(t testing.TB, l *Lab, from, to int) (near, far net.Conn) {
	var ln net.Listener
	require.NoError(t, l.Hosts[to].Do(func() (err error) {
		ln, err = net.Listen("tcp", net.JoinHostPort(l.Hosts[to].Addr.String(), "0"))
		return err
	}))
	defer ln.Close()
	require.NoError(t, l.Hosts[from].Do(func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		near, err = (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
		return err
	}))
	far, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// trips returns the median of round trips of one byte.
func trips(t *testing.T, near, far net.Conn, n int) time.Duration {
	go io.Copy(far, far)
	var all []time.Duration
	for range n {
		began := time.Now()
		_, err := near.Write([]byte{1})
		require.NoError(t, err)
		_, err = near.Read(make([]byte, 1))
		require.NoError(t, err)
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[n/2]
}

// The network is as slow as it was told to be: what it adds is a matter of the
// machine, what it must not do is to be faster.
func TestDelayAndRate(t *testing.T) {
	l := start(t, `hosts 2
		host * up 20 down 20
		pair 0 1 delay 20ms
		pair 1 0 delay 10ms`)
	near, far := pipe(t, l, 0, 1)
	require.GreaterOrEqual(t, trips(t, near, far, 20), 30*time.Millisecond)

	near, far = pipe(t, l, 0, 1)
	const bytes = 2 << 20
	began := time.Now()
	go near.Write(make([]byte, bytes))
	_, err := io.CopyN(io.Discard, far, bytes)
	require.NoError(t, err)
	ideal := time.Duration(bytes * 8 / 20e6 * 1e9)
	require.Greater(t, time.Since(began), ideal)
	require.Positive(t, l.Stats().Delivered)
}

// While a pair is down nothing passes, and TCP goes on afterwards.
func TestBlackout(t *testing.T) {
	l := start(t, "hosts 2\npair * * delay 1ms")
	near, far := pipe(t, l, 0, 1)
	trips(t, near, far, 3)
	down := func(is bool) {
		done := make(chan struct{})
		l.Change(func(n *netem.Net) { n.Change(0, 1, func(p *netem.Path) { p.Down = is }); close(done) })
		<-done
	}
	down(true)
	lost := l.Stats().Lost
	_, err := near.Write([]byte{1})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return l.Stats().Lost > lost }, 20*time.Second, time.Millisecond)
	down(false)
	require.NoError(t, near.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = near.Read(make([]byte, 1))
	require.NoError(t, err)
}

// Programs in the hosts do not run where packets are carried.
func TestProgramsKeepAwayFromTheCarrier(t *testing.T) {
	l := start(t, "hosts 2")
	for _, h := range l.Hosts {
		var out bytes.Buffer
		cmd := exec.Command("nproc")
		cmd.Stdout = &out
		require.NoError(t, h.Start(cmd))
		require.NoError(t, cmd.Wait())
		want := len(l.others)
		if l.carrier < 0 {
			want = runtime.NumCPU()
		}
		require.Equal(t, strconv.Itoa(want), strings.TrimSpace(out.String()))
	}
}

// While a network is open its carrier has a processor to itself: threads of this process and of the kernel
// that may run elsewhere do. They come back when the last network is closed.
func TestOthersLeaveTheCarrier(t *testing.T) {
	where := func(tid int) (list []int) {
		var set unix.CPUSet
		err := unix.SchedGetaffinity(tid, &set)
		if err == unix.ESRCH {
			return nil // it has ended
		}
		require.NoError(t, err)
		for c := range runtime.NumCPU() {
			if set.IsSet(c) {
				list = append(list, c)
			}
		}
		return list
	}
	all := allowed()
	here := func() (tids []int) {
		names, err := filepath.Glob("/proc/self/task/*")
		require.NoError(t, err)
		for _, name := range names {
			tid, err := strconv.Atoi(filepath.Base(name))
			require.NoError(t, err)
			tids = append(tids, tid)
		}
		return tids
	}
	// carriers returns how many threads of this process may run where packets are carried.
	carriers := func(processor int) (n int) {
		for _, tid := range here() {
			if slices.Contains(where(tid), processor) {
				n++
			}
		}
		return n
	}
	threads := runtime.GOMAXPROCS(0)
	if len(all) < 2 {
		return // there is nothing to divide
	}
	p, err := Parse("test", strings.NewReader("hosts 2"))
	require.NoError(t, err)
	a, err := Start(p, 1)
	require.NoError(t, err)
	require.LessOrEqual(t, carriers(a.carrier), 1)
	moved := maps.Clone(room.moved)
	for tid := range kernel() {
		if now := where(tid); len(now) > 1 {
			require.NotContains(t, now, a.carrier)
		}
	}
	b, err := Start(p, 1)
	require.NoError(t, err)
	require.Equal(t, a.carrier, b.carrier)
	require.Equal(t, a.others, b.others)
	require.NoError(t, a.Close())
	require.LessOrEqual(t, carriers(b.carrier), 1)
	require.Equal(t, threads, runtime.GOMAXPROCS(0))
	require.NoError(t, b.Close())
	for _, tid := range here() {
		if now := where(tid); now != nil {
			require.Equal(t, all, now)
		}
	}
	for tid := range moved {
		if now := where(tid); now != nil {
			require.Contains(t, now, a.carrier)
		}
	}
}

// If a process ends with a network open, threads of the kernel may run where packets were carried.
func TestOthersComeBackToADeadCarrier(t *testing.T) {
	const variable = "GOPCCL_TEST_DIES"
	if os.Getenv(variable) != "" {
		p, err := Parse("test", strings.NewReader("hosts 2"))
		require.NoError(t, err)
		_, err = Start(p, 1)
		require.NoError(t, err)
		os.Exit(0)
	}
	before := map[int]unix.CPUSet{}
	for tid := range kernel() {
		var set unix.CPUSet
		if unix.SchedGetaffinity(tid, &set) == nil {
			before[tid] = set
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"=1")
	require.NoError(t, cmd.Run())
	require.Eventually(t, func() bool {
		for tid, want := range before {
			var set unix.CPUSet
			if unix.SchedGetaffinity(tid, &set) == nil && set != want {
				return false
			}
		}
		return true
	}, 20*time.Second, time.Millisecond)
}

// Every profile that comes along can be built.
func TestProfilesStart(t *testing.T) {
	for _, name := range Names() {
		p, err := Load(name)
		require.NoError(t, err)
		l, err := Start(p, 1)
		require.NoError(t, err, name)
		near, far := pipe(t, l, 0, 1)
		want := p.Paths[0][1].Delay + p.Paths[1][0].Delay
		require.GreaterOrEqual(t, trips(t, near, far, 3), want, name)
		require.NoError(t, l.Close())
	}
}

// What one connection moves when nothing but the machine bounds it, and how much of
// that came late.
func BenchmarkStream(b *testing.B) {
	for _, rate := range []string{"200", "1000", "0"} {
		b.Run(rate+"Mbps", func(b *testing.B) {
			host := ""
			if rate != "0" {
				host = "\nhost * up " + rate + " down " + rate
			}
			l := start(b, "hosts 2\npair * * delay 2ms"+host)
			near, far := pipe(b, l, 0, 1)
			const bytes = 16 << 20
			b.SetBytes(bytes)
			data := make([]byte, bytes)
			before := l.Stats()
			for b.Loop() {
				go near.Write(data)
				_, err := io.CopyN(io.Discard, far, bytes)
				require.NoError(b, err)
			}
			b.ReportMetric(100*l.Stats().Since(before).Share(), "late%")
		})
	}
}
