package peer

import (
	"log/slog"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Ports that Close has closed are not worth an error, however late the machine learns that it was called.
func TestClosedPortsAreNoErrors(t *testing.T) {
	var log strings.Builder // written by the one goroutine of the session's lines, read behind its end
	s := newScript(t)
	sess := s.welcome(func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	require.Eventually(t, sess.box.claim, time.Minute, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- sess.Close() }()
	require.Eventually(t, func() bool {
		var all strings.Builder
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
		return !strings.Contains(all.String(), "(*Port).Serve+")
	}, time.Minute, time.Millisecond)
	require.NoError(t, sess.ctx.Err())
	sess.turn()
	require.NoError(t, <-closed)
	require.NotContains(t, log.String(), "ERROR")
}
