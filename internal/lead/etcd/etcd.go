// Package etcd is an authority (core.Authority) on an etcd cluster that is there anyway.
// It speaks with the JSON gateway of etcd 3.4 and later, so it needs no client library.
//
// Under a prefix there are three keys: "leader" exists as long as a master leads, and is
// bound to a lease; "term" grows with each one; "kept" is what masters leave to the next.
// A master leads from the transaction that makes "leader", and every later one asks
// whether that key is still the one it has made: so a master that has lost its lease
// without knowing changes nothing and confirms nothing.
package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/lead"
)

const (
	opName = "lead"
	// defaultTTL is how long etcd takes a master for alive that says nothing. Less would
	// not be granted: etcd needs some elections of its own.
	defaultTTL = 3 * time.Second
	// look is between two looks at who leads.
	look = 200 * time.Millisecond
)

// Authority is one master's. Make it with New.
type Authority struct {
	at     []string // URLs, the last one that answered first
	prefix string
	http   *http.Client
	ttl    time.Duration
	serves netip.AddrPort // where peers find this master

	user, password string

	mu     sync.Mutex // guards at and what follows
	reign  *reign     // nil: it does not lead
	known  bool       // etcd has answered once
	token  string     // of the user, "": none yet
	leader netip.AddrPort
}

// reign is one time of leading.
type reign struct {
	lease   int64
	made    int64 // revision at which the leader's key was made
	lost    chan error
	once    sync.Once
	stop    context.CancelFunc
	stopped chan struct{} // closed when nobody keeps the lease alive any more
}

// New returns the authority at one or more URLs of a cluster, separated by commas:
// http://HOST:PORT/PREFIX or https, with USER@ before HOST if etcd has users. The prefix and
// the user are the same in all. The prefix is that of the run's keys, "gopccl" without one.
// Error: *errs.Error with code InvalidConfig.
func New(urls string, o Options) (*Authority, error) {
	a := &Authority{
		ttl:  defaultTTL,
		http: &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute}},
	}
	bad := func(format string, args ...any) (*Authority, error) {
		return nil, errs.New(errs.InvalidConfig, opName, fmt.Errorf(format, args...)).WithHint("an etcd cluster is named as http://HOST:2379/PREFIX, or several of these with commas between them")
	}
	for i, text := range strings.Split(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil {
			return bad("%q: %w", text, err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return bad("%q is not the URL of an etcd", text)
		}
		if _, open := u.User.Password(); open {
			return bad("%q: a password is not named in a URL, where others may read it: write it into a file (master.etcd_password)", u.Redacted())
		}
		if user := u.User.Username(); i > 0 && user != a.user {
			return bad("%q and %q are two users", a.user, user)
		}
		a.user = u.User.Username()
		prefix := strings.Trim(u.Path, "/")
		if i > 0 && prefix != a.prefix {
			return bad("%q and %q are two prefixes", a.prefix, prefix)
		}
		a.prefix = prefix
		a.at = append(a.at, u.Scheme+"://"+u.Host)
	}
	if a.prefix == "" {
		a.prefix = "gopccl"
	}
	if err := a.read(o); err != nil {
		return nil, err
	}
	return a, nil
}

// key returns the name of a key of the run.
func (a *Authority) key(name string) []byte { return []byte(a.prefix + "/" + name) }

// Lead implements core.Authority. An etcd that has never answered is an error, and one
// that does not any more is waited for.
func (a *Authority) Lead(ctx context.Context) (term uint32, kept []byte, lost <-chan error, err error) {
	for {
		r, term, kept, err := a.try(ctx)
		a.mu.Lock()
		if r != nil {
			a.reign = r
		}
		a.known = a.known || err == nil
		known := a.known
		a.mu.Unlock()
		if r != nil {
			return term, kept, r.lost, nil
		}
		var final *errs.Error
		switch {
		case errors.As(err, &final):
			return 0, nil, nil, err
		case err != nil && !known && ctx.Err() == nil: // a mistake in the URL is rather seen than waited for
			return 0, nil, nil, errs.New(errs.InvalidUsage, opName, err).WithHint("start etcd, or name the right URL")
		}
		t := time.NewTimer(look/2 + rand.N(look))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return 0, nil, nil, ctx.Err()
		}
	}
}

// try takes the lead if nobody has it. r is nil if somebody has.
func (a *Authority) try(ctx context.Context) (r *reign, term uint32, kept []byte, err error) {
	seen, err := a.txn(ctx, txn{Success: []op{get(a.key("leader")), get(a.key("term"))}})
	if err == nil {
		a.hear(seen.kvs(0))
	}
	if err != nil || len(seen.kvs(0)) > 0 {
		return nil, 0, nil, err
	}
	var before uint64
	var changed int64
	if kv := seen.kvs(1); len(kv) > 0 {
		if before, err = strconv.ParseUint(string(kv[0].Value), 10, 32); err != nil {
			return nil, 0, nil, errs.New(errs.CorruptFile, opName, fmt.Errorf("etcd's key %s: %w", a.key("term"), err))
		}
		changed = kv[0].Changed
	}
	if before >= lead.MaxTerm {
		return nil, 0, nil, errs.New(errs.CorruptFile, opName, fmt.Errorf("etcd's key %s: term %d is the last one", a.key("term"), before))
	}
	sent := time.Now()
	lease, err := a.grant(ctx)
	if err != nil {
		return nil, 0, nil, err
	}
	done, err := a.txn(ctx, txn{
		Compare: []compare{
			{Key: a.key("leader"), Target: "CREATE", Created: new(int64)},
			{Key: a.key("term"), Target: "MOD", Changed: &changed},
		},
		Success: []op{
			put(a.key("leader"), a.title(), lease),
			put(a.key("term"), strconv.AppendUint(nil, before+1, 10), 0),
			get(a.key("kept")),
		},
	})
	if err != nil || !done.Succeeded { // who was not heard of may have it: until its lease is over
		a.revoke(lease)
		return nil, 0, nil, err
	}
	if kv := done.kvs(2); len(kv) > 0 {
		kept = kv[0].Value
	}
	alive, stop := context.WithCancel(context.Background())
	r = &reign{lease: lease, made: done.Header.Revision, lost: make(chan error, 1), stop: stop, stopped: make(chan struct{})}
	go a.keep(alive, r, sent)
	return r, uint32(before + 1), kept, nil
}

// keep says that the master lives until ctx ends, or it may lead no longer.
func (a *Authority) keep(ctx context.Context, r *reign, last time.Time) {
	defer close(r.stopped)
	t := time.NewTicker(a.ttl / 6)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		// A clock that runs slower than etcd's must not make it late.
		if time.Since(last) > a.ttl*5/6 {
			r.lose(errors.New("etcd has not answered for too long"))
			return
		}
		sent := time.Now()
		short, cancel := context.WithDeadline(ctx, last.Add(a.ttl*5/6))
		alive, err := a.keepAlive(short, r.lease)
		cancel()
		switch {
		case err != nil:
		case !alive:
			r.lose(errors.New("etcd has given its lease up"))
			return
		default:
			last = sent
		}
	}
}

func (r *reign) lose(why error) {
	r.once.Do(func() { r.lost <- errs.New(errs.NotLeading, opName, why) })
}

// Confirm implements core.Authority. It reads something: a member of etcd that is behind
// answers a transaction that does nothing by itself.
func (a *Authority) Confirm(ctx context.Context) error {
	return a.guarded(ctx, get(a.key("leader")))
}

// Commit implements core.Authority.
func (a *Authority) Commit(ctx context.Context, kept []byte) error {
	return a.guarded(ctx, put(a.key("kept"), kept, 0))
}

// guarded does something if this master still leads when etcd does it. Etcd may be out of
// reach for a while; in the end the lease is.
func (a *Authority) guarded(ctx context.Context, ops ...op) error {
	a.mu.Lock()
	r := a.reign
	a.mu.Unlock()
	if r == nil {
		return errs.New(errs.NotLeading, opName, errors.New("this master has not taken the lead, or has given it up"))
	}
	for {
		done, err := a.txn(ctx, txn{Compare: []compare{{Key: a.key("leader"), Target: "CREATE", Created: &r.made}}, Success: ops})
		switch {
		case err == nil && done.Succeeded:
			return nil
		case err == nil:
			err := errs.New(errs.NotLeading, opName, errors.New("another master has taken the lead"))
			r.lose(err)
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		var answer *refusal
		if errors.As(err, &answer) && answer.status < 500 {
			return errs.New(errs.Internal, opName, err)
		}
		select {
		case <-r.stopped:
			return errs.New(errs.NotLeading, opName, fmt.Errorf("the lease is over, and etcd does not answer: %w", err))
		case <-time.After(look):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Resign implements core.Authority.
func (a *Authority) Resign() error {
	a.mu.Lock()
	r := a.reign
	a.reign = nil
	a.mu.Unlock()
	if r != nil {
		r.stop()
		<-r.stopped
		a.revoke(r.lease)
	}
	a.http.CloseIdleConnections()
	return nil
}

// Describe returns what an operator may want to know.
func (a *Authority) Describe() []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	seen, err := a.txn(ctx, txn{Success: []op{get(a.key("leader")), get(a.key("term"))}})
	switch {
	case err != nil:
		return []string{"etcd: " + err.Error()}
	case len(seen.kvs(0)) == 0:
		return []string{"etcd: nobody leads"}
	case len(seen.kvs(1)) == 0:
		return []string{"etcd: the term is missing"}
	}
	return []string{fmt.Sprintf("etcd: the master on %s leads, term %s", seen.kvs(0)[0].Value, seen.kvs(1)[0].Value)}
}

// grant asks for a lease.
func (a *Authority) grant(ctx context.Context) (id int64, err error) {
	var out struct {
		ID int64 `json:"ID,string"`
	}
	err = a.call(ctx, "lease/grant", map[string]any{"TTL": strconv.Itoa(int(a.ttl / time.Second))}, &out)
	if err == nil && out.ID == 0 {
		err = errors.New("etcd has granted no lease")
	}
	return out.ID, err
}

func (a *Authority) keepAlive(ctx context.Context, id int64) (alive bool, err error) {
	var out struct {
		Result struct {
			TTL json.Number `json:"TTL"`
		} `json:"result"`
	}
	err = a.call(ctx, "lease/keepalive", map[string]any{"ID": strconv.FormatInt(id, 10)}, &out)
	ttl, _ := out.Result.TTL.Int64() // it is left out when it is 0
	return ttl > 0, err
}

// revoke gives a lease back. If that fails, it ends by itself.
func (a *Authority) revoke(id int64) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = a.call(ctx, "lease/revoke", map[string]any{"ID": strconv.FormatInt(id, 10)}, &struct{}{})
}
