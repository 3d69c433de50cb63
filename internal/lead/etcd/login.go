package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"

	"github.com/gopccl/gopccl/core/errs"
)

// Options say how the cluster takes this master for one that it knows, and where peers find
// it. The zero value is a cluster that asks nobody who they are.
type Options struct {
	// Password is a file with the password of the user that the URLs name. White space at
	// its ends does not count.
	Password string
	// CA is a file with the certificates, in PEM, of which one has issued those of the
	// cluster; "": one that the system trusts has.
	CA string
	// Cert and Key are files with the certificate of this master, in PEM, and its key; "":
	// it has none.
	Cert, Key string
	// Serves is where peers find this master when it leads. Others send theirs there. The
	// zero value says nothing.
	Serves netip.AddrPort
}

// read makes the files of o what calls need.
func (a *Authority) read(o Options) error {
	bad := func(err error, hint string) error { return errs.New(errs.InvalidConfig, opName, err).WithHint(hint) }
	switch {
	case a.user != "" && o.Password == "":
		return bad(fmt.Errorf("etcd's user %q has no password", a.user), "write it into a file, and name that: master.etcd_password")
	case a.user == "" && o.Password != "":
		return bad(errors.New("a password without a user"), "name the user in the URL: http://USER@HOST:2379/PREFIX")
	case (o.Cert == "") != (o.Key == ""):
		return bad(errors.New("a certificate for etcd needs its key, and a key its certificate"), "name both: master.etcd_cert and master.etcd_key")
	}
	file := func(name string) ([]byte, error) {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, bad(err, "")
		}
		return b, nil
	}
	if o.Password != "" {
		b, err := file(o.Password)
		if err != nil {
			return err
		}
		if a.password = strings.TrimSpace(string(b)); a.password == "" {
			return bad(fmt.Errorf("%s is empty", o.Password), "it has the password of etcd's user")
		}
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		b, err := file(o.CA)
		if err != nil {
			return err
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(b) {
			return bad(fmt.Errorf("%s has no certificate in PEM", o.CA), "")
		}
	}
	if o.Cert != "" {
		if _, err := tls.LoadX509KeyPair(o.Cert, o.Key); err != nil {
			return bad(err, "")
		}
		// Read for every connection: the files may be replaced by newer ones.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
			return &pair, err
		}
	}
	if o.CA != "" || o.Cert != "" {
		for _, at := range a.at {
			if !strings.HasPrefix(at, "https:") {
				return bad(fmt.Errorf("%s is not https, and certificates are named", at), "")
			}
		}
	}
	a.http.Transport.(*http.Transport).TLSClientConfig = c
	a.serves = o.Serves
	return nil
}

// login has etcd say with which token the user is known.
func (a *Authority) login(ctx context.Context, at string) (token string, err error) {
	body, err := json.Marshal(map[string]string{"name": a.user, "password": a.password})
	if err != nil {
		return "", err
	}
	var out struct {
		Token string `json:"token"`
	}
	if err = a.send(ctx, at+"/v3/auth/authenticate", "", body, &out); err != nil {
		return "", err
	}
	if out.Token == "" {
		return "", errors.New("etcd has given no token to its user")
	}
	a.mu.Lock()
	a.token = out.Token
	a.mu.Unlock()
	return out.Token, nil
}

// stale reports whether err says that a token is no longer known: tokens end when nobody uses
// them, when etcd is started again, and when users change.
func stale(err error) bool {
	var no *refusal
	return errors.As(err, &no) && (no.status == http.StatusUnauthorized || strings.Contains(no.text, "revision of auth store"))
}

// post asks the member of the cluster at a URL, as the user if there is one.
func (a *Authority) post(ctx context.Context, at, method string, body []byte, out any) error {
	if a.user == "" {
		return a.send(ctx, at+"/v3/"+method, "", body, out)
	}
	a.mu.Lock()
	token := a.token
	a.mu.Unlock()
	if token != "" {
		if err := a.send(ctx, at+"/v3/"+method, token, body, out); !stale(err) {
			return err
		}
	}
	token, err := a.login(ctx, at)
	if err != nil {
		return err
	}
	return a.send(ctx, at+"/v3/"+method, token, body, out)
}

// Leader returns where peers find the master that leads; the zero AddrPort: it is unknown, or
// this one leads.
func (a *Authority) Leader() netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leader
}

// hear notes what the key of the leader says, nil: there is none.
func (a *Authority) hear(kvs []pair) {
	var at netip.AddrPort
	if len(kvs) > 0 {
		if _, addr, found := strings.Cut(string(kvs[0].Value), " "); found {
			at, _ = netip.ParseAddrPort(addr) // else it says nothing that peers could use
		}
	}
	a.mu.Lock()
	a.leader = at
	a.mu.Unlock()
}

// title is what the key of the leader says: a name for people, and where peers find it.
func (a *Authority) title() []byte {
	name, _ := os.Hostname()
	if a.serves.IsValid() {
		name = strings.ReplaceAll(name, " ", "-") + " " + a.serves.String()
	}
	return []byte(name)
}
