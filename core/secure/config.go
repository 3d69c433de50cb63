package secure

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
)

// Client returns the configuration of one connection that this endpoint dials.
func (t *Trust) Client(want Want) *tls.Config {
	want.Server = true
	c := t.config(want.Purpose)
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

func (t *Trust) config(p Purpose) *tls.Config {
	return &tls.Config{
		Certificates:                []tls.Certificate{t.credential.certificate()},
		NextProtos:                  []string{p.String()},
		MinVersion:                  tls.VersionTLS13,
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
		Time:                        t.now,
	}
}

// server returns the configuration of connections that this endpoint accepts for
// one purpose.
func (t *Trust) server(p Purpose) *tls.Config {
	c := t.config(p)
	if p == Enrolment { // the client proves a token instead, and has no authority yet
		own := t.credential.certificate()
		for _, a := range t.credential.authorities {
			if len(own.Certificate) < maxChain {
				own.Certificate = append(own.Certificate, a.Raw)
			}
		}
		c.Certificates = []tls.Certificate{own}
		return c
	}
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
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			t := k.Trust()
			if len(hello.SupportedProtos) != 1 {
				return nil, refuse(WrongProtocol, "", "%d protocols offered; want one", len(hello.SupportedProtos))
			}
			p, known := purposeOf(hello.SupportedProtos[0])
			if !known || !slices.Contains(purposes, p) {
				return nil, refuse(WrongProtocol, "", "%.40q is not spoken on this port", hello.SupportedProtos[0])
			}
			if run := t.run(); run != "" && !slices.Contains(t.names(), hello.ServerName) {
				return nil, refuse(Unknown, "", "it asks for another run (%.40q)", hello.ServerName)
			}
			return t.servers[p], nil
		},
		// Nothing may come of a handshake that went another way.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return nil, errors.New("gopccl: no configuration was chosen")
		},
	}
}

// names returns what a hello may ask for.
func (t *Trust) names() (list []string) {
	for _, run := range t.runs {
		list = append(list, fmt.Sprintf("%s.run", run))
	}
	return list
}
