//go:build linux && amd64

package cabi

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// both runs f for both peers at a time.
func both(t *testing.T, peers [2]*pccl.Process, f func(i int, p *pccl.Process) error) {
	t.Helper()
	failed := make(chan error, 1)
	go func() { failed <- f(1, peers[1]) }()
	err := f(0, peers[0])
	require.NoError(t, <-failed)
	require.NoError(t, err)
}

// One program, unchanged, once with the original library and once with ours,
// in one run, under the master of either.
func TestWithOriginal(t *testing.T) {
	original := pccl.Require(t)
	program := driver(t)
	ours := func() *exec.Cmd {
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), "PCCL_LOG_LEVEL=DEBUG")
		return cmd
	}
	for name, masterCommand := range map[string]func() *exec.Cmd{"original master": original.Command, "our master": ours} {
		t.Run(name, func(t *testing.T) {
			at, err := strconv.Atoi(port())
			require.NoError(t, err)
			master := start(t, name, masterCommand())
			require.NoError(t, master.Master("127.0.0.1", at))
			peers := [2]*pccl.Process{start(t, "original peer", original.Command()), start(t, "our peer", ours())}
			for _, p := range peers {
				require.NoError(t, p.Comm("127.0.0.1", at, 0, 2))
				require.ErrorIs(t, p.Update(), errs.InvalidUsage)
			}
			join(t, nil, peers[0])
			join(t, peers[:1], peers[1])
			for i, p := range peers {
				require.ErrorIs(t, p.Connect(), errs.InvalidUsage, "%d", i)
				n, err := p.Attr(pccl.LocalWorldSize)
				require.NoError(t, err)
				require.Equal(t, 2, n)
			}
			states(t, peers)
			reduces(t, peers)
			both(t, peers, func(_ int, p *pccl.Process) error { return p.Update() })

			// A peer that is left alone is told so, by both in the same words.
			require.NoError(t, peers[0].Destroy())
			require.Eventually(t, func() bool {
				n, err := peers[1].Attr(pccl.LocalWorldSize)
				return err == nil && peers[1].Update() == nil && n == 1
			}, callLimit, time.Millisecond)
			_, err = peers[1].Reduce(pccl.Reduce{Op: dtype.Sum, DType: dtype.Float32, Data: float32s(1)})
			require.ErrorIs(t, err, errs.TooFewPeers)
			require.NoError(t, peers[1].Destroy())
			require.NoError(t, master.StopMaster())
		})
	}
}

func states(t *testing.T, peers [2]*pccl.Process) {
	for revision, strategies := range [][2]wire.Strategy{
		{wire.EnforcePopular, wire.EnforcePopular}, {wire.SendOnly, wire.ReceiveOnly}, {wire.ReceiveOnly, wire.SendOnly},
	} {
		both(t, peers, func(i int, p *pccl.Process) error {
			content := float32s(1, 2, 3, float32(revision))
			if strategies[i] == wire.ReceiveOnly {
				content = float32s(9, 9, 9, 9)
			}
			res, err := p.Sync(uint64(revision), strategies[i], []pccl.Tensor{{Key: "w", DType: dtype.Float32, Data: content}})
			if err != nil {
				return err
			}
			return equal(float32s(1, 2, 3, float32(revision)), res.Tensors[0])
		})
	}
}

func reduces(t *testing.T, peers [2]*pccl.Process) {
	same := func(op pccl.Reduce, data [2][]byte) {
		var results [2]pccl.Reduced
		both(t, peers, func(i int, p *pccl.Process) (err error) {
			r := op
			r.Data = data[i]
			results[i], err = p.Reduce(r)
			return err
		})
		require.Equal(t, results[0], results[1], "%+v", op)
	}
	for typ := range dtype.Type(dtype.NumTypes) {
		if typ == dtype.Float16 || typ == dtype.BFloat16 {
			_, err := peers[1].Reduce(pccl.Reduce{Op: dtype.Sum, DType: typ, Data: make([]byte, 8)})
			require.ErrorIs(t, err, errs.InvalidArgument, "the original would exit")
			continue
		}
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			a, b := make([]byte, 40*typ.Size()), make([]byte, 40*typ.Size())
			for i := range 40 { // small whole numbers, floats included
				put(a[i*typ.Size():], typ, i%7+1)
				put(b[i*typ.Size():], typ, i%5+1)
			}
			same(pccl.Reduce{InPlace: op%2 == 0, Tag: 5, Op: op, DType: typ}, [2][]byte{a, b})
		}
	}
	many := [2][]byte{}
	for i := range 5000 {
		many[0] = append(many[0], float32s(float32(i))...)
		many[1] = append(many[1], float32s(float32(-i)/3)...)
	}
	for _, algorithm := range []pccl.Algorithm{pccl.MinMax, pccl.ZeroPoint} {
		same(pccl.Reduce{Op: dtype.Avg, DType: dtype.Float32, Algorithm: algorithm, QType: dtype.Uint8}, many)
	}
	both(t, peers, func(i int, p *pccl.Process) error {
		for tag := range uint64(8) {
			if err := p.Launch(pccl.Reduce{InPlace: true, Tag: tag, Op: dtype.Max, DType: dtype.Float32, Data: many[i]}); err != nil {
				return err
			}
		}
		for tag := range uint64(8) {
			res, err := p.Await(tag)
			if err := errors.Join(err, equal(many[0], res.Data)); err != nil {
				return err
			}
		}
		ops := make([]pccl.Reduce, 6)
		for k := range ops {
			ops[k] = pccl.Reduce{Tag: uint64(k), Op: dtype.Max, DType: dtype.Float32, Data: many[i]}
		}
		_, results, err := p.Retry(ops, 3)
		for _, r := range results {
			err = errors.Join(err, equal(many[0], r))
		}
		return err
	})
}

func put(b []byte, t dtype.Type, v int) {
	switch {
	case t == dtype.Float32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(v)))
	case t == dtype.Float64:
		binary.LittleEndian.PutUint64(b, math.Float64bits(float64(v)))
	default:
		b[0] = byte(v)
	}
}
