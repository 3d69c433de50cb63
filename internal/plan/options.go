package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// MaxOptions bounds the options that members are told of.
const MaxOptions = 16

const (
	maxSchemeName = 32
	maxSlowest    = 80
	noOwner       = 255 // in a tree on the wire: the owner's place
)

// Encode returns o as members are told it (docs/spec/extensions.md, "Schemes").
func (o *Options) Encode() []byte {
	if len(o.List) == 0 {
		return nil
	}
	b := appendLine(nil, o.Ring)
	b = append(b, byte(len(o.List)))
	for i := range o.List {
		at := &o.List[i]
		b = appendLine(binary.BigEndian.AppendUint64(b, at.From), at.Line)
		if at.Scheme == nil {
			b = append(b, 0, 0, 0)
			continue
		}
		b = append(append(b, byte(len(at.Scheme.Name))), at.Scheme.Name...)
		b = binary.BigEndian.AppendUint16(b, uint16(len(at.Scheme.Trees)))
		for k := range at.Scheme.Trees {
			b = appendTree(b, &at.Scheme.Trees[k])
		}
	}
	for i := range o.List { // behind what the first version has, which stops there
		name := o.List[i].Slowest
		if !printable(name, maxSlowest) {
			name = ""
		}
		b = append(append(b, byte(len(name))), name...)
	}
	return b
}

func appendLine(b []byte, l Line) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, uint64(l.Delay)), uint64(l.Byte))
}

func appendTree(b []byte, t *Tree) []byte {
	same := slices.Equal(t.Up, t.Down)
	b = binary.BigEndian.AppendUint32(b, t.Weight)
	for _, i := range t.Up {
		b = append(b, byte(i)) // -1 is noOwner
	}
	if same {
		return append(b, 1)
	}
	b = append(b, 0)
	for _, i := range t.Down {
		b = append(b, byte(i))
	}
	return b
}

var errCut = errors.New("the plans end within one")

// options reads what Encode wrote.
type options struct {
	b   []byte
	err error
}

func (r *options) take(n int) []byte {
	if r.err == nil && n > len(r.b) {
		r.err = errCut
	}
	if r.err != nil {
		return make([]byte, min(n, 256))
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *options) line() Line {
	b := r.take(16)
	l := Line{Delay: time.Duration(binary.BigEndian.Uint64(b)), Byte: time.Duration(binary.BigEndian.Uint64(b[8:]))}
	if l.Delay < 0 || l.Byte < 0 {
		r.err = errors.New("a time is negative")
	}
	return l
}

func (r *options) tree(n int) (t Tree) {
	t.Weight = binary.BigEndian.Uint32(r.take(4))
	members := func() []int {
		list := make([]int, n)
		for i, v := range r.take(n) {
			if list[i] = int(v); v == noOwner {
				list[i] = -1
			}
		}
		return list
	}
	t.Up = members()
	if t.Down = t.Up; r.take(1)[0] == 0 {
		t.Down = members()
	}
	return t
}

// ParseOptions reads what Encode wrote, for a group of n.
func ParseOptions(b []byte, n int) (*Options, error) {
	o := &Options{}
	if n < 2 || n > MaxSchemeMembers {
		return nil, fmt.Errorf("plans for a group of %d", n)
	}
	r := &options{b: b}
	o.Ring = r.line()
	count := int(r.take(1)[0])
	if count > MaxOptions {
		return nil, fmt.Errorf("%d plans", count)
	}
	for i := range count {
		at := Option{From: binary.BigEndian.Uint64(r.take(8)), Line: r.line()}
		name := string(r.take(int(r.take(1)[0])))
		trees := int(binary.BigEndian.Uint16(r.take(2)))
		if r.err != nil {
			return nil, r.err
		}
		if i > 0 && at.From <= o.List[i-1].From {
			return nil, errors.New("the plans are not in order")
		}
		if trees > 0 {
			if !printable(name, maxSchemeName) || trees > MaxTrees || trees*(n+5) > len(r.b) {
				return nil, fmt.Errorf("plan %q with %d trees", name, trees)
			}
			at.Scheme = &Scheme{Name: name}
			for range trees {
				at.Scheme.Trees = append(at.Scheme.Trees, r.tree(n))
			}
			if r.err != nil {
				return nil, r.err
			}
			if err := at.Scheme.Check(n); err != nil {
				return nil, fmt.Errorf("plan %s: %w", name, err)
			}
		}
		o.List = append(o.List, at)
	}
	if len(r.b) == 0 {
		return o, r.err
	}
	for i := range o.List {
		name := string(r.take(int(r.take(1)[0])))
		if r.err == nil && name != "" && !printable(name, maxSlowest) {
			return nil, fmt.Errorf("plan %d waits for %q", i, name)
		}
		o.List[i].Slowest = name
	}
	return o, r.err
}

// printable reports whether people can read a name.
func printable(name string, most int) bool {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return len(name) > 0 && len(name) <= most
}
