package e2e

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/errs"
)

// ownHasher is a hasher of a program's own: it counts the bytes, and is wrong by off.
type ownHasher struct {
	name  string
	bytes *atomic.Int64
	off   uint32
}

func (h ownHasher) Name() string { return h.name }

func (h ownHasher) SimpleHash(b []byte) uint32 {
	h.bytes.Add(int64(len(b)))
	return digest.SimpleHash(b) + h.off
}

func (ownHasher) CRC32C(b []byte) uint32        { return digest.CRC32C(b) }
func (ownHasher) Rank() int                     { return -1 }
func (ownHasher) Probe() error                  { return nil }
func (h ownHasher) New() (digest.Hasher, error) { return h, nil }

var hashed atomic.Int64 // by "counting"

func init() {
	digest.Register("counting", ownHasher{"counting", &hashed, 0})
	digest.Register("wrong", ownHasher{"wrong", new(atomic.Int64), 1})
}

// A hasher that is chosen by name hashes what a peer votes with and what it
// receives; a peer with another hasher understands it.
func TestHasherByName(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, _, err := digest.Select("counting") // checked and made
	require.NoError(t, err)
	hashed.Store(0)
	names := []string{"cpu_generic", "counting"}
	comms := world(t, ctx, localMaster(t), 2, func(id int, o *core.Options) {
		o.Hash = core.HashSettings{Hasher: names[id], Workers: 2}
	})
	const n = 3 << 20
	tensors, outdated := [2][]byte{make([]byte, n), make([]byte, n)}, [2]bool{}
	for _, err := range each(comms, func(i int, c *core.Communicator) error {
		for k := range tensors[i] {
			tensors[i][k] = byte(k * (2 - i))
		}
		st := &core.SharedState{Revision: uint64(2 - i), Tensors: []core.Tensor{core.TensorOf("v", tensors[i])}}
		info, err := c.SyncSharedState(ctx, st, core.SyncOptions{})
		outdated[i] = info.Outdated
		return err
	}) {
		require.NoError(t, err)
	}
	require.Equal(t, [2]bool{false, true}, outdated)
	require.True(t, bytes.Equal(tensors[0], tensors[1]))
	require.EqualValues(t, 2*n, hashed.Load(), "its own state, and the one that it has fetched")
}

// A hasher that computes other values, or is unknown, is refused before anything
// is dialled.
func TestWrongHasherIsRefused(t *testing.T) {
	for _, name := range []string{"wrong", "md5"} {
		_, err := connect(t.Context(), core.Options{Master: "127.0.0.1:1", PortBase: -1, Hash: core.HashSettings{Hasher: name}})
		require.ErrorIs(t, err, errs.InvalidArgument)
		require.ErrorContains(t, err, name)
		require.Equal(t, name == "wrong", errors.Is(err, digest.ErrWrong), "%v", err)
	}
}
