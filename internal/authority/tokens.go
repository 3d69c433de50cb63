package authority

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/durable"
)

const (
	tokensFile = "tokens.json"
	// MaxUses of a token, and the bounds of how long it can be used.
	MaxUses      = 1024
	MinTokenLife = time.Minute
	MaxTokenLife = 30 * 24 * time.Hour
	maxTokens    = 256
	// remembered is how long a token that has expired is kept, so that the log of a
	// master can say so.
	remembered    = 7 * 24 * time.Hour
	maxTokensFile = 8 << 20
)

// ErrNotValid means that a join token is not known, has expired, is used up or was
// not proved. Newcomers hear no more than that.
var ErrNotValid = errors.New("the join token is not valid")

// TokenOptions say what a join token gives.
type TokenOptions struct {
	Uses   int           // machines that may join with it, 1 to MaxUses
	Life   time.Duration // how long it can be used
	Member time.Duration // how long the certificates of those who join are valid
	Role   secure.Role   // Peer or Observer
	Groups []uint32      // that they may enter, nil: all
	// Name of those who join. A * at its end stands for what the newcomer asks for.
	Name    string
	Masters []string // HOST:PORT
}

// Token is what the directory keeps of a join token.
type Token struct {
	ID      string    `json:"id"`
	Key     []byte    `json:"key"` // checks proofs; the secret cannot be had from it
	Pin     []byte    `json:"pin"`
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
	Left    int       `json:"left"`
	Unsure  bool      `json:"unsure,omitempty"` // of what is left: the directory was restored from a copy
	Role    string    `json:"role"`
	Name    string    `json:"name"`
	Groups  []uint32  `json:"groups,omitempty"`
	Days    float64   `json:"days"` // of the certificates
	Given   []Given   `json:"given,omitempty"`
}

// Given is a certificate that somebody got for a token.
type Given struct {
	Key   []byte   `json:"key"` // SHA-256 of the public key
	Name  string   `json:"name"`
	Chain [][]byte `json:"chain"` // DER
}

// Format writes the id: the key that checks proofs is as good as the secret.
func (t Token) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, "join token "+t.ID) }

// State says in a word whether the token can be used.
func (t Token) State(now time.Time) string {
	switch {
	case !now.Before(t.Expires):
		return "expired"
	case t.Unsure:
		return "withdrawn"
	case t.Left <= 0:
		return "used up"
	}
	return "valid"
}

func (o *TokenOptions) check() error {
	stem, open := strings.CutSuffix(o.Name, "*")
	switch {
	case o.Uses < 1 || o.Uses > MaxUses:
		return fmt.Errorf("%d uses; want 1 to %d", o.Uses, MaxUses)
	case o.Life < MinTokenLife || o.Life > MaxTokenLife:
		return fmt.Errorf("it can be used for %v; want %v to %v", o.Life, MinTokenLife, MaxTokenLife)
	case o.Member < MinLife || o.Member > MaxLife:
		return fmt.Errorf("certificates for %v; want %v to %v", o.Member, MinLife, MaxLife)
	case o.Role != secure.Peer && o.Role != secure.Observer:
		return fmt.Errorf("role %v; with a token come peers and observers only", o.Role)
	case o.Groups != nil && len(o.Groups) == 0 || len(o.Groups) > secure.MaxGroups:
		return fmt.Errorf("%d groups; want 1 to %d, or none for all", len(o.Groups), secure.MaxGroups)
	case len(stem) > 40:
		return fmt.Errorf("name %.80q: at most 40 characters", o.Name)
	case open && stem == "":
		return nil
	}
	return secure.CheckName(stem)
}

// NewToken makes a join token. Its secret is in the result alone.
func (d *Dir) NewToken(o TokenOptions) (t secure.Token, e Token, err error) {
	const op = "make join token"
	if err := o.check(); err != nil {
		return t, e, errs.New(errs.InvalidConfig, op, err)
	}
	err = d.enrolling(func(s *Signer, roots []*x509.Certificate) error {
		if _, err := os.Stat(d.file(certFile)); err != nil && strings.HasPrefix(o.Name, "*") {
			return fail(op, errs.InvalidConfig, "the directory is an issuer's, which does not know the names that the authority has issued: give the token names of its own, such as join-*")
		}
		if err := s.covers(o.Groups); err != nil {
			return errs.New(errs.InvalidConfig, op, err)
		}
		list, err := d.tokens()
		if err != nil {
			return err
		}
		now := d.now()
		list = slices.DeleteFunc(list, func(t Token) bool { return now.Sub(t.Expires) > remembered })
		if len(list) >= maxTokens {
			return fail(op, errs.InvalidConfig, "there are %d join tokens: revoke some", len(list))
		}
		secret := make([]byte, 16)
		if _, err := rand.Read(secret); err != nil {
			return errs.New(errs.Internal, op, err)
		}
		if _, err := rand.Read(t.ID[:]); err != nil {
			return errs.New(errs.Internal, op, err)
		}
		// A newcomer that knows the former authority alone believes the others, too.
		t.Pin, t.Secret, t.Masters = secure.Pin(roots[len(roots)-1]), secure.NewSecret(secret), o.Masters
		clear(secret)
		if _, err := t.Text(); err != nil {
			return errs.New(errs.InvalidConfig, op, err)
		}
		key, err := t.VerifyKey()
		if err != nil {
			return errs.New(errs.Internal, op, err)
		}
		e = Token{
			ID: hex.EncodeToString(t.ID[:]), Key: key, Pin: t.Pin[:], Made: now.UTC().Truncate(time.Second), Expires: now.Add(o.Life).UTC().Truncate(time.Second),
			Left: o.Uses, Role: o.Role.String(), Name: o.Name, Groups: o.Groups, Days: o.Member.Hours() / 24,
		}
		return d.writeTokens(append(list, e))
	})
	if err != nil {
		return secure.Token{}, Token{}, err
	}
	return t, e, nil
}

// Tokens returns the join tokens that the directory knows, in the order in which they
// were made.
func (d *Dir) Tokens() ([]Token, error) { return d.tokens() }

func (d *Dir) tokens() (list []Token, err error) {
	const op = "read join tokens"
	f, err := os.Open(d.file(tokensFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.InvalidConfig, op, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTokensFile+1))
	if err == nil && len(text) > maxTokensFile {
		err = fmt.Errorf("larger than %d bytes", maxTokensFile)
	}
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fail(op, errs.CorruptFile, "%s: %w", d.file(tokensFile), err)
	}
	return list, nil
}

func (d *Dir) writeTokens(list []Token) error {
	text, err := json.MarshalIndent(list, "", " ")
	if err == nil && len(text) > maxTokensFile {
		err = fmt.Errorf("%s would be larger than %d bytes: revoke join tokens that are used up", d.file(tokensFile), maxTokensFile)
	}
	if err == nil {
		err = durable.Replace(d.file(tokensFile), text, 0o600)
	}
	if err != nil {
		return errs.New(errs.InvalidConfig, "write join tokens", err)
	}
	return nil
}

// Withdraw makes a join token one that nobody can use. false: there is none with the id.
func (d *Dir) Withdraw(id string) (found bool, err error) {
	unlock, err := d.lock("revoke")
	if err != nil {
		return false, err
	}
	defer unlock()
	list, err := d.tokens()
	if err != nil {
		return false, err
	}
	rest := slices.DeleteFunc(slices.Clone(list), func(t Token) bool { return t.ID == id })
	if len(rest) == len(list) {
		return false, nil
	}
	return true, d.writeTokens(rest)
}

// withdrawAll makes the join tokens ones that nobody can use, since it is not known what is
// left of them, and returns the ids of those that could be used. The caller has the lock.
func (d *Dir) withdrawAll(now time.Time) (ids []string, err error) {
	list, err := d.tokens()
	if err != nil {
		return nil, err
	}
	for i := range list {
		if t := &list[i]; t.State(now) == "valid" {
			t.Left, t.Unsure = 0, true
			ids = append(ids, t.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return ids, d.writeTokens(list)
}

// Newcomer asks for a certificate with a join token.
type Newcomer struct {
	Token [8]byte               // its id
	Prove func(key []byte) bool // whether the secret was proved to who has key
	Key   crypto.PublicKey      // of the certificate
	DER   []byte                // of Key
	Name  string                // that it asks for
}

// Enrol takes one use of a token, and returns a certificate of the newcomer's key and
// those between it and the authority. The count is on disk before anybody can have the
// certificate. The same key gets the same certificate again, which takes no use. Where
// the newcomer is at fault the error is ErrNotValid.
func (d *Dir) Enrol(n Newcomer) (chain []*x509.Certificate, e Entry, err error) {
	const op = "enrol"
	err = d.enrolling(func(s *Signer, roots []*x509.Certificate) error {
		list, err := d.tokens()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list, func(t Token) bool { return t.ID == hex.EncodeToString(n.Token[:]) })
		if i < 0 {
			return fmt.Errorf("%w: %s does not have it", ErrNotValid, d.file(tokensFile))
		}
		t, now := &list[i], d.now()
		if !n.Prove(t.Key) {
			return fmt.Errorf("%w: its secret was not proved", ErrNotValid)
		}
		sum := sha256.Sum256(n.DER)
		again := slices.IndexFunc(t.Given, func(g Given) bool { return string(g.Key) == string(sum[:]) })
		switch {
		case !slices.ContainsFunc(roots, func(a *x509.Certificate) bool { pin := secure.Pin(a); return string(t.Pin) == string(pin[:]) }):
			return fmt.Errorf("%w: it was made under another authority", ErrNotValid)
		case !now.Before(t.Expires):
			return fmt.Errorf("%w: it has expired at %s, and the clock of this machine says %s", ErrNotValid, t.Expires.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		case t.Unsure:
			return fmt.Errorf("%w: the directory was restored from a copy after it was made", ErrNotValid)
		case again >= 0:
			for _, der := range t.Given[again].Chain {
				cert, err := x509.ParseCertificate(der)
				if err != nil {
					return fail(op, errs.CorruptFile, "%s: the certificate of %s is damaged", d.file(tokensFile), t.Given[again].Name)
				}
				chain = append(chain, cert)
			}
			e.Name, e.Role = t.Given[again].Name, t.Role
			return nil
		case t.Left <= 0:
			return fmt.Errorf("%w: it is used up", ErrNotValid)
		}
		cert, entry, err := d.admit(s, *t, n, now)
		if err != nil {
			return err
		}
		chain, e = append([]*x509.Certificate{cert}, s.path()...), entry
		g := Given{Key: sum[:], Name: e.Name}
		for _, c := range chain {
			g.Chain = append(g.Chain, c.Raw)
		}
		t.Left--
		t.Given = append(t.Given, g)
		return d.writeTokens(list)
	})
	if err != nil {
		return nil, Entry{}, err
	}
	return chain, e, nil
}

// admit signs the key of a newcomer, and puts the certificate in the log.
func (d *Dir) admit(s *Signer, t Token, n Newcomer, now time.Time) (*x509.Certificate, Entry, error) {
	const op = "enrol"
	role, err := secure.ParseRole(t.Role)
	if err != nil {
		return nil, Entry{}, fail(op, errs.CorruptFile, "%s: %w", d.file(tokensFile), err)
	}
	log, err := d.Log()
	if err != nil {
		return nil, Entry{}, err
	}
	l, err := d.List()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, Entry{}, err
	}
	id := secure.Identity{Role: role, Groups: t.Groups, NotBefore: now.Add(-tolerance).Truncate(time.Second)}
	id.Name = freeName(wish(t.Name, n.Name), func(name string) bool {
		return slices.ContainsFunc(log, func(e Entry) bool {
			return e.Name == name && e.Role == t.Role && now.Before(e.NotAfter) && (l == nil || !Revoked(l, e))
		})
	})
	if l != nil {
		id.NotBefore = after(l, id)
	}
	cert, err := s.Sign(id, n.Key, time.Duration(t.Days*24*float64(time.Hour)), now)
	if err != nil {
		return nil, Entry{}, errs.New(errs.InvalidConfig, op, err)
	}
	e := s.mark(entry(id, cert, now, "token "+t.ID))
	return cert, e, d.append(e)
}

// wish returns the name that a newcomer gets who asks for one.
func wish(pattern, asked string) string {
	stem, open := strings.CutSuffix(pattern, "*")
	if !open {
		return stem
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, asked)
	if !strings.HasPrefix(name, stem) {
		name = stem + name
	}
	if name == "" {
		name = "peer"
	}
	return name[:min(len(name), 56)] // and a number
}

// freeName returns name, or name-2, name-3 and so on, whichever nobody has.
func freeName(name string, taken func(string) bool) string {
	for k, free := 2, name; ; k++ {
		if !taken(free) {
			return free
		}
		free = fmt.Sprintf("%s-%d", name, k)
	}
}
