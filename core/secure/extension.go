package secure

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

var (
	oidGrant  = asn1.ObjectIdentifier{2, 25, 21979, 250645419, 21654948, 159389700, 227434226, 1}
	oidDenied = asn1.ObjectIdentifier{2, 25, 21979, 250645419, 21654948, 159389700, 227434226, 2}
)

// grant is the extension of a certificate.
type grant struct {
	Version int
	Groups  []int64 // empty: all
	Rights  asn1.BitString
}

// Bits of the rights.
const (
	rightSingle = iota
	rightEnroll
	rightLead
	rights
)

// Extension returns the extension of a certificate that says groups and rights.
func (id Identity) Extension() (pkix.Extension, error) {
	g := grant{Version: 1, Groups: []int64{}, Rights: asn1.BitString{Bytes: []byte{0}, BitLength: rights}}
	if id.Groups != nil && len(id.Groups) == 0 || len(id.Groups) > MaxGroups {
		return pkix.Extension{}, fmt.Errorf("%d groups; want 1 to %d, or nil for all", len(id.Groups), MaxGroups)
	}
	for _, n := range id.Groups {
		g.Groups = append(g.Groups, int64(n))
	}
	for bit, on := range []bool{rightSingle: id.Single, rightEnroll: id.Enroll, rightLead: id.Lead} {
		if on {
			g.Rights.Bytes[0] |= 0x80 >> bit
		}
	}
	der, err := asn1.Marshal(g)
	return pkix.Extension{Id: oidGrant, Value: der}, err
}

// readGrant takes groups and rights from the value of the extension. A right that
// it does not know is refused: it may be a restriction.
func (id *Identity) readGrant(der []byte) error {
	var g grant
	rest, err := asn1.Unmarshal(der, &g)
	switch {
	case err != nil || len(rest) > 0:
		return errors.New("the grant in the certificate is damaged")
	case g.Version != 1:
		return fmt.Errorf("the grant in the certificate has version %d; this program knows 1", g.Version)
	case len(g.Groups) > MaxGroups:
		return fmt.Errorf("the certificate names %d groups; at most %d", len(g.Groups), MaxGroups)
	}
	for bit := rights; bit < g.Rights.BitLength; bit++ {
		if g.Rights.At(bit) != 0 {
			return fmt.Errorf("the certificate has right %d, which this program does not know", bit)
		}
	}
	for _, n := range g.Groups {
		if n < 0 || n > math.MaxUint32 {
			return fmt.Errorf("the certificate names group %d", n)
		}
		id.Groups = append(id.Groups, uint32(n))
	}
	id.Single, id.Enroll, id.Lead = g.Rights.At(rightSingle) != 0, g.Rights.At(rightEnroll) != 0, g.Rights.At(rightLead) != 0
	return nil
}

// Denied is a name whose certificates up to a time are revoked. One that was made
// later is valid, so that a name can be used again.
type Denied struct {
	Role Role
	Name string
	Upto time.Time // certificates with this NotBefore, or an earlier one
}

// deniedName is an element of the extension of a list.
type deniedName struct {
	Role int
	Name string `asn1:"utf8"`
	Upto time.Time
}

// maxDenied bounds the names of a list.
const maxDenied = 4096

// DeniedExtension returns the extension of a revocation list that has names.
func DeniedExtension(names []Denied) (pkix.Extension, error) {
	if len(names) > maxDenied {
		return pkix.Extension{}, fmt.Errorf("%d names are revoked; at most %d", len(names), maxDenied)
	}
	list := []deniedName{}
	for _, d := range names {
		if err := CheckName(d.Name); err != nil {
			return pkix.Extension{}, err
		}
		list = append(list, deniedName{int(d.Role), d.Name, d.Upto.UTC().Truncate(time.Second)})
	}
	der, err := asn1.Marshal(list)
	return pkix.Extension{Id: oidDenied, Value: der}, err
}

// readDenied reads the names from the extensions of a list.
func readDenied(exts []pkix.Extension) (names []Denied, err error) {
	i := slices.IndexFunc(exts, func(x pkix.Extension) bool { return x.Id.Equal(oidDenied) })
	if i < 0 {
		return nil, nil
	}
	var list []deniedName
	rest, err := asn1.Unmarshal(exts[i].Value, &list)
	if err != nil || len(rest) > 0 || len(list) > maxDenied {
		return nil, errors.New("the names of the revocation list are damaged")
	}
	for _, d := range list {
		if _, known := roles[Role(d.Role)]; !known || d.Role > math.MaxUint8 || CheckName(d.Name) != nil {
			return nil, errors.New("the revocation list has a name that is not one")
		}
		names = append(names, Denied{Role(d.Role), d.Name, d.Upto})
	}
	return names, nil
}
