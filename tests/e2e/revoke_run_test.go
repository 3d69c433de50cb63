package e2e

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
)

func init() {
	// It makes all-reduces until the world is as small as Extra, and Steps more then. Count
	// is how many of its operations were aborted.
	roles["keyed"] = func(ctx context.Context, o order, say func(report)) error {
		c, err := join(ctx, o)
		if err != nil {
			return err
		}
		defer c.Close()
		say(report{Event: "joined"})
		v, aborted := make([]float32, o.Count), 0
		for left := o.Steps; left > 0; {
			info, err := core.AllReduceSlice(ctx, c, v, v, core.Sum)
			switch {
			case err == nil && info.WorldSize == o.Extra:
				left--
				continue
			case err == nil:
				continue
			}
			say(report{Event: "aborted", Text: err.Error()})
			if errs.CodeOf(err) == errs.Kicked {
				return nil
			}
			aborted++
			if err := c.UpdateTopology(ctx); err != nil {
				return err
			}
		}
		say(report{Event: "stepped", World: aborted})
		return nil
	}
}

// One of four processes is revoked during all-reduces, by the file of the master alone.
// It is told why, the others end their connections with it because of the list that the
// master tells, and one operation is aborted at most.
func TestRevokedByProcesses(t *testing.T) {
	k := newKeys(t)
	m := start(t, order{Role: "master", ID: 63, Credential: k.file("head", secure.Master), Revoked: k.list})
	addr := m.await("listening", patience).Addr
	var cs []*child
	for id := range 4 {
		name := "gpu-" + string(rune('0'+id))
		cs = append(cs, start(t, order{Role: "keyed", Master: addr, ID: id, World: 4, Count: 50000, Steps: 50, Extra: 3, Credential: k.file(name, secure.Peer)}))
	}
	for _, c := range cs {
		c.await("joined", patience)
	}
	_, err := k.Revoke("gpu-3")
	require.NoError(t, err)
	require.Contains(t, cs[3].await("aborted", patience).Text, "certificate revoked of peer gpu-3")
	for _, c := range cs[:3] {
		require.LessOrEqual(t, c.await("stepped", patience).World, 1)
		says(t, "the revocation list was taken over", c)
	}
}
