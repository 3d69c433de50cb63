package main

import (
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core/trace"
)

// newLogger returns a logger to w in the configured format and level; coloured
// says whether format auto has colours.
func newLogger(c *conf.Config, w io.Writer, coloured bool) *slog.Logger {
	setLevels(c)
	level := slog.LevelDebug // the levels decide
	if c.Log.Format == "json" {
		return slog.New(levels.Handler(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})))
	}
	return slog.New(levels.Handler(tint.NewTextHandler(w, &tint.Options{
		Level: level, TimeFormat: time.TimeOnly, NoColor: c.Log.Format == "text" || !coloured,
	})))
}

// levels of every logger of this process; they can be changed while it runs.
var levels = trace.NewLevels(slog.LevelInfo)

// setLevels takes over the configured levels.
func setLevels(c *conf.Config) {
	if err := levels.Replace(c.Log.Levels()); err != nil { // conf has checked them
		panic(err)
	}
}

// terminal reports whether w is one that understands escape sequences.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && ansi(f)
}
