package guard

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// turnstile bounds how many handshakes that others have begun compute at a time. Those
// that wait for bytes do not count. Networks go in by turns, so that a flood from one of
// them delays its own.
type turnstile struct {
	mu    sync.Mutex
	free  int
	lines []*line // of those that wait, the next one first
}

// line are the handshakes of one network that wait, in order.
type line struct {
	from    netip.Prefix
	waiting []chan struct{}
}

// enter waits for leave to compute, or for the end of ctx.
func (t *turnstile) enter(ctx context.Context, from netip.Prefix) error {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	i := slices.IndexFunc(t.lines, func(l *line) bool { return l.from == from })
	if i < 0 {
		i = len(t.lines)
		t.lines = append(t.lines, &line{from: from})
	}
	t.lines[i].waiting = append(t.lines[i].waiting, turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.drop(from, turn) {
		t.next() // its turn has come meanwhile
	}
	return context.Cause(ctx)
}

// drop takes one that waits out of its line. t.mu is held.
func (t *turnstile) drop(from netip.Prefix, turn chan struct{}) bool {
	i := slices.IndexFunc(t.lines, func(l *line) bool { return l.from == from })
	if i < 0 {
		return false
	}
	l := t.lines[i]
	k := slices.Index(l.waiting, turn)
	if k < 0 {
		return false
	}
	if l.waiting = slices.Delete(l.waiting, k, k+1); len(l.waiting) == 0 {
		t.lines = slices.Delete(t.lines, i, i+1)
	}
	return true
}

// leave lets the next one in.
func (t *turnstile) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next()
}

// next is leave with t.mu held.
func (t *turnstile) next() {
	if len(t.lines) == 0 {
		t.free++
		return
	}
	l := t.lines[0]
	t.lines = slices.Delete(t.lines, 0, 1)
	turn := l.waiting[0]
	if l.waiting = slices.Delete(l.waiting, 0, 1); len(l.waiting) > 0 {
		t.lines = append(t.lines, l)
	}
	close(turn)
}
