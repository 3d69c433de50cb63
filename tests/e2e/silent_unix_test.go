//go:build unix

package e2e

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// A peer that is stopped (SIGSTOP) is dropped and named, on the survivors and
// on the master; the survivors go on, and the stopped one learns it when it
// wakes (PCCL: never).
func TestStoppedPeerIsDropped(t *testing.T) {
	t.Parallel()
	m, master := startMaster(t)
	var cs []*child
	for id := range 3 {
		cs = append(cs, start(t, order{Role: "trainer", Master: master, ID: id, Count: 50_000, World: 3}))
	}
	for _, c := range cs {
		c.await("step", patience)
	}
	require.NoError(t, cs[2].cmd.Process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	for _, c := range cs[:2] {
		for {
			if r := c.await("step", patience); r.World == 2 {
				break
			}
		}
	}
	t.Logf("the survivors went on %v after the stop", time.Since(stopped))
	says(t, "silent for", m) // S1-37, S2-14: the master names the silent peer
	says(t, "silent for", cs[:2]...)
	require.NoError(t, cs[2].cmd.Process.Signal(syscall.SIGCONT))
	for {
		r, ok := <-cs[2].lines
		require.True(t, ok, "the stopped peer ended without a word\n%s", cs[2].log())
		if r.Event == "error" {
			t.Log("the stopped peer: ", r.Text)
			return
		}
	}
}

// cpuSeconds is the processor time that this process has used.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// waiter reduces at once (Flag), or only after o.Steps seconds, and reports
// the processor time that the wait has cost.
func waiter(ctx context.Context, o order, say func(report)) error {
	comm, err := join(ctx, o)
	if err != nil {
		return err
	}
	defer comm.Close()
	if !o.Flag {
		time.Sleep(time.Duration(o.Steps) * time.Second)
	}
	before, began := cpuSeconds(), time.Now()
	data := make([]float32, 1000)
	if _, err := core.AllReduceSlice(ctx, comm, data, data, core.Sum); err != nil {
		return err
	}
	say(report{Event: "waited", Sec: cpuSeconds() - before, Text: time.Since(began).String()})
	return nil
}

func init() { roles["waiter"] = waiter }

// A peer that waits for another one's vote, heartbeats included, costs under a
// percent of a core (PCCL polls).
// Quirk Q41.
func TestWaitingIsCheap(t *testing.T) {
	_, master := startMaster(t)
	const seconds = 4
	a := start(t, order{Role: "waiter", Master: master, ID: 0, World: 2, Flag: true})
	start(t, order{Role: "waiter", Master: master, ID: 1, World: 2, Steps: seconds})
	r := a.await("waited", patience)
	t.Logf("waited %s and used %.3f s of processor time", r.Text, r.Sec)
	require.Less(t, r.Sec, 0.01*seconds) // S4-09
}

// The advice for a process that hangs, a dump of what its goroutines
// wait for, names the loops of master and peer.
func TestDumpOfGoroutines(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	require.Contains(t, string(text), "kill -QUIT")
	require.Contains(t, string(text), "go test -race")
	loops := []string{"internal/master.(*Server).loop", "internal/peer.(*Session).loop", "internal/peer.(*Session).readMaster"}
	// A goroutine that runs at that moment, or has not begun, shows no stack. So
	// these have come to rest; but for a heartbeat that may pass just then.
	var dump string
	for range 3 {
		m, addr := startMaster(t)
		p := start(t, order{Role: "rester", Master: addr})
		p.await("connected", patience)
		dump = autopsy([]*child{p, m}) // the peer first, for it ends with its master
		missing := false
		for _, loop := range loops {
			missing = missing || !strings.Contains(dump, loop)
		}
		if !missing {
			return
		}
	}
	t.Fatalf("not all of %q in\n%s", loops, dump) // S4-32
}

// rester connects and then leaves everything to the goroutines of the session.
func rester(ctx context.Context, o order, say func(report)) error {
	comm, err := join(ctx, o)
	if err != nil {
		return err
	}
	defer comm.Close()
	say(report{Event: "connected"})
	<-ctx.Done()
	return nil
}

func init() { roles["rester"] = rester }
