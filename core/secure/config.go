package secure

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
)

// Client returns the configuration of one connection that this endpoint dials.
func (t *Trust) Client(want Want) *tls.Config {
	want.Server = true
	offers := []string{want.Purpose.String()}
	if clear := want.Purpose.clear(); want.Clear && clear != "" {
		offers = []string{clear, offers[0]}
	}
	c := t.config(offers...)
	// Nothing here is a host name. Verify is called instead, with no way around it.
	c.InsecureSkipVerify = true
	c.ServerName = t.run()
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		_, err := t.Verify(cs, want)
		return err
	}
	return c
}

// run returns the run that is named in the handshake: an address is never named.
func (t *Trust) run() string {
	if len(t.runs) > 0 {
		return t.runs[0] + ".run"
	}
	return ""
}

func (t *Trust) config(protocols ...string) *tls.Config {
	return t.showing(t.credential.certificate(), protocols...)
}

// showing returns the configuration of an endpoint that shows a certificate, and what the
// clock of this machine says beside it.
func (t *Trust) showing(own tls.Certificate, protocols ...string) *tls.Config {
	show := func() (*tls.Certificate, error) {
		c := own
		c.OCSPStaple = stapled(t.now())
		return &c, nil
	}
	return &tls.Config{
		GetCertificate:              func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return show() },
		GetClientCertificate:        func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return show() },
		NextProtos:                  protocols,
		MinVersion:                  tls.VersionTLS13,
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
		Time:                        t.now,
	}
}

// server returns the configuration of connections that this endpoint accepts for
// one purpose, which has that name in the handshake.
func (t *Trust) server(p Purpose, name string) *tls.Config {
	if p == Enrolment { // the client proves a token instead, and has no authority yet
		own := t.credential.certificate()
		for _, a := range t.credential.authorities {
			if len(own.Certificate) < maxChain {
				own.Certificate = append(own.Certificate, a.Raw)
			}
		}
		return t.showing(own, name)
	}
	c := t.config(name)
	c.ClientAuth = tls.RequireAnyClientCert
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		_, err := t.Verify(cs, Want{Purpose: p})
		return err
	}
	return c
}

// Server returns the configuration of a port for some purposes. Each handshake
// uses what k holds when it begins. A client that offers none, several or others
// of our protocols is refused before any certificate is read.
func (k *Keeper) Server(purposes ...Purpose) *tls.Config {
	return k.ServerClear(nil, purposes...)
}

// ServerClear is Server for a port whose connections may go on in plaintext after the
// handshake, if the client asks for that ([Want.Clear]) and may says so of where it is.
// The caller does it ([Agreed]).
func (k *Keeper) ServerClear(may func(remote net.Addr) bool, purposes ...Purpose) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			t := k.Trust()
			p, name, err := offered(hello.SupportedProtos, may != nil && may(hello.Conn.RemoteAddr()))
			if err != nil {
				return nil, err
			}
			if !slices.Contains(purposes, p) {
				return nil, refuse(WrongProtocol, "", "%.40q is not spoken on this port", name)
			}
			if run := t.run(); run != "" && !slices.Contains(t.names(), hello.ServerName) {
				return nil, refuse(Unknown, "", "it asks for another run (%.40q)", hello.ServerName)
			}
			return t.servers[name], nil
		},
		// Nothing may come of a handshake that went another way.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return nil, errors.New("gopccl: no configuration was chosen")
		},
	}
}

// offered returns what a client wants: one of our protocols, or, before it, the same one
// that goes on in plaintext, which it gets if it may.
func offered(protocols []string, may bool) (p Purpose, name string, err error) {
	if len(protocols) != 1 && len(protocols) != 2 {
		return 0, "", refuse(WrongProtocol, "", "%d protocols offered; want one", len(protocols))
	}
	name = protocols[len(protocols)-1]
	p, clear, known := purposeOf(name)
	switch {
	case !known || clear:
		return 0, "", refuse(WrongProtocol, "", "%.40q is not spoken here", name)
	case len(protocols) == 1:
		return p, name, nil
	case p.clear() == "" || protocols[0] != p.clear():
		return 0, "", refuse(WrongProtocol, "", "2 protocols offered; want one")
	case may:
		name = protocols[0]
	}
	return p, name, nil
}

// names returns what a hello may ask for: a run, or, as a token does, what the run of an
// authority would be called if it had not followed on another one.
func (t *Trust) names() (list []string) {
	for _, run := range t.runs {
		list = append(list, fmt.Sprintf("%s.run", run))
	}
	for _, a := range t.credential.authorities {
		list = append(list, RunID(a)+".run")
	}
	return list
}
