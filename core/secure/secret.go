package secure

import (
	"fmt"
	"io"
	"log/slog"
)

const hidden = "[secret]"

// Secret is bytes that no log, dump or error shows.
type Secret struct{ b []byte }

// NewSecret returns a secret of a copy of b.
func NewSecret(b []byte) Secret { return Secret{append([]byte(nil), b...)} }

// Reveal returns the bytes, which belong to the secret.
func (s Secret) Reveal() []byte { return s.b }

// String returns a word in place of the secret.
func (s Secret) String() string { return hidden }

// GoString returns a word in place of the secret.
func (s Secret) GoString() string { return hidden }

// Format writes a word in place of the secret, whatever the verb.
func (s Secret) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, hidden) }

// LogValue returns a word in place of the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText returns a word in place of the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }
