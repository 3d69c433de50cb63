package world

import (
	"context"
	"log/slog"
	"regexp"
	"time"
)

// waits is what a master says when newcomers have cost too much.
var waits = regexp.MustCompile(`no more of them are let in for (\S+)`)

// door is the log of a master. It reports for how long newcomers are put off, by the master's own word.
type door struct {
	slog.Handler
	say func(Report)
}

func (d door) WithAttrs(as []slog.Attr) slog.Handler { return door{d.Handler.WithAttrs(as), d.say} }
func (d door) WithGroup(name string) slog.Handler    { return door{d.Handler.WithGroup(name), d.say} }

func (d door) Handle(ctx context.Context, r slog.Record) error {
	if m := waits.FindStringSubmatch(r.Message); m != nil {
		if wait, err := time.ParseDuration(m[1]); err == nil {
			d.say(Report{Event: "closed", Wait: wait})
		}
	}
	return d.Handler.Handle(ctx, r)
}

// going is for how long a crew has gone on with its door open: newcomers come in then.
type going struct {
	time   time.Duration
	moved  time.Time // when a step was last reported
	closed time.Time // until when the master puts newcomers off
}

// longestStep bounds what a pause between two steps of a crew counts: in a longer one it stands still.
const longestStep = time.Second

// step notes a step.
func (g *going) step(now time.Time) {
	if now.After(g.closed) {
		g.time += min(now.Sub(later(g.moved, g.closed)), longestStep)
	}
	g.moved = now
}

// close notes that newcomers, or those of a kind, are put off.
func (g *going) close(now time.Time, wait time.Duration) { g.closed = later(g.closed, now.Add(wait)) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
