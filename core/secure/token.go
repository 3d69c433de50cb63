package secure

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"

	"github.com/gopccl/gopccl/core/errs"
)

const (
	tokenPrefix  = "gopccl1."
	tokenVersion = 1
	maxMasters   = 8
	maxToken     = 4 << 10 // characters
	tokenFixed   = 1 + sha256.Size + 8 + 16 + 1
)

// Token lets a new machine get a credential from a running master. It prints
// without its secret; Text returns all of it.
type Token struct {
	Pin     [sha256.Size]byte // SHA-256 of the key of the authority (SPKI)
	ID      [8]byte
	Secret  Secret   // 16 bytes
	Masters []string // HOST:PORT, at most eight
}

// Text returns the token as users pass it on. It is a secret.
func (t Token) Text() (string, error) {
	if len(t.Secret.b) != 16 || len(t.Masters) > maxMasters {
		return "", fmt.Errorf("a token has a secret of 16 bytes and at most %d masters", maxMasters)
	}
	b := append([]byte{tokenVersion}, t.Pin[:]...)
	b = append(b, t.ID[:]...)
	b = append(b, t.Secret.b...)
	b = append(b, byte(len(t.Masters)))
	for _, m := range t.Masters {
		if err := checkMaster(m); err != nil {
			return "", err
		}
		b = append(append(b, byte(len(m))), m...)
	}
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b), nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checkMaster wants HOST:PORT.
func checkMaster(m string) error {
	host, port, err := net.SplitHostPort(m)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || n == 0 || host == "" || len(m) > 255 || !clean(m) {
		return fmt.Errorf("master %.80q: want HOST:PORT", m)
	}
	return nil
}

// ParseToken reads a token. Its errors do not quote it.
func ParseToken(text string) (t Token, err error) {
	fail := func(why string) (Token, error) {
		return Token{}, errs.New(errs.InvalidConfig, "read join token", errors.New(why)).WithHint("copy the whole line that gopccl keys token printed")
	}
	body, ok := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	switch {
	case !ok:
		return fail("it does not begin with " + tokenPrefix)
	case len(body) > maxToken:
		return fail("it is too long")
	case strings.ContainsAny(body, "\r\n"): // which the decoder leaves out
		return fail("it has more than one line")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(b) < tokenFixed+4 {
		return fail("it is damaged or cut off")
	}
	b, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(b, castagnoli) != sum {
		return fail("it is damaged or cut off: its checksum is wrong")
	}
	if b[0] != tokenVersion {
		return fail("it is of a later version of gopccl")
	}
	r := bytes.NewReader(b[1:])
	secret := make([]byte, 16)
	for _, p := range [][]byte{t.Pin[:], t.ID[:], secret} {
		if _, err := io.ReadFull(r, p); err != nil {
			return fail("it is damaged")
		}
	}
	t.Secret = Secret{secret}
	n, _ := r.ReadByte()
	if n > maxMasters {
		return fail("it names too many masters")
	}
	for range n {
		size, _ := r.ReadByte()
		m := make([]byte, size)
		if _, err := io.ReadFull(r, m); err != nil {
			return fail("it is damaged")
		}
		if err := checkMaster(string(m)); err != nil {
			return fail("it names a master that is not HOST:PORT")
		}
		t.Masters = append(t.Masters, string(m))
	}
	if r.Len() > 0 {
		return fail("it is damaged")
	}
	return t, nil
}

// VerifyKey returns what a master keeps of a secret: proofs are checked with it,
// and the secret cannot be had from it.
func (t Token) VerifyKey() ([]byte, error) {
	return hkdf.Key(sha256.New, t.Secret.b, nil, "gopccl-enroll verify", sha256.Size)
}

// String returns the id of the token.
func (t Token) String() string { return fmt.Sprintf("join token %x", t.ID) }

// GoString returns what String does.
func (t Token) GoString() string { return t.String() }

// Format writes what String returns, whatever the verb.
func (t Token) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, t.String()) }

// LogValue returns what String does.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText returns what String does.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
