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

func (d door) Handle(ctx context.Context, r slog.Record) error {
	if m := waits.FindStringSubmatch(r.Message); m != nil {
		if wait, err := time.ParseDuration(m[1]); err == nil {
			d.say(Report{Event: "closed", Wait: wait})
		}
	}
	return d.Handler.Handle(ctx, r)
}

// waited is how long newcomers have waited for a crew that goes on, and how long they had to.
type waited struct {
	going  time.Duration // in which others came to steps
	closed time.Duration // for which the master has put newcomers off
}

// longestStep bounds what a pause between two steps of a crew adds to the time in which it goes on: in a
// longer one it stands still, and waits for itself.
const longestStep = time.Second

func (w *waited) step(since time.Duration) { w.going += min(since, longestStep) }

// beyond reports whether somebody who came at then has waited for longer than d.
func (w waited) beyond(then waited, d time.Duration) bool {
	return w.going-then.going > d+w.closed-then.closed
}
