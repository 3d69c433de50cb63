//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const orphansRole = "bench-orphans"

func init() { roles[orphansRole] = runOrphans }

// runOrphans starts workers of every kind in every state that they wait in, says
// so and waits to be killed. Its arguments precede the workers' command.
func runOrphans(ctx context.Context, prefix []string) error {
	command := append(prefix[:len(prefix):len(prefix)], os.Args[0])
	// Two worlds that wait for orders, one of which has got a long one.
	for _, start := range []func(context.Context, int) (session, error){ours(command), floorOf(command)} {
		s, err := start(ctx, 2)
		if err != nil {
			return err
		}
		if _, err := s.run(ctx, sums(2, 4096, "none", 1), 1); err != nil {
			return err
		}
		if c, ok := s.(*crew); ok {
			for _, w := range c.ranks {
				if err := w.tell(order{Bytes: 16 << 20, Rounds: 1000, Concurrent: 1, Quantize: "none"}); err != nil {
					return err
				}
			}
		}
	}
	// Two that are never complete: a peer with an order that it cannot read yet,
	// and a member of the floor whom nobody connects to.
	master, err := startWorker(ctx, command, masterRole)
	if err != nil {
		return err
	}
	var addr string
	if err := master.hear(&addr); err != nil {
		return err
	}
	lonely, err := startWorker(ctx, command, peerRole, addr, "2")
	if err != nil {
		return err
	}
	if err := lonely.tell(order{Bytes: 4, Rounds: 1, Concurrent: 1, Quantize: "none"}); err != nil {
		return err
	}
	ring, err := startWorker(ctx, command, floorRole, "0", "2", "1")
	if err != nil {
		return err
	}
	var own string
	if err := ring.hear(&own); err != nil {
		return err
	}
	if err := ring.tell(addr); err != nil { // somebody who never connects back
		return err
	}
	fmt.Println("started")
	select {}
}

// A benchmark that is killed leaves no process behind, whatever its children
// wait for: the system ends them (Linux), and those that it does not tell, as
// they are not this process's own children, end with their input.
func TestKilledBenchmarkLeavesNothingBehind(t *testing.T) {
	for name, prefix := range map[string][]string{
		"children":      nil,
		"grandchildren": {"sh", "-c", `"$0" "$@"; exit $?`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			held, hold, err := os.Pipe()
			require.NoError(t, err)
			defer held.Close()
			cmd := exec.Command(os.Args[0], append([]string{orphansRole}, prefix...)...)
			// All descendants inherit it, and it ends with the last of them.
			cmd.ExtraFiles = []*os.File{hold}
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			hold.Close()
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "started\n", line)
			require.NoError(t, held.SetReadDeadline(time.Now().Add(30*time.Second)))
			require.NoError(t, cmd.Process.Kill())
			_, err = io.ReadAll(held)
			require.NoError(t, err, "processes are left")
			require.Error(t, cmd.Wait())
		})
	}
}
