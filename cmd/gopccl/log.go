package main

import (
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"

	"github.com/gopccl/gopccl/conf"
)

// newLogger returns a logger to w in the configured format and level; coloured
// says whether format auto has colours.
func newLogger(c *conf.Config, w io.Writer, coloured bool) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Log.Level)); err != nil { // conf has checked it
		panic(err)
	}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(tint.NewTextHandler(w, &tint.Options{
		Level: level, TimeFormat: time.TimeOnly, NoColor: c.Log.Format == "text" || !coloured,
	}))
}

// terminal reports whether w is one that understands escape sequences.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && ansi(f)
}
