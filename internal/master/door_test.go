package master

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// The count is what an operator goes by who wants to require TLS: PCCL peers that come where they
// may beside TLS keep nobody from it, and a master that peers are not with does not count at all.
func TestRemind(t *testing.T) {
	var log strings.Builder
	s := &Server{log: slog.New(slog.NewTextHandler(&log, nil))}
	s.remind()
	require.Contains(t, log.String(), "security.mode is allow")
	require.NotContains(t, log.String(), "have no certificate")

	at := netip.MustParseAddrPort("10.0.0.1:5")
	without := uncertified([]fsm.ClientInfo{
		{UUID: wire.UUID{1}, Remote: at, Name: "gpu-1"}, {UUID: wire.UUID{2}, Remote: at}, {UUID: wire.UUID{3}, Remote: at, PCCL: true},
	})
	require.Equal(t, []string{wire.UUID{2}.Short() + " at 10.0.0.1:5"}, without)
}
