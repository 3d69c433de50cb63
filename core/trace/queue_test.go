package trace_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
)

const patience = time.Minute

// Calls are made in order, one at a time; what finds no room is counted and told
// of before the next call, a panic costs its own call, and what blocks for ever
// holds up nobody but the calls behind it.
func TestQueue(t *testing.T) {
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	q := trace.NewQueue(3, func(n uint64) { say("lost %d", n) }, func(err *errs.Error) { say("%v", err.Err) })
	require.True(t, q.Flush(0), "nothing was ever put in")
	block, blocked := make(chan struct{}), make(chan struct{})
	require.True(t, q.Put(func() {
		close(blocked)
		<-block
		say("first")
	}))
	<-blocked
	for i := range 3 {
		require.True(t, q.Put(func() { say("%d", i) }))
	}
	for range 4 {
		require.False(t, q.Put(func() { say("too many") }))
	}
	require.False(t, q.Flush(time.Millisecond))
	close(block)
	require.True(t, q.Flush(patience))
	q.Put(func() { panic("oops") })
	q.Put(func() { say("behind it") })
	require.True(t, q.Close(patience))
	require.False(t, q.Put(func() { say("closed") }))
	require.Equal(t, []string{"first", "0", "1", "2", "lost 4", "panic: oops", "behind it"}, said)

	q = trace.NewQueue(3, nil, nil)
	block = make(chan struct{})
	later := make(chan struct{})
	q.Put(func() { <-block })
	q.Put(func() { close(later) })
	require.False(t, q.Close(0), "it waits no longer than it may")
	close(block)
	require.True(t, q.Flush(patience))
	select {
	case <-later:
		t.Fatal("called after Close")
	default:
	}
	var none *trace.Queue
	require.False(t, none.Put(func() {}))
	require.True(t, none.Close(0))
}

// clogged is a handler that waits before it writes, even to say what it would take.
type clogged struct {
	slog.Handler
	open chan struct{}
}

func (c clogged) Enabled(ctx context.Context, l slog.Level) bool {
	<-c.open
	return c.Handler.Enabled(ctx, l)
}

func (c clogged) WithAttrs(a []slog.Attr) slog.Handler {
	<-c.open
	return clogged{c.Handler.WithAttrs(a), c.open}
}

func (c clogged) WithGroup(n string) slog.Handler {
	<-c.open
	return clogged{c.Handler.WithGroup(n), c.open}
}

// A detached logger writes what the logger would have written at that time.
func TestDetach(t *testing.T) {
	var got, want bytes.Buffer
	format := func(to *bytes.Buffer) slog.Handler {
		return slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(g []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey && len(g) == 0 {
				return slog.Attr{}
			}
			return a
		}})
	}
	open := make(chan struct{})
	detached, lines := trace.Detach(slog.New(clogged{format(&got), open}))
	changes := errs.New(errs.Internal, "x", errors.New("why"))
	speak := func(l *slog.Logger) {
		l.Info("one", "n", 1, "err", changes)
		l.Debug("too low")
		l = l.With("peer", "p", slog.Group("g", slog.Any("err", changes)))
		l.WithGroup("in").With("k", "v").Warn("two", "list", []string{"a"}, "lazy", lazy{})
		l.With().WithGroup("").Error("three")
	}
	speak(slog.New(format(&want)))
	speak(detached)
	changes.Phase, changes.Peer = "later", "another peer"
	again, shared := trace.Detach(detached)
	require.Same(t, detached, again)
	close(open)
	require.True(t, lines.Flush(patience))
	require.Equal(t, want.String(), got.String())
	shared.Close(patience)
	detached.Info("it goes on: it is not this one's to end")
	lines.Close(patience)
	require.Contains(t, got.String(), "it goes on")
	detached.Info("it is over")
	require.NotContains(t, got.String(), "it is over")

	discards := slog.New(slog.DiscardHandler)
	same, nobody := trace.Detach(discards)
	require.Same(t, discards, same)
	require.True(t, nobody.Flush(0))
	nobody.Close(0)
}

type lazy struct{}

func (lazy) LogValue() slog.Value { return slog.StringValue("resolved") }

// Lines beyond what may wait are counted in the log; a handler that panics loses
// its line only.
func TestDetachedLinesAreBounded(t *testing.T) {
	var got bytes.Buffer
	open := make(chan struct{})
	log, lines := trace.Detach(slog.New(clogged{slog.NewTextHandler(&got, nil), open}))
	log.Info("first")
	require.False(t, lines.Flush(time.Millisecond))
	require.False(t, lines.Flush(patience), "it was in vain just now, and nothing has moved")
	for i := range 10000 {
		log.Info("line", "i", i)
	}
	close(open)
	require.Eventually(t, func() bool { return lines.Flush(patience) }, patience, time.Millisecond)
	text := got.String()
	require.Contains(t, text, "log lines were dropped")
	var lost int
	_, err := fmt.Sscanf(text[strings.LastIndex(text, "lines="):], "lines=%d", &lost)
	require.NoError(t, err)
	require.Equal(t, 10001, strings.Count(text, "\n")-1+lost, "each was written or counted")
	require.Positive(t, lost)

	got.Reset()
	log, lines = trace.Detach(slog.New(grumpy{slog.NewTextHandler(&got, nil)}))
	log.Info("bad")
	log.Info("good")
	require.True(t, lines.Flush(patience))
	require.Equal(t, 1, strings.Count(got.String(), "\n"))
}

type grumpy struct{ slog.Handler }

func (g grumpy) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "bad" {
		panic(r.Message)
	}
	return g.Handler.Handle(ctx, r)
}

// A listener behind a queue hears everything in order; of edges that lost their
// partner it hears none twice.
func TestQueuedListener(t *testing.T) {
	var mu sync.Mutex
	var heard []string
	hear := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, s)
	}
	block := make(chan struct{})
	l := &trace.Listener{
		OpStarted:    func(tag, seq uint64) { <-block; hear(fmt.Sprint("start ", tag, seq)) },
		OpEnded:      func(tag, seq uint64, err error) { hear(fmt.Sprint("end ", tag, seq, err)) },
		ConnLost:     func(p string, n uint32, send bool, err error) { hear(fmt.Sprintf("lost %s %d %v %v", p, n, send, err)) },
		BecameActive: func() { hear("active") },
		BecameIdle:   func() { hear("idle") },
		Stuck: func(tag, seq uint64, d time.Duration, w string) {
			hear(fmt.Sprintf("stuck %d %d %v %s", tag, seq, d, w))
		},
	}
	q := trace.NewQueue(7, nil, nil)
	to := l.Queued(q)
	to.Active()
	require.True(t, q.Flush(patience))
	to.Started(1, 2)
	require.False(t, q.Flush(time.Millisecond), "it waits in the call")
	to.Ended(1, 2, nil)
	to.Idle()
	to.Active()
	to.Lost("p", 3, true, nil)
	to.Stands(4, 5, time.Second, "x")
	to.Idle()
	to.Active()
	to.Idle()   // no room
	to.Active() // no room
	close(block)
	require.True(t, q.Flush(patience))
	to.Active() // that it was idle is lost
	to.Idle()
	require.True(t, q.Flush(patience))
	require.Equal(t, []string{
		"active", "start 1 2", "end 1 2 <nil>", "idle", "active", "lost p 3 true <nil>", "stuck 4 5 1s x", "idle", "active", "idle",
	}, heard)
	require.Nil(t, (*trace.Listener)(nil).Queued(q))
	require.False(t, (&trace.Listener{}).Queued(q).Edges())
}
