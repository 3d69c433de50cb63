package world

import (
	"fmt"
	"strings"
	"time"
)

// remembered bounds how much of a run a journal has, in entries.
const remembered = 4096

// journal is what trainers have said and what was done to them lately, the latest last.
type journal struct{ list []entry }

type entry struct {
	at   time.Time
	peer int
	text string
}

func (j *journal) add(peer int, text string) {
	if len(j.list) == remembered {
		j.list = append(j.list[:0], j.list[remembered/2:]...)
	}
	j.list = append(j.list, entry{time.Now(), peer, text})
}

// Since is what trainers have said and what was done to them from then on, a line each, with the
// milliseconds since then.
func (c *Crew) Since(then time.Time) string {
	var b strings.Builder
	for _, e := range c.journal.list {
		if !e.at.Before(then) {
			who := fmt.Sprintf("peer %d ", e.peer)
			if e.peer < 0 {
				who = ""
			}
			fmt.Fprintf(&b, "%6d %s%s\n", e.at.Sub(then).Milliseconds(), who, e.text)
		}
	}
	return b.String()
}

// Remark adds to that what was done to nobody in particular.
func (c *Crew) Remark(format string, a ...any) { c.journal.add(-1, fmt.Sprintf(format, a...)) }

// line is what a trainer has said, for people.
func (r Report) line() string {
	text := fmt.Sprintf("%s of step %d", r.Event, r.Step)
	if r.Retries > 0 {
		text += fmt.Sprintf(", %d repeats", r.Retries)
	}
	if r.Text != "" {
		text += ": " + r.Text
	}
	return text
}
