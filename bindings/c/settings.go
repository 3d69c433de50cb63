//go:build cgo

package main

// #include <stddef.h>
// char **gopccl_environ(void);
// long gopccl_write_error(const void *p, size_t n);
import "C"

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core/trace"
)

// environment returns the variables of the process as C sees them now. Go's
// own copy is from the start of the process.
func environment() []string {
	list := C.gopccl_environ()
	if list == nil {
		return os.Environ()
	}
	var vars []string
	for p := list; *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		vars = append(vars, C.GoString(*p))
	}
	return vars
}

func variables(environ []string) map[string]string {
	vars := make(map[string]string, len(environ))
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	return vars
}

// settings returns the configuration: $GOPCCL_CONFIG, then PCCL's variables,
// then GOPCCL_SECTION_KEY, the later the stronger.
func settings() (*conf.Config, error) {
	environ := environment()
	vars := variables(environ)
	var notes []string
	for _, v := range []struct {
		pccl, ours string
		min, max   int64
	}{
		{"PCCL_MULTIPLEX_CHUNK_SIZE", "GOPCCL_DATA_FRAME_BYTES", 4 << 10, 64 << 20},
		{"PCCL_NUM_BENCHMARK_CONNECTIONS", "GOPCCL_TOPOLOGY_CONNECTIONS", 1, 256},
	} {
		text, set := vars[v.pccl]
		if _, ours := vars[v.ours]; !set || ours {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s=%q is not a number and has no effect", v.pccl, text))
			continue
		}
		if in := min(max(n, v.min), v.max); in != n {
			notes = append(notes, fmt.Sprintf("%s=%d is taken as %d", v.pccl, n, in))
			n = in
		}
		environ = append(environ, fmt.Sprintf("%s=%d", v.ours, n))
	}
	var files []string
	if f := vars["GOPCCL_CONFIG"]; f != "" {
		files = append(files, f)
	}
	c, err := conf.Load(files, environ, nil)
	setLogger(vars, c)
	if c != nil {
		dumpOnSignal(c.Dump.Signal)
	}
	for _, n := range notes {
		logger().Warn(n)
	}
	flushLog()
	return c, err
}

// given reports whether a file or the environment sets a key.
func given(c *conf.Config, key string) bool {
	for _, s := range c.Explain() {
		if s.Key == key {
			return s.Origin != "default"
		}
	}
	return false
}

// pcclLevels are the values of PCCL_LOG_LEVEL; any other one means NONE.
var pcclLevels = map[string]slog.Level{
	"TRACE": slog.LevelDebug - 4, "DEBUG": slog.LevelDebug, "INFO": slog.LevelInfo,
	"WARN": slog.LevelWarn, "ERR": slog.LevelError, "FATAL": slog.LevelError + 4,
}

// logTime bounds the wait of a call for the lines about it. A program may end
// right behind it, and they are what explains why.
const logTime = 100 * time.Millisecond

// log is a logger whose lines wait in a queue: standard error may be a pipe that
// nobody reads, and no call nor heartbeat may wait for that.
type log struct {
	*slog.Logger
	lines *trace.Lines
}

var theLog atomic.Pointer[log]

func logger() *slog.Logger { return currentLog().Logger }

func currentLog() *log {
	if theLog.Load() == nil {
		setLogger(variables(environment()), nil)
	}
	return theLog.Load()
}

// flushLog waits for what was logged, but not long.
func flushLog() { currentLog().lines.Flush(logTime) }

func storeLogger(l *slog.Logger) {
	l, lines := trace.Detach(l)
	theLog.Store(&log{l, lines})
}

// setLogger obeys PCCL_LOG_LEVEL, else log.level where it was set, else errors are logged.
func setLogger(vars map[string]string, c *conf.Config) {
	level, format := slog.LevelError, "text"
	if c != nil {
		if given(c, "log.level") {
			level.UnmarshalText([]byte(c.Log.Level)) // conf has checked it
		}
		format = c.Log.Format
	}
	if text, set := vars["PCCL_LOG_LEVEL"]; set {
		l, known := pcclLevels[text]
		if !known {
			storeLogger(slog.New(slog.DiscardHandler))
			return
		}
		level = l
	}
	storeLogger(newLogger(level, format))
}

func newLogger(level slog.Level, format string) *slog.Logger {
	opt := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(standardError{}, opt))
	}
	return slog.New(slog.NewTextHandler(standardError{}, opt))
}

// standardError writes without os.File, which ends the process when standard
// error is a pipe whose reader is gone, and without the signal that does so.
type standardError struct{}

func (standardError) Write(b []byte) (int, error) {
	if len(b) > 0 && C.gopccl_write_error(unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b))) < 0 {
		return 0, errors.New("standard error cannot be written")
	}
	return len(b), nil
}
