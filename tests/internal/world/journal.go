package world

import (
	"fmt"
	"strings"
	"time"
)

// noted bounds how much of a run is remembered.
const noted = 4096

// journal is what trainers have said and what was done to them lately, the latest last.
type journal struct{ list []entry }

type entry struct {
	at   time.Time
	peer int
	text string
}

func (j *journal) add(peer int, text string) {
	if len(j.list) == noted {
		j.list = append(j.list[:0], j.list[noted/2:]...)
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
