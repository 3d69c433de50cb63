//go:build linux

package cabi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

const callLimit = 30 * time.Second

// driver compiles the driver of the original library against ours.
func driver(t *testing.T) string {
	out := filepath.Join(t.TempDir(), "driver")
	text, err := exec.Command("gcc", "-std=gnu11", "-O2", "-o", out, "../internal/pccl/original/driver.c",
		filepath.Join(work, "libpccl.so"), "-Wl,-rpath,"+work).CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

func start(t *testing.T, name string, cmd *exec.Cmd) *pccl.Process {
	p, err := pccl.Start(name, cmd, callLimit)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func float32s(v ...float32) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func equal(want, got []byte) error {
	if !bytes.Equal(want, got) {
		return fmt.Errorf("%d bytes are not the %d that were expected", len(got), len(want))
	}
	return nil
}

// world starts a master and peers, each a process with our library, and
// connects them.
func world(t *testing.T, program string, size int) (*pccl.Process, []*pccl.Process) {
	command := func() *exec.Cmd {
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), "PCCL_LOG_LEVEL=DEBUG")
		return cmd
	}
	at, err := strconv.Atoi(port())
	require.NoError(t, err)
	master := start(t, "master", command())
	require.NoError(t, master.Master("127.0.0.1", at))
	var peers []*pccl.Process
	for range size {
		p := start(t, "peer", command())
		require.NoError(t, p.Comm("127.0.0.1", at, 0, 1))
		join(t, peers, p)
		peers = append(peers, p)
	}
	return master, peers
}

// join lets p into the run of the members.
func join(t *testing.T, members []*pccl.Process, p *pccl.Process) {
	connected := make(chan error, 1)
	go func() { connected <- p.Connect() }()
	if len(members) > 0 {
		require.Eventually(t, func() bool {
			votes := make(chan bool, len(members))
			for _, m := range members {
				go func() {
					pending, err := m.Pending()
					votes <- err == nil && pending
				}()
			}
			all := true
			for range members {
				all = <-votes && all
			}
			return all
		}, callLimit, time.Millisecond)
		require.NoError(t, each(members, func(_ int, m *pccl.Process) error { return m.Update() }))
	}
	require.NoError(t, <-connected)
}

// each runs f for all peers at a time.
func each(peers []*pccl.Process, f func(int, *pccl.Process) error) error {
	failed := make(chan error, len(peers))
	for i, p := range peers {
		go func() { failed <- f(i, p) }()
	}
	var err error
	for range peers {
		err = errors.Join(err, <-failed)
	}
	return err
}

// Results after the death of the master (control spec, section 13.5, below the table).
func TestMasterKilled(t *testing.T) {
	program := driver(t)
	sum := pccl.Reduce{InPlace: true, Op: dtype.Sum, DType: dtype.Float32, Data: float32s(1, 2, 3)}
	for name, c := range map[string]struct {
		call func(*pccl.Process) error
		want error
	}{
		"update":   {(*pccl.Process).Update, errs.UpdateTopologyFailed},
		"pending":  {func(p *pccl.Process) error { _, err := p.Pending(); return err }, errs.InvalidUsage},
		"optimize": {(*pccl.Process).Optimize, errs.TopologyOptimizationFailed},
		"sync": {func(p *pccl.Process) error {
			_, err := p.Sync(0, 0, []pccl.Tensor{{Key: "w", DType: dtype.Float32, Data: float32s(1)}})
			return err
		}, errs.InvalidUsage},
		"reduce": {func(p *pccl.Process) error {
			res, err := p.Reduce(sum)
			return errors.Join(err, equal(sum.Data, res.Data))
		}, errs.RankConnectionLost},
		"retry":   {func(p *pccl.Process) error { _, _, err := p.Retry([]pccl.Reduce{sum}, 1); return err }, errs.RankConnectionLost},
		"connect": {(*pccl.Process).Connect, errs.InvalidUsage},
		"destroy": {(*pccl.Process).Destroy, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master, peers := world(t, program, 2)
			master.Kill()
			for _, p := range peers {
				err := c.call(p)
				require.ErrorIs(t, err, c.want)
				if c.want == nil {
					require.NoError(t, err)
				}
			}
		})
	}
	t.Run("await", func(t *testing.T) {
		t.Parallel()
		master, peers := world(t, program, 2)
		require.NoError(t, peers[0].Launch(sum)) // the other does not take part
		master.Kill()
		res, err := peers[0].Await(sum.Tag)
		require.ErrorIs(t, err, errs.RankConnectionLost)
		require.Equal(t, sum.Data, res.Data)
	})
}

// One of three peers dies while large operations run; the others go on and agree.
func TestPeerKilled(t *testing.T) {
	_, peers := world(t, driver(t), 3)
	data := make([]byte, 8<<20)
	for i := range data {
		data[i] = byte(i * i)
	}
	ops := make([]pccl.Reduce, 8)
	for i := range ops {
		ops[i] = pccl.Reduce{InPlace: true, Tag: uint64(i), Op: dtype.Sum, DType: dtype.Uint8, Data: data}
	}
	for i := range ops {
		require.NoError(t, peers[2].Launch(ops[i]))
	}
	survivors := peers[:2]
	var results [2][][]byte
	go peers[2].Kill()
	require.NoError(t, each(survivors, func(i int, p *pccl.Process) (err error) {
		_, results[i], err = p.Retry(ops, 4)
		return err
	}))
	require.Equal(t, results[0], results[1])
	for _, r := range results[0] { // with the dead one or without, but nothing in between
		require.True(t, r[1] == 2 || r[1] == 3)
		for i := range r {
			if want := data[i] * r[1]; r[i] != want {
				t.Fatalf("byte %d is %d, want %d", i, r[i], want)
			}
		}
	}
	require.Eventually(t, func() bool {
		if each(survivors, func(_ int, p *pccl.Process) error { return p.Update() }) != nil {
			return false
		}
		n, err := survivors[0].Attr(pccl.LocalWorldSize)
		return err == nil && n == 2
	}, callLimit, time.Millisecond)
}
