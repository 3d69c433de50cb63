package main

import (
	"io"
	"sync"
	"time"
)

// lineWriter passes lines on to a writer that may block (a paused terminal, a
// pipe that nobody reads) or fail (a pipe whose reader is gone) without ever
// doing either itself: what does not fit into its queue is dropped and counted,
// and what follows a failure is discarded. A master must not stop because its
// log does.
type lineWriter struct {
	to      io.Writer
	dropped func(to io.Writer, lines int) // writes that lines were dropped
	failed  func(error)                   // called at most once
	queue   chan []byte
	done    chan struct{}

	mu     sync.Mutex
	lost   int
	closed bool
}

// newLineWriter returns a writer with a queue of so many lines. dropped and
// failed are called by its goroutine.
func newLineWriter(to io.Writer, lines int, dropped func(to io.Writer, lines int), failed func(error)) *lineWriter {
	w := &lineWriter{to: to, dropped: dropped, failed: failed, queue: make(chan []byte, lines), done: make(chan struct{})}
	go w.run()
	return w
}

func (w *lineWriter) run() {
	defer close(w.done)
	broken := false
	for line := range w.queue {
		if broken {
			continue
		}
		if _, err := w.to.Write(line); err != nil {
			broken = true
			w.failed(err)
			continue
		}
		if n := w.takeLost(); n > 0 {
			w.dropped(w.to, n)
		}
	}
}

func (w *lineWriter) takeLost() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.lost
	w.lost = 0
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
		w.lost++
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
