package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/tlsconn"
)

const (
	opRead = "read revocation list"
	// longestWatch bounds how old a list may get that has changed.
	longestWatch = 2 * time.Second
)

// list is the revocation list of a Guard.
type list struct {
	path string // "": there is none

	mu   sync.Mutex
	read []*secure.List      // in force, of the file, the last one last
	told []*secure.List      // in force, as the master has told
	opt  secure.TrustOptions // without the lists
}

// MostHeld bounds the lists of one origin that are in force together.
const MostHeld = 8

// opened is a connection whose handshake has succeeded.
type opened struct {
	want  secure.Want
	since time.Time
	id    secure.Identity    // once it has been judged
	until time.Time          // its certificate is valid
	shown *secure.Credential // by this end; nil: it has not dialled
	tried time.Time          // when it was last to show another one; zero: never
	place float64            // among those that show another one together, from 0 to below 1
}

// admit judges the other end of a connection whose handshake has succeeded, and knows
// the connection from then on.
func (g *Guard) admit(c *tlsconn.Conn, want secure.Want, shown *secure.Credential) (secure.Identity, error) {
	o := opened{want: want, since: g.now(), shown: shown, place: rand.Float64()}
	g.mu.Lock()
	g.open[c] = o
	g.mu.Unlock()
	// A list that comes now finds the connection, and one that came before is in force.
	id, err := g.keeper.Trust().Verify(c.ConnectionState(), want)
	o.id, o.until = id, lasts(c.ConnectionState())
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[c] = o; err != nil || c.Closed() {
		delete(g.open, c)
	} else {
		g.settle(c, 1)
		g.seen(o)
	}
	return id, err
}

// Identity returns that of the other end of a connection that Dial has returned, or whose
// handshake Greet has made; the zero Identity once it is closed.
func (g *Guard) Identity(conn net.Conn) secure.Identity {
	c, _ := conn.(*tlsconn.Conn)
	met, _ := g.met(c)
	return met.id
}

// met returns what is known of a connection whose other end has been judged.
func (g *Guard) met(c *tlsconn.Conn) (opened, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	met := g.open[c]
	return met, met.id.Name != ""
}

func (g *Guard) forget(c *tlsconn.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[c].id.Name != "" {
		g.settle(c, -1)
	}
	delete(g.open, c)
}

// News is what has come into force.
type News struct {
	// Credential is the one that is shown from now on, nil: it has not changed.
	Credential *secure.Credential
	// Listed says that there is a newer revocation list, and Number is its number. Kept says
	// what an earlier one of the same signer revokes and this one does not, which stays
	// revoked; "": nothing.
	Listed bool
	Number int64
	Kept   string
	// Revoked are the connections that are to be ended.
	Revoked []Revoked
}

// Revoked is a connection with an endpoint that is revoked, or between endpoints of which
// one has a certificate that has expired.
type Revoked struct {
	Conn net.Conn
	Err  error // a *secure.Refusal, which names the endpoint
}

// End closes the connection. Calls on it fail with Err.
func (r Revoked) End() { r.Conn.(*tlsconn.Conn).End(r.Err) }

// Ended are the connections with one endpoint that were ended.
type Ended struct {
	Why         string
	Connections int
}

// End ends all connections, and returns a line for each endpoint, in order.
func (n *News) End() (lines []Ended) {
	count := map[string]int{}
	for _, r := range n.Revoked {
		r.End()
		count[r.Err.Error()]++
	}
	for why, k := range count {
		lines = append(lines, Ended{why, k})
	}
	slices.SortFunc(lines, func(a, b Ended) int { return strings.Compare(a.Why, b.Why) })
	return lines
}

// Reload reads the credential and the revocation list again. It returns nil if both are
// the same as before, and an error, an *errs.Error, if one of them cannot be taken: the
// one before stays in force then. News and an error may come together. The caller ends
// the connections that it returns.
func (g *Guard) Reload() (*News, error) {
	if g == nil {
		return nil, nil
	}
	c, err := g.rotate()
	news, lerr := g.reloadList()
	if c != nil {
		if news == nil {
			news = &News{}
		}
		news.Credential = c
	}
	switch {
	case err == nil:
		err = lerr
	case lerr != nil:
		err = errs.New(errs.CorruptFile, "reload", errors.Join(err, lerr))
	}
	return news, err
}

func (g *Guard) reloadList() (*News, error) {
	if g.list.path == "" {
		return nil, nil
	}
	l, err := secure.LoadList(g.list.path)
	if err != nil {
		return nil, errs.New(errs.CorruptFile, opRead, err)
	}
	return g.hold(&g.list.read, l, g.list.path)
}

// hold puts a list in force beside those of the same origin, and in the place of those
// whose entries it has.
func (g *Guard) hold(held *[]*secure.List, l *secure.List, from string) (*News, error) {
	g.list.mu.Lock()
	defer g.list.mu.Unlock()
	before := *held
	next, kept, err := beside(before, l, g.list.opt.Credential, from)
	if err != nil || next == nil {
		return nil, err
	}
	*held = next
	news, err := g.enforce(l)
	if err != nil {
		*held = before
		return nil, err
	}
	news.Kept = kept
	return news, nil
}

// Take puts a list in force, in DER, that the master has told. It is Reload of a list
// that is in no file: one that has been read from a file stays in force beside it.
func (g *Guard) Take(der []byte) (*News, error) {
	if g == nil {
		return nil, nil
	}
	const from = "the list of the master"
	l, err := secure.ParseList(der)
	if err != nil {
		return nil, errs.New(errs.CorruptFile, opRead, fmt.Errorf("%s: %w", from, err))
	}
	return g.hold(&g.list.told, l, from)
}

// Listed returns the revocation lists that were read from a file, in DER, the last one
// last.
func (g *Guard) Listed() (lists []string) {
	if g == nil {
		return nil
	}
	g.list.mu.Lock()
	defer g.list.mu.Unlock()
	for _, l := range g.list.read {
		lists = append(lists, string(l.DER()))
	}
	return lists
}

// beside returns the lists that are in force once l is, which the file or the master has
// now; nil: l is among them already. Nothing that was revoked is valid again: an authority
// never takes an entry back, so one that was restored from a copy has forgotten it, and the
// list that has the entry stays. kept says what l lacks. A list that is not newer and
// revokes nothing more is an error.
func beside(held []*secure.List, l *secure.List, c *secure.Credential, from string) (next []*secure.List, kept string, err error) {
	fail := func(format string, a ...any) ([]*secure.List, string, error) {
		return nil, "", errs.New(errs.CorruptFile, opRead, fmt.Errorf("%s: "+format, append([]any{from}, a...)...)).
			WithHint("copy the newest list of the authority; if it was lost, gopccl keys revoke takes up what it has forgotten (--list, --unlogged)")
	}
	by, err := l.Signer(c)
	if err != nil {
		return nil, "", errs.New(errs.CorruptFile, opRead, fmt.Errorf("%s: %w", from, err))
	}
	for _, h := range held {
		if bytes.Equal(l.DER(), h.DER()) {
			return nil, "", nil
		}
		signer, err := h.Signer(c)
		if err != nil || signer != by { // numbers and entries of two signers say nothing of each other
			next = append(next, h)
			continue
		}
		lacks := l.Lacks(h)
		if l.Number() <= h.Number() && len(h.Lacks(l)) == 0 {
			is := "older than"
			if l.Number() == h.Number() {
				is = "another one than"
			}
			also := ""
			if len(lacks) > 0 {
				also = ", and has no " + some(lacks)
			}
			return fail("list %d is %s list %d, which is in force%s", l.Number(), is, h.Number(), also)
		}
		if len(lacks) > 0 {
			kept = some(lacks)
			next = append(next, h)
		}
	}
	if len(next) == MostHeld {
		// One whose signer is not trusted says nothing now: it waits for its signer for as long
		// as there is room.
		if i := slices.IndexFunc(next, func(h *secure.List) bool { _, err := h.Signer(c); return err != nil }); i >= 0 {
			next = slices.Delete(next, i, i+1)
		}
	}
	if len(next) == MostHeld {
		return fail("list %d lacks entries of %d others that are in force", l.Number(), MostHeld)
	}
	return append(next, l), kept, nil
}

// some returns the first of what may be many.
func some(what []string) string {
	const most = 8
	if more := len(what) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(what[:most], ", "), more)
	}
	return strings.Join(what, ", ")
}

// enforce puts the lists that are held in force, of which l is new. The caller holds the
// lock of the list.
func (g *Guard) enforce(l *secure.List) (*News, error) {
	t, err := g.list.trust(g.list.opt)
	if err != nil {
		return nil, err
	}
	g.keeper.Replace(t)
	found, err := g.revoked(l)
	return &News{Listed: true, Number: l.Number(), Revoked: found}, err
}

// revoked returns the connections that a list revokes. A connection outlives its
// certificate, so each is judged as of the time at which it was made. The caller holds the
// lock of the list.
func (g *Guard) revoked(l *secure.List) (found []Revoked, err error) {
	var at time.Time
	opt := g.list.opt
	opt.Lists, opt.Now = []*secure.List{l}, func() time.Time { return at }
	t, err := secure.NewTrust(opt)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	open := maps.Clone(g.open)
	g.mu.Unlock()
	for c, o := range open {
		at = o.since
		if _, err := t.Verify(c.ConnectionState(), o.want); errors.Is(err, secure.Revoked) {
			found = append(found, Revoked{c, err})
		}
	}
	return found, nil
}

// Watch reads the credential and the revocation list every so often, at least every two
// seconds, until ctx ends, and looks for certificates that have expired. tell hears of all
// that is new, and of an error that lasts, once.
func (g *Guard) Watch(ctx context.Context, every time.Duration, tell func(*News, error)) {
	if g == nil {
		return
	}
	if every <= 0 || every > longestWatch {
		every = longestWatch
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var before string // the error of the last time
	told := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		news, err := g.Reload()
		if news != nil {
			tell(news, nil)
		}
		if news := g.age(); news != nil {
			tell(news, nil)
		}
		switch {
		case err == nil:
			before, told = "", false
		case err.Error() != before: // the file may be half written
			before, told = err.Error(), false
		case !told:
			told = true
			tell(nil, err)
		}
	}
}
