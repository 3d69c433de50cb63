package trace_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/trace"
)

// Each subsystem has a level of its own, and loggers that exist already
// follow a change at once.
func TestLevels(t *testing.T) {
	var b strings.Builder
	l := trace.NewLevels(slog.LevelInfo)
	root := slog.New(l.Handler(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug})))
	data := root.With(trace.Subsystem, trace.SubData).With("peer", "x")
	master := root.WithGroup("g").With(trace.Subsystem, trace.SubMaster)
	written := func() (out []string) {
		b.Reset()
		for name, log := range map[string]*slog.Logger{"root": root, "data": data, "master": master} {
			log.Debug(name + "-debug")
			log.Info(name + "-info")
			log.Warn(name + "-warn")
		}
		for _, name := range []string{"root", "data", "master"} {
			for _, level := range []string{"debug", "info", "warn"} {
				if strings.Contains(b.String(), "msg="+name+"-"+level) {
					out = append(out, name+"-"+level)
				}
			}
		}
		return out
	}
	require.Equal(t, []string{"root-info", "root-warn", "data-info", "data-warn", "master-info", "master-warn"}, written())
	require.NoError(t, l.Set("data=debug, master=warn"))
	require.Equal(t, []string{"root-info", "root-warn", "data-debug", "data-info", "data-warn", "master-warn"}, written()) // S4-31
	require.Equal(t, "info,data=debug,master=warn", l.String())
	require.NoError(t, l.Set("error"))
	require.Equal(t, []string{"data-debug", "data-info", "data-warn", "master-warn"}, written(), "the others follow the rest")
	require.NoError(t, l.Set(l.String()), "what it writes it reads")
	for _, bad := range []string{"", "data", "date=info", "data=loud", "info,,warn", "data=debug,x=info"} {
		require.Error(t, l.Set(bad), bad)
	}
	require.Equal(t, "error,data=debug,master=warn", l.String(), "an error changes nothing")

	require.NoError(t, l.Replace("warn,state=info"))
	require.Equal(t, "warn,state=info", l.String())
	require.Equal(t, []string{"root-warn", "data-warn", "master-warn"}, written())

	var wg sync.WaitGroup
	for _, list := range []string{"data=info", "debug", "data=debug"} {
		wg.Go(func() {
			for range 100 {
				if err := l.Set(list); err != nil {
					t.Error(err)
				}
				data.Debug("x")
			}
		})
	}
	wg.Wait()
}
