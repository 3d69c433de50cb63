package lead

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// format is the version of what Encode writes.
const format = 1

// KeySize is the length of Kept.Key in bytes.
const KeySize = 32

// maxKept bounds what is read: the registry has a hundred bytes for a group and forty for
// a member.
const maxKept = 256 << 20

// Kept is what a master leaves to the next one.
type Kept struct {
	Key      []byte // proves to a master who had which session; nil: none was made yet
	Registry fsm.Registry
}

type keptJSON struct {
	Format int           `json:"format"`
	Key    string        `json:"key"`
	Groups []groupRecord `json:"groups"`
}

type groupRecord struct {
	ID           uint32   `json:"group"`
	Round        uint64   `json:"round"`
	NextRevision uint64   `json:"next_revision"`
	Print        string   `json:"print"` // in hexadecimal; "": unknown
	Resumes      bool     `json:"resumes"`
	Members      []string `json:"members"` // nil: all have left
}

// Encode returns k as JSON, so that an operator can read it.
func (k Kept) Encode() []byte {
	s := keptJSON{Format: format, Key: hex.EncodeToString(k.Key), Groups: []groupRecord{}}
	for _, g := range k.Registry.Groups {
		o := groupRecord{ID: g.ID, Round: g.Round, NextRevision: g.NextRevision, Resumes: g.Resumes}
		if g.Print != nil {
			o.Print = hex.EncodeToString(g.Print[:])
		}
		if g.Members != nil {
			o.Members = []string{}
		}
		for _, u := range g.Members {
			o.Members = append(o.Members, u.String())
		}
		s.Groups = append(s.Groups, o)
	}
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		panic(err) // of numbers and strings
	}
	return append(b, '\n')
}

// Decode reads what Encode has written; nothing at all is the zero Kept. It trusts
// nothing.
func Decode(b []byte) (k Kept, err error) {
	if len(b) == 0 {
		return k, nil
	}
	if len(b) > maxKept {
		return k, fmt.Errorf("%d bytes are too many for a registry", len(b))
	}
	var s keptJSON
	if err := json.Unmarshal(b, &s); err != nil {
		return k, fmt.Errorf("the registry is damaged: %w", err)
	}
	if s.Format != format {
		return k, fmt.Errorf("the registry has format %d, and this program knows format %d: a later version has written it", s.Format, format)
	}
	if k.Key, err = hex.DecodeString(s.Key); err != nil || len(k.Key) != 0 && len(k.Key) != KeySize {
		return Kept{}, errors.New("the registry is damaged: the key")
	}
	for i, g := range s.Groups {
		if i > 0 && s.Groups[i-1].ID >= g.ID {
			return Kept{}, fmt.Errorf("the registry is damaged: group %d comes behind group %d", g.ID, s.Groups[i-1].ID)
		}
		o, err := g.record()
		if err != nil {
			return Kept{}, err
		}
		k.Registry.Groups = append(k.Registry.Groups, o)
	}
	return k, nil
}

// record returns what g says, which another program may have written.
func (g groupRecord) record() (fsm.GroupRecord, error) {
	o := fsm.GroupRecord{ID: g.ID, Round: g.Round, NextRevision: g.NextRevision, Resumes: g.Resumes}
	print, err := hex.DecodeString(g.Print)
	switch {
	case err == nil && len(print) == len(fsm.Fingerprint{}):
		o.Print = (*fsm.Fingerprint)(print)
	case err != nil || len(print) != 0:
		return o, fmt.Errorf("the registry is damaged: the print of group %d", g.ID)
	}
	if g.Members != nil {
		o.Members = []wire.UUID{}
	}
	seen := make(map[wire.UUID]bool, len(g.Members))
	for _, name := range g.Members {
		u, err := parseUUID(name)
		if err != nil || seen[u] {
			return o, fmt.Errorf("the registry is damaged: member %q of group %d", name, g.ID)
		}
		seen[u] = true
		o.Members = append(o.Members, u)
	}
	return o, nil
}

// parseUUID reads what UUID.String has written.
func parseUUID(s string) (u wire.UUID, err error) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err == nil && (len(b) != len(u) || wire.UUID(b).String() != s) {
		err = errors.New("not a uuid")
	}
	if err == nil {
		u = wire.UUID(b)
	}
	return u, err
}
