package host

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/errs"
)

// Kind is what a plugin can do.
type Kind string

// Kinds of plugins.
const (
	Solver    Kind = "solver"
	Quantizer Kind = "quantizer"
	Backend   Kind = "backend"
)

// Spec says which program a plugin is and what it may take.
type Spec struct {
	// Name is how configuration and log call it.
	Name string
	Kind Kind
	// Command is the executable, found as a shell would; Args follow it.
	Command string
	Args    []string
	// SHA256 is the digest of the executable in hexadecimal; "" takes any.
	SHA256 string
	// Insecure talks to the plugin without mutual TLS, for plugins in languages
	// whose go-plugin handshake does not know it.
	Insecure bool
	// StartTimeout (10 s) is the time until it must serve.
	StartTimeout time.Duration
	// TimeLimit (0: none) is the longest that one call of a solver may take. A
	// call to a quantizer or backend may take 5 s if there is none.
	TimeLimit time.Duration
	// MemoryLimit (0: none), in bytes, is what the plugin and the programs that
	// it started may hold in memory together (Linux, Windows).
	MemoryLimit int64
	// LongestPause (30 s) bounds the growing pause before a restart.
	LongestPause time.Duration
	// healthEvery and healthTimeout (5 s each) are the rhythm of health checks.
	healthEvery, healthTimeout time.Duration
	// Logger takes what happens to the plugin and the lines it prints; nil discards.
	Logger *slog.Logger
}

func (s Spec) fail(code errs.Code, phase string, err error) *errs.Error {
	return errs.New(code, "run plugin "+s.Name, err).WithPhase(phase)
}

// complete checks s and fills in the defaults. The digest of the executable is
// checked at every start, this only sees that it could be one.
func (s Spec) complete() (Spec, error) {
	bad := func(format string, args ...any) (Spec, error) {
		return s, s.fail(errs.InvalidConfig, "configure", fmt.Errorf(format, args...))
	}
	switch s.Kind {
	case Solver, Quantizer, Backend:
	default:
		return bad("unknown kind %q: it is one of solver, quantizer, backend", s.Kind)
	}
	if s.Name == "" {
		return bad("it has no name")
	}
	path, err := exec.LookPath(s.Command)
	if err != nil {
		return bad("no executable %q: %w", s.Command, err)
	}
	s.Command = path
	s.SHA256 = strings.ToLower(s.SHA256)
	if b, err := hex.DecodeString(s.SHA256); err != nil || len(b) != 0 && len(b) != 32 {
		return bad("sha256 %q is not 64 hexadecimal digits", s.SHA256)
	}
	if s.StartTimeout <= 0 {
		s.StartTimeout = 10 * time.Second
	}
	if s.LongestPause <= 0 {
		s.LongestPause = 30 * time.Second
	}
	if s.healthEvery <= 0 {
		s.healthEvery, s.healthTimeout = 5*time.Second, 5*time.Second
	}
	if s.TimeLimit < 0 || s.MemoryLimit < 0 {
		return bad("a limit is negative")
	}
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	s.Logger = s.Logger.With("plugin", s.Name)
	return s, nil
}

// errDigest says that an executable is not the one that was pinned.
var errDigest = errors.New("the digest of the executable is not that of sha256")

// checkDigest compares the executable with the pinned digest. An attacker who
// can replace the file between this and the start can run anything: an
// executable that is pinned must not be writable for others.
func (s Spec) checkDigest() error {
	if s.SHA256 == "" {
		return nil
	}
	got, err := Digest(s.Command)
	if err != nil {
		return err
	}
	if got != s.SHA256 {
		return fmt.Errorf("%w: %s has %s", errDigest, s.Command, got)
	}
	return nil
}

// Digest returns the SHA-256 of a file in hexadecimal, as Spec.SHA256 wants it.
func Digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := digest.NewSHA256()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
