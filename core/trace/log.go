package trace

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
)

// maxLines is how many log lines may wait for a handler.
const maxLines = 4096

// Detach returns a logger that hands its lines to l's handler through a queue, so
// that no handler, however long it takes, holds up who logs; and the queue. A
// line carries the time at which it was logged. Lines that find no room are
// counted, and the handler is told of them when it goes on; those of a handler
// that panics are lost. A logger that Detach has made is returned as it is,
// without a queue: it is somebody else's to end. The handler sees what the
// values of a line say, errors by their text.
func Detach(l *slog.Logger) (*slog.Logger, *Lines) {
	h := l.Handler()
	if d, ok := h.(*detached); ok {
		return l, &Lines{q: d.q}
	}
	if h == slog.DiscardHandler {
		return l, nil
	}
	d := &detached{h: h}
	d.q = NewQueue(maxLines, func(n uint64) {
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were dropped: their reader is too slow", 0)
		r.AddAttrs(slog.Uint64("lines", n))
		_ = h.Handle(context.Background(), r)
	}, nil)
	return slog.New(d), &Lines{q: d.q, own: true}
}

// Lines are the lines that wait for a handler. A nil *Lines has none.
type Lines struct {
	q     *Queue
	own   bool
	stuck atomic.Uint64 // behind so many calls a Flush was in vain, plus one
}

// Flush waits until the handler has taken every line, at most for patience, and
// reports whether it has. After a Flush in vain the next one does not wait while
// the handler has not gone on.
func (l *Lines) Flush(patience time.Duration) bool {
	if l == nil {
		return true
	}
	at := l.q.returned() + 1
	if l.stuck.Load() == at {
		patience = 0
	}
	if !l.q.Flush(patience) {
		l.stuck.Store(at)
		return false
	}
	return true
}

// Close is Flush and the end of the queue, if it was made by this Detach.
func (l *Lines) Close(patience time.Duration) {
	switch {
	case l == nil:
	case l.own:
		l.q.Close(patience)
	default:
		l.Flush(patience)
	}
}

// detached is a handler in front of h. Not even Enabled of a foreign handler is
// called by who logs: it may wait for the same lock as Handle.
type detached struct {
	q *Queue
	h slog.Handler // of the goroutine of q; nil: not made yet

	from  *detached // h is made of its h
	attrs []slog.Attr
	group string
}

// handler returns the handler behind d. It is called on the goroutine of q.
func (d *detached) handler() slog.Handler {
	if d.h == nil {
		if d.group != "" {
			d.h = d.from.handler().WithGroup(d.group)
		} else {
			d.h = d.from.handler().WithAttrs(d.attrs)
		}
	}
	return d.h
}

// Enabled lets everything through: h is asked where it is called.
func (d *detached) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler. It never waits and never fails.
func (d *detached) Handle(_ context.Context, r slog.Record) error {
	line := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		line.AddAttrs(frozen(a))
		return true
	})
	d.q.Put(func() {
		if h := d.handler(); h.Enabled(context.Background(), line.Level) {
			_ = h.Handle(context.Background(), line)
		}
	})
	return nil
}

// WithAttrs implements slog.Handler.
func (d *detached) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 0 {
		return d
	}
	return &detached{q: d.q, from: d, attrs: frozenAll(attrs)}
}

// WithGroup implements slog.Handler.
func (d *detached) WithGroup(name string) slog.Handler {
	if name == "" {
		return d
	}
	return &detached{q: d.q, from: d, group: name}
}

// said is an error as it was when it was logged.
type said string

func (s said) Error() string { return string(s) }

// frozen returns a with a value that nobody changes any more: errors of ours are
// completed by those they are passed on to.
func frozen(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindAny:
		if err, ok := v.Any().(error); ok {
			v = slog.AnyValue(text(err))
		}
	case slog.KindGroup:
		v = slog.GroupValue(frozenAll(v.Group())...)
	}
	return slog.Attr{Key: a.Key, Value: v}
}

func text(err error) (s said) {
	defer errs.Catch("log", func(p *errs.Error) { s = said(p.Error()) })
	return said(err.Error())
}

func frozenAll(attrs []slog.Attr) []slog.Attr {
	out := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		out[i] = frozen(a)
	}
	return out
}
