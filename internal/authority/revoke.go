package authority

import (
	"crypto/x509"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/durable"
)

// Revoked reports whether a list has a certificate of the log.
func Revoked(l *secure.List, e Entry) bool {
	for _, s := range l.Serials() {
		if fmt.Sprintf("%032x", s) == e.Serial {
			return true
		}
	}
	for _, n := range l.Names() {
		if n.Role.String() == e.Role && n.Name == e.Name && !e.NotBefore.After(n.Upto) {
			return true
		}
	}
	return false
}

// Revoke puts certificates on the list: those of a name, or the one of a serial
// number or a fingerprint, and those that it was renewed by. It returns what is on the list that was valid.
func (d *Dir) Revoke(what string) (found []Entry, err error) {
	const op = revokes
	err = d.change(func(s *Signer) error {
		now := d.now()
		l, err := d.List()
		if err != nil {
			return err
		}
		log, err := d.Log()
		if err != nil {
			return err
		}
		entries, names := listed(l.Serials(), now), l.Names()
		gone := map[string]bool{} // serial numbers: who has a key had the next one signed with it
		for _, e := range log {   // in the order in which they were made
			named := e.Name == what
			parent, renewed := strings.CutPrefix(e.By, renewedBy)
			if !named && e.Serial != what && e.Fingerprint != what && !(renewed && gone[parent]) {
				continue
			}
			if gone[e.Serial] = true; Revoked(l, e) {
				continue
			}
			n, ok := new(big.Int).SetString(e.Serial, 16)
			role, rerr := secure.ParseRole(e.Role)
			if !ok || rerr != nil {
				return fail(op, errs.CorruptFile, "%s: serial %q, role %q", d.file(logFile), e.Serial, e.Role)
			}
			found = append(found, e)
			entries = append(entries, x509.RevocationListEntry{SerialNumber: n, RevocationTime: now})
			if named {
				names = deny(names, secure.Denied{Role: role, Name: e.Name, Upto: now.Add(-tolerance).Truncate(time.Second)})
			}
		}
		if len(found) == 0 {
			return fail(op, errs.InvalidArgument, "no certificate that is not revoked has the name, serial number or fingerprint %.80q", what).(*errs.Error).
				WithHint("gopccl keys list shows those that the directory knows; --unlogged revokes others")
		}
		return d.writeList(op, s, l.Number()+1, entries, names, now)
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// revokes is the operation that errors name.
const revokes = "revoke"

// serialDigits is how many hex digits the serial number of a certificate has.
const serialDigits = 32

// RevokeSerial puts a serial number on the list that the log need not have, such as one that
// was made after the copy that the directory was restored from. Errors: errs.InvalidArgument
// if it is not one of 32 hex digits.
func (d *Dir) RevokeSerial(serial string) error {
	n, ok := new(big.Int).SetString(serial, 16)
	if !ok || len(serial) != serialDigits {
		return errs.New(errs.InvalidArgument, revokes, fmt.Errorf("%q is not a serial number of %d hex digits", serial, serialDigits)).
			WithHint("copy the whole number, or say in which role it is a name (--role)")
	}
	return d.revokeUnlogged(func(serials []*big.Int, names []secure.Denied, _ time.Time) ([]*big.Int, []secure.Denied, error) {
		if !slices.ContainsFunc(serials, func(o *big.Int) bool { return o.Cmp(n) == 0 }) {
			serials = append(serials, n)
		}
		serials, err := d.withRenewed(serials)
		return serials, names, err
	})
}

// RevokeName is RevokeSerial for all certificates that a name has in a role so far.
func (d *Dir) RevokeName(role secure.Role, name string) error {
	if err := secure.CheckName(name); err != nil {
		return errs.New(errs.InvalidArgument, revokes, err)
	}
	return d.revokeUnlogged(func(serials []*big.Int, names []secure.Denied, now time.Time) ([]*big.Int, []secure.Denied, error) {
		return serials, deny(names, secure.Denied{Role: role, Name: name, Upto: now.Add(-tolerance).Truncate(time.Second)}), nil
	})
}

func (d *Dir) revokeUnlogged(add func([]*big.Int, []secure.Denied, time.Time) ([]*big.Int, []secure.Denied, error)) error {
	return d.change(func(s *Signer) error {
		now := d.now()
		l, err := d.List()
		if err != nil {
			return err
		}
		serials, names, err := add(l.Serials(), l.Names(), now)
		if err != nil {
			return err
		}
		return d.writeList(revokes, s, l.Number()+1, listed(serials, now), names, now)
	})
}

// TakeUp puts on the list what another list of this authority revokes, which was in force
// before the directory was restored from a copy. It returns what was not there. The list
// gets a number behind both. Join tokens that could be used end, since more may be left of
// them than there was: it returns their ids.
func (d *Dir) TakeUp(other *secure.List) (added, tokens []string, err error) {
	const op = "take up revocation list"
	err = d.change(func(s *Signer) error {
		if err := other.SignedBy(s.Trusted()...); err != nil {
			return errs.New(errs.InvalidArgument, op, err)
		}
		now := d.now()
		l, err := d.List()
		if err != nil {
			return err
		}
		if added = l.Lacks(other); len(added) == 0 && other.Number() < l.Number() {
			return nil
		}
		if tokens, err = d.withdrawAll(now); err != nil {
			return err
		}
		serials, names := l.Serials(), l.Names()
		for _, n := range other.Serials() {
			if !slices.ContainsFunc(serials, func(have *big.Int) bool { return have.Cmp(n) == 0 }) {
				serials = append(serials, n)
			}
		}
		if serials, err = d.withRenewed(serials); err != nil {
			return err
		}
		for _, o := range other.Names() {
			if !slices.ContainsFunc(names, func(n secure.Denied) bool { return n.Role == o.Role && n.Name == o.Name && n.Upto.After(o.Upto) }) {
				names = deny(names, o)
			}
		}
		return d.writeList(op, s, max(l.Number(), other.Number())+1, listed(serials, now), names, now)
	})
	return added, tokens, err
}

// withRenewed adds the serial numbers of certificates that those of others were renewed by:
// who has a key had the next one signed with it.
func (d *Dir) withRenewed(serials []*big.Int) ([]*big.Int, error) {
	gone := map[string]bool{}
	for _, n := range serials {
		gone[fmt.Sprintf("%032x", n)] = true
	}
	log, err := d.Log()
	if err != nil {
		return nil, err
	}
	for _, e := range log { // in the order in which they were made
		parent, renewed := strings.CutPrefix(e.By, renewedBy)
		n, ok := new(big.Int).SetString(e.Serial, 16)
		if ok && renewed && gone[parent] && !gone[e.Serial] {
			gone[e.Serial] = true
			serials = append(serials, n)
		}
	}
	return serials, nil
}

func listed(serials []*big.Int, now time.Time) (entries []x509.RevocationListEntry) {
	for _, n := range serials {
		entries = append(entries, x509.RevocationListEntry{SerialNumber: n, RevocationTime: now})
	}
	return entries
}

// writeList replaces the list. The caller has the lock.
func (d *Dir) writeList(op string, s *Signer, number int64, entries []x509.RevocationListEntry, names []secure.Denied, now time.Time) error {
	by, err := d.listSigner(s)
	if err != nil {
		return err
	}
	der, err := by.List(number, entries, names, now)
	if err == nil {
		if len(der) > secure.MaxList {
			return fail(op, errs.InvalidArgument, "the list would have %d bytes; at most %d", len(der), secure.MaxList)
		}
		err = durable.Replace(d.file(listFile), der, 0o600)
	}
	if err != nil {
		return errs.New(errs.InvalidConfig, op, err)
	}
	return nil
}

// deny adds a name, or moves its time forward.
func deny(names []secure.Denied, d secure.Denied) []secure.Denied {
	for i, n := range names {
		if n.Role == d.Role && n.Name == d.Name {
			names[i] = d
			return names
		}
	}
	return append(names, d)
}
