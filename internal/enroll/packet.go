package enroll

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"
)

const (
	version    = 1
	maxRequest = 4 << 10
	maxReason  = 400
	maxChain   = 4
	maxCert    = 8 << 10
	proofSize  = sha256.Size
	label      = "EXPORTER-gopccl-enroll"
	bound      = "gopccl-enroll/1"
)

// Codes of an answer.
const (
	granted = iota
	refused
)

// request is what a newcomer sends.
type request struct {
	token [8]byte
	proof [proofSize]byte
	csr   []byte
}

func (r *request) append(b []byte) []byte {
	b = append(append(append(b, version), r.token[:]...), r.proof[:]...)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(r.csr))), r.csr...)
}

func readRequest(from io.Reader) (r request, err error) {
	var head [1 + 8 + proofSize + 2]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return r, fmt.Errorf("no request to enrol: %w", err)
	}
	if head[0] != version {
		return r, fmt.Errorf("a request to enrol of version %d; this program knows %d", head[0], version)
	}
	copy(r.token[:], head[1:])
	copy(r.proof[:], head[9:])
	size := binary.BigEndian.Uint16(head[41:])
	if size > maxRequest {
		return r, fmt.Errorf("a request of %d bytes; at most %d", size, maxRequest)
	}
	r.csr = make([]byte, size)
	if _, err := io.ReadFull(from, r.csr); err != nil {
		return r, fmt.Errorf("a request to enrol that is cut off: %w", err)
	}
	return r, nil
}

// prove returns the proof of a token's secret for one session and one request.
func prove(key []byte, cs tls.ConnectionState, csr []byte) (proof [proofSize]byte, err error) {
	session, err := cs.ExportKeyingMaterial(label, nil, 32)
	if err != nil {
		return proof, err
	}
	sum := sha256.Sum256(csr)
	m := hmac.New(sha256.New, key)
	m.Write([]byte(bound))
	m.Write(session)
	m.Write(sum[:])
	return [proofSize]byte(m.Sum(nil)), nil
}

// answer is what the master sends.
type answer struct {
	clock  time.Time
	chain  []*x509.Certificate // none: it was refused
	reason string
}

func (a *answer) append(b []byte) []byte {
	code := byte(granted)
	if len(a.chain) == 0 {
		code = refused
	}
	b = binary.BigEndian.AppendUint64(append(b, code), uint64(a.clock.UnixMilli()))
	if code == refused {
		reason := a.reason[:min(len(a.reason), maxReason)]
		return append(binary.BigEndian.AppendUint16(b, uint16(len(reason))), reason...)
	}
	b = append(b, byte(len(a.chain)))
	for _, cert := range a.chain {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(cert.Raw))), cert.Raw...)
	}
	return b
}

func readAnswer(from io.Reader) (a answer, err error) {
	var head [9]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return a, err
	}
	a.clock = time.UnixMilli(int64(binary.BigEndian.Uint64(head[1:])))
	part := func(most int) ([]byte, error) {
		var size [2]byte
		if _, err := io.ReadFull(from, size[:]); err != nil {
			return nil, err
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if n > most {
			return nil, fmt.Errorf("an answer with a part of %d bytes; at most %d", n, most)
		}
		b := make([]byte, n)
		_, err := io.ReadFull(from, b)
		return b, err
	}
	switch head[0] {
	case refused:
		reason, err := part(maxReason)
		if err == nil && (!utf8.Valid(reason) || bytes.ContainsFunc(reason, func(r rune) bool { return r < ' ' })) {
			err = errors.New("a reason that is not text")
		}
		a.reason = string(reason)
		return a, err
	case granted:
	default:
		return a, fmt.Errorf("an answer with code %d", head[0])
	}
	var count [1]byte
	if _, err := io.ReadFull(from, count[:]); err != nil {
		return a, err
	}
	if count[0] == 0 || count[0] > maxChain {
		return a, fmt.Errorf("an answer with %d certificates; want 1 to %d", count[0], maxChain)
	}
	for range count[0] {
		der, err := part(maxCert)
		if err != nil {
			return a, err
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return a, errors.New("an answer with a certificate that this program does not read")
		}
		a.chain = append(a.chain, cert)
	}
	return a, nil
}
