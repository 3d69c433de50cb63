package topo

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNoRing says that the existing links admit no ring through all peers, or
// that none was found; NoRingError tells which.
var ErrNoRing = errors.New("the measured links admit no ring through all peers")

// NoRingError wraps ErrNoRing and says why there is no ring and what would help.
type NoRingError struct {
	// Proved says that there is none. Otherwise the search ended without one.
	Proved bool
	// Reason in words, "" if nothing is known.
	Reason string
	// Remove are peers, ascending, without which the others have a ring (one was
	// found). Empty if no such set is known.
	Remove []int
}

// Error names up to eight peers, by their index.
func (e *NoRingError) Error() string {
	return e.text(func(i int) string { return fmt.Sprint(i) })
}

// Describe is Error with names in place of indices; peers without a name keep
// their index.
func (e *NoRingError) Describe(names []string) string {
	return e.text(func(i int) string {
		if i < len(names) {
			return names[i]
		}
		return fmt.Sprint(i)
	})
}

func (e *NoRingError) text(name func(int) string) string {
	var b strings.Builder
	b.WriteString(ErrNoRing.Error())
	if !e.Proved {
		b.Reset()
		b.WriteString("no ring through all peers was found, and none is excluded")
	}
	if e.Reason != "" {
		b.WriteString(": " + e.Reason)
	}
	if len(e.Remove) > 0 {
		b.WriteString("; without ")
		for k, i := range e.Remove {
			if k == 8 && len(e.Remove) > 9 {
				fmt.Fprintf(&b, " and %d more", len(e.Remove)-k)
				break
			}
			if k > 0 {
				b.WriteString(", ")
			}
			b.WriteString(name(i))
		}
		if len(e.Remove) == 1 {
			b.WriteString(" (one peer) the others have one")
		} else {
			fmt.Fprintf(&b, " (%d peers) the others have one", len(e.Remove))
		}
	}
	return b.String()
}

// Unwrap makes errors.Is(err, ErrNoRing) work.
func (e *NoRingError) Unwrap() error { return ErrNoRing }
