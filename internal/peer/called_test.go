package peer

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// What leaves a session has the names of peers, those of the round before as well, and nothing
// else of it changes.
func TestPeersAreCalledByTheirNames(t *testing.T) {
	n := &names{}
	a, b, c := wire.UUID{0x11, 1}, wire.UUID{0x22, 2}, wire.UUID{0x33, 3}
	n.learn([]wire.NamedMember{{UUID: a, Name: "gpu-0"}, {UUID: b, Name: "gpu-1"}})
	n.learn([]wire.NamedMember{{UUID: a, Name: "gpu-0"}, {UUID: c}})
	require.Equal(t, map[wire.UUID]string{a: "gpu-0"}, n.told())
	require.Equal(t, "reader from gpu-0/11010000: step 2; sender to 33030000: 22020000 bytes; peer gpu-1/22020000: has not connected",
		n.sentence("reader from 11010000: step 2; sender to 33030000: 22020000 bytes; peer 22020000: has not connected"))

	lost := errs.New(errs.RankConnectionLost, "all-reduce", errors.New("why")).WithPeer(b.String() + ", " + c.String()).WithHint("retry")
	err := n.named(lost)
	require.ErrorIs(t, err, errs.RankConnectionLost)
	require.ErrorContains(t, err, "with gpu-1/"+b.String()+", "+c.String()+":")
	require.NotContains(t, lost.Error(), "gpu-1", "others have it, too")
	require.NoError(t, n.named(nil))
	other := errors.New("another one")
	require.Same(t, other, n.named(other))

	var out strings.Builder
	log := slog.New(caller{slog.NewTextHandler(&out, nil), n}).With("self", a.Short()).WithGroup("g")
	log.Warn("lost", "peer", b.Short(), "error", lost, "n", 7)
	require.Contains(t, out.String(), "self=gpu-0/11010000 g.peer=gpu-1/22020000 g.error=\"gopccl: all-reduce with gpu-1/"+b.String())
	require.Contains(t, out.String(), "g.n=7")

	n.learn([]wire.NamedMember{{UUID: a}, {UUID: c}})
	n.learn([]wire.NamedMember{{UUID: a}, {UUID: c}})
	require.Nil(t, n.told(), "nobody has a name")
	require.Empty(t, n.called)
}
