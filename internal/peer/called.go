package peer

import (
	"context"
	"log/slog"
	"strings"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/wire"
)

// The rooms of a session know peers by their uuids. What people get from it, which is log
// lines, errors, events and State, has the names in the certificates as well, in front of the
// uuid: gpu-7/0c5f2a1b.

// callings returns what peers are called, by the texts of their uuids. before are those that
// the master had told last: what is said of one that has left comes behind the round without it.
func callings(before, now map[wire.UUID]string) map[string]string {
	called := map[string]string{}
	for _, of := range []map[wire.UUID]string{before, now} {
		for u, name := range of {
			if name != "" {
				called[u.String()], called[u.Short()] = calledBy(name, u.String()), calledBy(name, u.Short())
			}
		}
	}
	return called
}

// calledBy returns what people read of a peer with a certificate.
func calledBy(name, uuid string) string { return name + "/" + uuid }

// call returns what a peer is called that text is the uuid of, and every other text as it is.
func (n *names) call(text string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if called, known := n.called[text]; known {
		return called
	}
	return text
}

// told returns the names of members that have one; nil: nobody has.
func (n *names) told() (of map[wire.UUID]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for u, name := range n.of {
		if name != "" && of == nil {
			of = make(map[wire.UUID]string, len(n.of))
		}
		if name != "" {
			of[u] = name
		}
	}
	return of
}

// sentence is call for the peers in a text: "peer", "from" or "to" stands in front of them.
func (n *names) sentence(text string) string {
	words := strings.Split(text, " ")
	for i, w := range words {
		if i > 0 && (words[i-1] == "peer" || words[i-1] == "from" || words[i-1] == "to") {
			bare := strings.TrimRight(w, ":;,.")
			words[i] = n.call(bare) + w[len(bare):]
		}
	}
	return strings.Join(words, " ")
}

// named is call for the peers of an error.
func (n *names) named(err error) error {
	e, ok := err.(*errs.Error)
	if !ok || e.Peer == "" {
		return err
	}
	peers := strings.Split(e.Peer, ", ")
	for i, p := range peers {
		peers[i] = n.call(p)
	}
	if called := strings.Join(peers, ", "); called != e.Peer {
		return e.WithPeer(called)
	}
	return err
}

// listener returns l, which hears the names of peers.
func (n *names) listener(l *trace.Listener) *trace.Listener {
	to := *l
	if f := l.ConnLost; f != nil {
		to.ConnLost = func(peer string, number uint32, send bool, err error) { f(n.call(peer), number, send, n.named(err)) }
	}
	if f := l.OpEnded; f != nil {
		to.OpEnded = func(tag, seq uint64, err error) { f(tag, seq, n.named(err)) }
	}
	return &to
}

// caller puts the names of peers into log lines.
type caller struct {
	slog.Handler
	names *names
}

// Handle implements slog.Handler.
func (c caller) Handle(ctx context.Context, r slog.Record) error {
	to := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		to.AddAttrs(c.attr(a))
		return true
	})
	return c.Handler.Handle(ctx, to)
}

// WithAttrs implements slog.Handler.
func (c caller) WithAttrs(attrs []slog.Attr) slog.Handler {
	to := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		to[i] = c.attr(a)
	}
	return caller{c.Handler.WithAttrs(to), c.names}
}

// WithGroup implements slog.Handler.
func (c caller) WithGroup(name string) slog.Handler {
	return caller{c.Handler.WithGroup(name), c.names}
}

func (c caller) attr(a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindString {
		return slog.String(a.Key, c.names.call(a.Value.String()))
	}
	if err, ok := a.Value.Any().(error); ok {
		return slog.Any(a.Key, c.names.named(err))
	}
	return a
}
