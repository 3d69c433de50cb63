package host

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// lines turns what a plugin prints into log lines. A plugin that prints without
// end is cut short: at most lineRate lines a second and lineLength bytes each.
type lines struct {
	log *slog.Logger

	mu      sync.Mutex
	partial []byte
	second  time.Time
	count   int
}

const (
	lineRate   = 100
	lineLength = 2048
)

// Write never fails.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(b)
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		b = rest
		l.partial = append(l.partial, line[:min(len(line), lineLength-len(l.partial))]...)
		if ended {
			l.emit()
			l.partial = l.partial[:0]
		}
	}
	return n, nil
}

func (l *lines) emit() {
	text := strings.TrimSpace(strings.ToValidUTF8(string(l.partial), "?"))
	if text == "" {
		return
	}
	if now := time.Now(); now.Sub(l.second) > time.Second {
		l.second, l.count = now, 0
	}
	switch l.count++; {
	case l.count <= lineRate:
		l.log.Info("plugin says: "+text, "kind", "plugin-output")
	case l.count == lineRate+1:
		l.log.Warn("plugin prints too much, the rest of this second is dropped", "kind", "plugin-output")
	}
}
