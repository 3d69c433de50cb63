package guard

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
)

// own is where the credential of a Guard comes from.
type own struct {
	path string      // "": it is not read again
	is   secure.Role // that it has to allow; 0: any

	mu   sync.Mutex  // held while the file is read, which may take as long as its disk does: nobody else waits for it
	read os.FileInfo // of the file when its credential was taken; nil: not yet
}

// stale reports whether the file is not the one that was read.
func (o *own) stale(now os.FileInfo) bool {
	return o.read == nil || !os.SameFile(o.read, now) || o.read.Size() != now.Size() || !o.read.ModTime().Equal(now.ModTime())
}

// rotate reads the credential again, and puts it in force if it is another one for the
// same endpoint. It returns nil if it is the same. Connections that are open keep the
// one with which they were made.
func (g *Guard) rotate() (*secure.Credential, error) {
	if g.own.path == "" {
		return nil, nil
	}
	g.own.mu.Lock()
	defer g.own.mu.Unlock()
	info, err := os.Stat(g.own.path) // in front of the reading: what comes later is seen the next time
	if err == nil && !g.own.stale(info) {
		return nil, nil
	}
	c, err := secure.LoadCredential(g.own.path, secure.LoadOptions{})
	if err != nil {
		return nil, err
	}
	g.list.mu.Lock()
	defer g.list.mu.Unlock()
	if same(g.list.opt.Credential, c) {
		g.own.read = info
		return nil, nil
	}
	if err := g.adopt(c); err != nil {
		return nil, err
	}
	g.own.read = info
	return c, nil
}

// Credential returns the one that is shown; nil in plaintext.
func (g *Guard) Credential() *secure.Credential {
	if g == nil {
		return nil
	}
	return g.keeper.Trust().Credential()
}

// File returns the path of the credential, "" if it is in no file, or is not read again.
func (g *Guard) File() string { return g.own.path }

// Renewed puts a credential in force that is in no file, for the same endpoint.
func (g *Guard) Renewed(c *secure.Credential) (*News, error) {
	g.list.mu.Lock()
	defer g.list.mu.Unlock()
	if err := g.adopt(c); err != nil {
		return nil, err
	}
	return &News{Credential: c}, nil
}

// Fits reports an error if c could not be put in force: it is not valid now, or for another
// endpoint.
func (g *Guard) Fits(c *secure.Credential) error {
	g.list.mu.Lock()
	defer g.list.mu.Unlock()
	_, err := g.fit(c)
	return err
}

// adopt puts a credential in force. The caller holds the lock of the list.
func (g *Guard) adopt(c *secure.Credential) error {
	t, err := g.fit(c)
	if err != nil {
		return err
	}
	g.list.opt.Credential = c
	g.keeper.Replace(t)
	return nil
}

// fit returns what c would make. The caller holds the lock of the list.
func (g *Guard) fit(c *secure.Credential) (*secure.Trust, error) {
	if err := usable(c, g.own.is, g.now()); err != nil {
		return nil, err
	}
	if err := successor(g.list.opt.Credential, c); err != nil {
		return nil, errs.New(errs.InvalidConfig, opLoad, fmt.Errorf("%s: %w", g.own.path, err))
	}
	opt := g.list.opt
	opt.Credential = c
	return g.list.trust(opt)
}

// trust returns what opt and the lists in force make. Those whose signer is no longer
// trusted say nothing: nobody is below it. Of one in a file Reload says so. The caller
// holds mu.
func (l *list) trust(opt secure.TrustOptions) (*secure.Trust, error) {
	opt.Lists = nil
	for _, t := range slices.Concat(l.told, l.read) {
		if _, err := t.Signer(opt.Credential); err == nil {
			opt.Lists = append(opt.Lists, t)
		}
	}
	return secure.NewTrust(opt)
}

func same(a, b *secure.Credential) bool {
	x, y := a.Authorities(), b.Authorities()
	if !a.Leaf().Equal(b.Leaf()) || len(x) != len(y) {
		return false
	}
	for i := range x {
		if !x[i].Equal(y[i]) {
			return false
		}
	}
	return true
}

// successor reports an error if b is not for the endpoint that a is for: others know it
// by its name.
func successor(a, b *secure.Credential) error {
	x, xerr := a.Identity()
	y, yerr := b.Identity()
	switch {
	case xerr != nil && yerr != nil: // of an authority that is not ours, whose mappings others have
		return nil
	case xerr != nil || yerr != nil || x.Run != y.Run:
		return errors.New("it is for another run, which takes a restart")
	case x.Role != y.Role || x.Name != y.Name:
		return fmt.Errorf("it is for %v and not for %v, which takes a restart", y, x)
	}
	return nil
}
