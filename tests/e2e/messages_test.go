package e2e

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// swap has every member send one message of n bytes to each other one, and receive theirs.
func swap(ctx context.Context, c *core.Communicator, n int) error {
	a := c.Attributes()
	text := func(from, to int) []byte { return bytes.Repeat([]byte{byte(1 + 16*from + to)}, n) }
	var sends, recvs []*core.Transfer
	got := make([][]byte, len(a.Members))
	for k := range a.Members {
		if k == a.Index {
			continue
		}
		got[k] = make([]byte, n)
		s, err := c.SendAsync(ctx, core.Message{Peer: k, Tag: 3, Data: text(a.Index, k)})
		if err != nil {
			return err
		}
		r, err := c.ReceiveAsync(ctx, core.MessageOf(k, 3, got[k]))
		if err != nil {
			return err
		}
		sends, recvs = append(sends, s), append(recvs, r)
	}
	for i := range sends {
		if _, err := sends[i].Wait(ctx); err != nil {
			return err
		}
		k, err := recvs[i].Wait(ctx)
		if err != nil {
			return err
		}
		if !bytes.Equal(got[k], text(k, a.Index)) {
			return fmt.Errorf("member %d got something else of %d", a.Index, k)
		}
	}
	return nil
}

// Messages between all members, before and after a round, with and without their data in
// the offer; those who leave end what waits for them.
func TestMessages(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 4, nil)
	all := func(do func(c *core.Communicator) error) {
		t.Helper()
		for _, err := range each(c, func(_ int, c *core.Communicator) error { return do(c) }) {
			require.NoError(t, err)
		}
	}
	for range 2 {
		for _, n := range []int{0, 5, 1 << 20} {
			all(func(c *core.Communicator) error { return swap(ctx, c, n) })
		}
		all(func(c *core.Communicator) error { return c.UpdateTopology(ctx) })
	}
	all(func(c *core.Communicator) error {
		a := c.Attributes()
		if a.Index > 0 {
			return c.Send(ctx, core.MessageOf(0, 4, []int32{int32(a.Index)}))
		}
		for range 3 {
			got := make([]int32, 1)
			from, err := c.Receive(ctx, core.MessageOf(core.AnyPeer, 4, got))
			if err != nil || int32(from) != got[0] {
				return fmt.Errorf("%d from %d: %w", got[0], from, err)
			}
		}
		return nil
	})

	// One end gives up.
	from, to := c[0].Attributes().Index, c[1].Attributes().Index
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	_, err := c[0].Receive(short, core.Message{Peer: to, Tag: 9, Data: make([]byte, 1)})
	require.Equal(t, errs.Canceled, errs.CodeOf(err), err)
	s, err := c[1].SendAsync(ctx, core.Message{Peer: from, Tag: 9, Data: make([]byte, 2)})
	require.NoError(t, err)
	_, err = c[0].Receive(ctx, core.Message{Peer: to, Tag: 9, Data: make([]byte, 1)})
	require.Equal(t, errs.Mismatch, errs.CodeOf(err), err)
	_, err = s.Wait(ctx)
	require.Equal(t, errs.Mismatch, errs.CodeOf(err), err)

	// A member leaves.
	gone := c[3].Attributes().Index
	arrived, err := c[0].ReceiveAsync(ctx, core.Message{Peer: core.AnyPeer, Tag: 11})
	require.NoError(t, err)
	require.NoError(t, c[3].Send(ctx, core.Message{Peer: from, Tag: 11}))
	var waits []*core.Transfer
	for _, peer := range []int{gone, core.AnyPeer} {
		r, err := c[0].ReceiveAsync(ctx, core.Message{Peer: peer, Tag: 10, Data: make([]byte, 1)})
		require.NoError(t, err)
		waits = append(waits, r)
	}
	require.NoError(t, c[3].Close())
	for _, w := range waits {
		_, err := w.Wait(ctx)
		require.Equal(t, errs.RankConnectionLost, errs.CodeOf(err), err)
	}
	_, err = c[3].SendAsync(ctx, core.Message{Peer: from})
	require.Equal(t, errs.Closed, errs.CodeOf(err), err)
	c = c[:3]
	all(func(c *core.Communicator) error { return c.UpdateTopology(ctx) })
	peer, err := arrived.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, gone, peer, "the sender as it was counted then")
	all(func(c *core.Communicator) error { return swap(ctx, c, 100) })
	for _, peer := range []int{-2, 3, c[0].Attributes().Index} {
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(c[0].Send(ctx, core.Message{Peer: peer})))
	}
}

// A group in which messages cannot be told from those of another round has none.
func TestMessagesWithoutEpochs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 2, func(i int, o *core.Options) { o.EagerBytes = -i })
	_, err := c[0].Receive(ctx, core.Message{Peer: core.AnyPeer})
	require.Equal(t, errs.Unsupported, errs.CodeOf(err), err)
	require.ErrorContains(t, err, "eager start")
}
