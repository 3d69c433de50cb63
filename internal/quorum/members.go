package quorum

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ID names a master in messages and in the log. It is made of its address.
type ID uint64

// MinMembers and MaxMembers bound the masters of one run. Fewer than three survive no loss.
const (
	MinMembers = 3
	MaxMembers = 9
)

// Members are the masters of a run. The order in which they were given does not matter.
type Members struct {
	self  ID
	names []string // sorted
	ids   []ID     // of names
}

// NewMembers takes the addresses (HOST:PORT) of all masters, and which of them this one is.
func NewMembers(addresses []string, self string) (Members, error) {
	m := Members{names: slices.Clone(addresses)}
	slices.Sort(m.names)
	switch n := len(m.names); {
	case n < MinMembers || n > MaxMembers:
		return Members{}, fmt.Errorf("there are %d masters; want %d to %d", n, MinMembers, MaxMembers)
	case !slices.Contains(m.names, self):
		return Members{}, fmt.Errorf("%q is not one of the masters %s", self, strings.Join(addresses, ","))
	}
	for i, name := range m.names {
		if err := checkAddress(name); err != nil {
			return Members{}, fmt.Errorf("master %q: %w", name, err)
		}
		if i > 0 && m.names[i-1] == name {
			return Members{}, fmt.Errorf("master %s is named twice", name)
		}
		sum := sha256.Sum256([]byte(name))
		// The highest numbers have a meaning of their own, and so has 0.
		id := ID(binary.BigEndian.Uint64(sum[:])>>1 | 1)
		if slices.Contains(m.ids, id) {
			return Members{}, fmt.Errorf("master %s cannot be told apart from another one: give it another name", name)
		}
		m.ids = append(m.ids, id)
		if name == self {
			m.self = id
		}
	}
	return m, nil
}

func checkAddress(a string) error {
	at := strings.LastIndexByte(a, ':')
	if at < 1 {
		return errors.New("want HOST:PORT")
	}
	if port, err := strconv.ParseUint(a[at+1:], 10, 16); err != nil || port == 0 {
		return errors.New("want a port from 1 to 65535")
	}
	host := a[:at]
	if strings.Contains(host, ":") {
		if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil || !ip.Is6() || host[0] != '[' {
			return errors.New("want HOST:PORT, and an IPv6 address in brackets")
		}
	}
	return nil
}

// Self is this master.
func (m Members) Self() ID { return m.self }

// IDs are all masters, in the order of their names. The caller leaves it as it is.
func (m Members) IDs() []ID { return m.ids }

// Has reports whether there is such a master.
func (m Members) Has(id ID) bool { return slices.Contains(m.ids, id) }

// Name returns the address of a master.
func (m Members) Name(id ID) string {
	if i := slices.Index(m.ids, id); i >= 0 {
		return m.names[i]
	}
	return fmt.Sprintf("%x", uint64(id))
}

// Names returns all addresses, as one text that is the same at all masters.
func (m Members) Names() string { return strings.Join(m.names, ",") }
