package trace

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Subsystem is the key of the attribute that names the part of the program a
// log line comes from.
const Subsystem = "subsystem"

// Names of the subsystems: the master, a peer's session, its data path, its
// shared state, and its bandwidth measurements.
const (
	SubMaster  = "master"
	SubSession = "session"
	SubData    = "data"
	SubState   = "state"
	SubProbe   = "probe"
)

// Subsystems are all of them.
var Subsystems = []string{SubData, SubMaster, SubProbe, SubSession, SubState}

// Levels says from which level on the lines of each subsystem are written. It
// may be changed at any time from any goroutine; loggers follow at once.
type Levels struct {
	mu   sync.Mutex
	rest slog.LevelVar // of everything that has no level of its own
	own  map[string]*ownLevel
}

type ownLevel struct {
	slog.LevelVar
	set bool
}

// NewLevels returns levels in which everything is written from rest on.
func NewLevels(rest slog.Level) *Levels {
	l := &Levels{own: map[string]*ownLevel{}}
	l.rest.Set(rest)
	for _, name := range Subsystems {
		l.own[name] = &ownLevel{}
	}
	l.spread()
	return l
}

// spread gives the level of the rest to all that have none of their own. l.mu
// is held, or nobody else knows l.
func (l *Levels) spread() {
	for _, o := range l.own {
		if !o.set {
			o.Set(l.rest.Level())
		}
	}
}

// Set changes levels by a list such as "data=debug,master=warn" or
// "info,data=debug"; what it does not name keeps its level. An error changes
// nothing.
func (l *Levels) Set(list string) error { return l.change(list, false) }

// Replace is Set after which subsystems that the list does not name have no
// level of their own.
func (l *Levels) Replace(list string) error { return l.change(list, true) }

func (l *Levels) change(list string, all bool) error {
	levels := map[string]slog.Level{}
	for part := range strings.SplitSeq(list, ",") {
		name, text, named := strings.Cut(strings.TrimSpace(part), "=")
		if !named {
			name, text = "", name
		} else if l.own[name] == nil {
			return fmt.Errorf("unknown subsystem %q: it is one of %s", name, strings.Join(Subsystems, ", "))
		}
		var level slog.Level
		if err := level.UnmarshalText([]byte(text)); err != nil {
			return fmt.Errorf("unknown level %q: it is debug, info, warn or error", text)
		}
		levels[name] = level
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.own {
		o.set = o.set && !all
	}
	for name, level := range levels {
		if name == "" {
			l.rest.Set(level)
			continue
		}
		l.own[name].set = true
		l.own[name].Set(level)
	}
	l.spread()
	return nil
}

// String writes the levels as Set reads them.
func (l *Levels) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	parts := []string{strings.ToLower(l.rest.Level().String())}
	for _, name := range slices.Sorted(maps.Keys(l.own)) {
		if o := l.own[name]; o.set {
			parts = append(parts, name+"="+strings.ToLower(o.Level().String()))
		}
	}
	return strings.Join(parts, ",")
}

// Handler returns a handler that passes on to h what l lets through. h itself
// must be open for every level that is ever to be written.
func (l *Levels) Handler(h slog.Handler) slog.Handler { return &levelHandler{h, l, &l.rest} }

type levelHandler struct {
	slog.Handler
	levels *Levels
	level  slog.Leveler
}

func (h *levelHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

func (h *levelHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	level := h.level
	for _, a := range attrs {
		if o := h.levels.own[a.Value.String()]; a.Key == Subsystem && o != nil {
			level = o
		}
	}
	return &levelHandler{h.Handler.WithAttrs(attrs), h.levels, level}
}

func (h *levelHandler) WithGroup(name string) slog.Handler {
	return &levelHandler{h.Handler.WithGroup(name), h.levels, h.level}
}
