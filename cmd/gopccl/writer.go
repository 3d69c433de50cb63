package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// lineWriter passes lines on to a writer that may block (a paused terminal, a
// pipe that nobody reads) without ever blocking itself: what does not fit into
// its queue is dropped and counted. A master must not stop because its log does.
type lineWriter struct {
	to    io.Writer
	queue chan []byte
	done  chan struct{}

	mu      sync.Mutex
	dropped int
	closed  bool
}

func newLineWriter(to io.Writer, lines int) *lineWriter {
	w := &lineWriter{to: to, queue: make(chan []byte, lines), done: make(chan struct{})}
	go w.run()
	return w
}

func (w *lineWriter) run() {
	defer close(w.done)
	for line := range w.queue {
		w.to.Write(line)
		if n := w.takeDropped(); n > 0 {
			fmt.Fprintf(w.to, "{\"msg\":\"log lines were dropped\",\"lines\":%d}\n", n)
		}
	}
}

func (w *lineWriter) takeDropped() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.dropped
	w.dropped = 0
	return n
}

// Write queues one line. It never fails.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return len(p), nil
	}
	select {
	case w.queue <- append([]byte(nil), p...):
	default:
		w.dropped++
	}
	return len(p), nil
}

// Close writes what is queued, but waits no longer than patience for it.
func (w *lineWriter) Close(patience time.Duration) {
	w.mu.Lock()
	w.closed = true
	close(w.queue)
	w.mu.Unlock()
	select {
	case <-w.done:
	case <-time.After(patience):
	}
}
