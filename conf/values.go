package conf

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math"
	"net"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/bounds"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// anyProcessor is the affinity of threads that are not bound.
const anyProcessor = "any"

// noneText stands for a setting that is not made.
const noneText = "none"

// noLevels are the levels of subsystems that have none of their own.
const noLevels = "none"

// Bytes is a number of bytes, written like 4096, 256KiB, 64MiB or 1GB.
type Bytes int64

var units = []struct {
	suffix string
	factor int64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"KB", 1e3},
	{"B", 1},
}

// ParseBytes reads a size such as "4096", "256KiB" or "1.5GB".
func ParseBytes(s string) (Bytes, error) {
	number, factor := strings.TrimSpace(s), int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v >= 0) || v*float64(factor) >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size; sizes look like 4096, 256KiB or 64MiB", s)
	}
	return Bytes(v * float64(factor)), nil
}

// String writes the size with the largest binary unit that divides it.
func (b Bytes) String() string {
	for _, u := range units[:4] {
		if b != 0 && int64(b)%u.factor == 0 {
			return strconv.FormatInt(int64(b)/u.factor, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// field is one leaf of Config.
type field struct {
	key   string // such as "master.listen"
	index []int
	tag   reflect.StructTag
	// of and option are the options and the field that it becomes; of is "master"
	// or "peer", or "" if it becomes none.
	of     string
	option bounds.Field
}

// fields lists the leaves of Config in the order of the struct.
var fields = func() (list []field) {
	for _, section := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		name := section.Tag.Get("conf")
		if name == "" {
			continue
		}
		for _, leaf := range reflect.VisibleFields(section.Type) {
			list = append(list, field{
				key:    name + "." + leaf.Tag.Get("conf"),
				index:  append(append([]int{}, section.Index...), leaf.Index...),
				tag:    leaf.Tag,
				of:     cmp.Or(leaf.Tag.Get("of"), section.Tag.Get("of")),
				option: bounds.Field(cmp.Or(leaf.Tag.Get("option"), leaf.Name)),
			})
		}
	}
	return list
}()

// pluginFields lists the leaves of Plugin.
var pluginFields = func() (list []field) {
	for _, leaf := range reflect.VisibleFields(reflect.TypeFor[Plugin]()) {
		list = append(list, field{key: leaf.Tag.Get("conf"), index: leaf.Index, tag: leaf.Tag})
	}
	return list
}()

var nameRule = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,63}$`)

// set parses text into the leaf f of the struct that root points to and checks
// its range.
func (f field) set(root any, text string) error {
	v := reflect.ValueOf(root).Elem().FieldByIndex(f.index)
	switch v.Interface().(type) {
	case time.Duration:
		d, err := parseDuration(text)
		if err != nil {
			return err
		}
		v.SetInt(int64(d))
		return f.within(float64(d), func(s string) float64 { m, _ := time.ParseDuration(s); return float64(m) })
	case Bytes:
		b, err := ParseBytes(text)
		if err != nil {
			return err
		}
		v.SetInt(int64(b))
		return f.within(float64(b), func(s string) float64 { m, _ := ParseBytes(s); return float64(m) })
	case bool:
		switch strings.ToLower(text) {
		case "true":
			v.SetBool(true)
		case "false":
			v.SetBool(false)
		default:
			return fmt.Errorf("%q is neither true nor false", text)
		}
		return nil
	case secure.Join:
		v.SetString(text)
		return nil
	case string:
		v.SetString(text)
		return f.wellFormed(text)
	default:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		// The range lies inside the type of every number, so it is checked first.
		if err := f.within(float64(n), func(s string) float64 { m, _ := strconv.ParseFloat(s, 64); return m }); err != nil {
			return err
		}
		if v.CanUint() {
			v.SetUint(uint64(n))
		} else {
			v.SetInt(n)
		}
		return nil
	}
}

func parseDuration(text string) (time.Duration, error) {
	if text == "0" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration; durations look like 500ms, 8s or 1m30s", text)
	}
	return d, nil
}

// within checks the range of what has one here: the others are Check's.
func (f field) within(v float64, parse func(string) float64) error {
	low, high := f.tag.Get("min"), f.tag.Get("max")
	if low == "" || v == 0 && f.tag.Get("zero") == "off" {
		return nil
	}
	if v < parse(low) || v > parse(high) {
		off := ""
		if f.tag.Get("zero") == "off" {
			off = ", or 0"
		}
		return fmt.Errorf("out of range: from %s to %s%s", low, high, off)
	}
	return nil
}

func (f field) wellFormed(text string) error {
	if allowed := f.tag.Get("oneof"); allowed != "" {
		list := strings.Fields(allowed)
		for _, a := range list {
			if a == text {
				return nil
			}
		}
		return fmt.Errorf("%q is not one of %s (nearest: %q)", text, strings.Join(list, ", "), nearest(text, list))
	}
	switch f.tag.Get("is") {
	case "address":
		_, port, err := net.SplitHostPort(text)
		if err != nil {
			return fmt.Errorf("%q is not a HOST:PORT", text)
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return fmt.Errorf("the port of %q is not between 0 and 65535", text)
		}
	case "masters":
		_, err := bounds.Endpoints(text, wire.MaxAddresses)
		return err
	case "sha256":
		if b, err := hex.DecodeString(text); err != nil || len(b) != 32 {
			return fmt.Errorf("%q is not 64 hexadecimal digits", text)
		}
	case "levels":
		if text == noLevels {
			return nil
		}
		return trace.NewLevels(0).Set("info," + text)
	case "addresses":
		if list := words(text); len(list) > wire.MaxAddresses || list != nil && slices.ContainsFunc(list, func(w string) bool { return !nicRule.MatchString(w) }) {
			return fmt.Errorf("%q is neither a list of at most %d addresses or interfaces nor none", text, wire.MaxAddresses)
		}
	case "ports":
		if _, err := portList(text); err != nil {
			return err
		}
	case "networks":
		if _, err := networks(text); err != nil {
			return err
		}
	case "groups":
		if _, err := groups(text); err != nil {
			return err
		}
	case "identities":
		if _, err := identities(text); err != nil {
			return err
		}
	case "host":
		if a, err := netip.ParseAddr(text); text != noneText && (err != nil || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "") {
			return fmt.Errorf("%q is neither an IP address that others can connect to nor none", text)
		}
	case "processors":
		if cpus, err := platform.ParseCPUs(text); text != anyProcessor && (err != nil || len(cpus) == 0) {
			return fmt.Errorf("%q is neither a list of processors such as 0-3,8 nor any", text)
		}
	case "name":
		if !nameRule.MatchString(text) {
			return fmt.Errorf("%q is not a name", text)
		}
	}
	return nil
}

// nicRule is what an address or an interface looks like.
var nicRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:%-]{0,63}$`)

// words returns the elements of a list, nil for none.
func words(text string) (list []string) {
	if text == noneText {
		return nil
	}
	for w := range strings.SplitSeq(text, ",") {
		list = append(list, strings.TrimSpace(w))
	}
	return list
}

// networks returns those of a list, nil for none.
func networks(text string) (list []netip.Prefix, err error) {
	for _, w := range words(text) {
		n, err := netip.ParsePrefix(w)
		if err != nil || n != n.Masked() {
			return nil, fmt.Errorf("%q is neither a list of networks such as 10.0.0.0/8,fd00::/8 nor none", text)
		}
		list = append(list, n)
	}
	return list, nil
}

// groups returns those of a list, nil for none.
func groups(text string) (list []uint32, err error) {
	for _, w := range words(text) {
		n, err := strconv.ParseUint(w, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is neither a list of groups such as 0,3 nor none", text)
		}
		list = append(list, uint32(n))
	}
	return list, nil
}

// identities returns those of a list, nil for none.
func identities(text string) (list []secure.Mapping, err error) {
	for _, w := range words(text) {
		bad := func() ([]secure.Mapping, error) {
			return nil, fmt.Errorf("%q is neither a list of identities such as spiffe://example.org/train/*=peer:0+3 nor none", text)
		}
		at := strings.LastIndexByte(w, '=')
		if at < 0 {
			return bad()
		}
		m := secure.Mapping{URI: strings.TrimSpace(w[:at])}
		name, groups, some := strings.Cut(strings.TrimSpace(w[at+1:]), ":")
		if m.Role, err = secure.ParseRole(name); err != nil {
			return bad()
		}
		for part := range strings.SplitSeq(groups, "+") {
			n, err := strconv.ParseUint(part, 10, 32)
			if some && err != nil {
				return bad()
			}
			if some {
				m.Groups = append(m.Groups, uint32(n))
			}
		}
		list = append(list, m)
	}
	return list, secure.CheckMappings(list)
}

// portList returns one port, or those of three listeners, nil for none.
func portList(text string) (ports []int, err error) {
	list := words(text)
	if list == nil {
		return nil, nil
	}
	for _, w := range list {
		n, err := strconv.ParseUint(w, 10, 16)
		if err != nil || n == 0 || slices.Contains(ports, int(n)) {
			ports = nil
			break
		}
		ports = append(ports, int(n))
	}
	if len(ports) != 1 && len(ports) != 3 {
		return nil, fmt.Errorf("%q is neither a port such as 48149, nor three different ports such as 48149,48150,48151, nor none", text)
	}
	return ports, nil
}

// text writes the value of the leaf f of the struct that root points to, as a
// user would.
func (f field) text(root any) string {
	v := reflect.ValueOf(root).Elem().FieldByIndex(f.index).Interface()
	if j, ok := v.(secure.Join); ok { // a secret
		if j == noneText {
			return noneText
		}
		return "set"
	}
	return fmt.Sprint(v)
}

// nearest returns the word of list with the smallest edit distance to s.
func nearest(s string, list []string) string {
	best, bestDistance := "", math.MaxInt
	for _, w := range list {
		if d := distance(s, w); d < bestDistance {
			best, bestDistance = w, d
		}
	}
	return best
}

// distance is the number of inserted, deleted or replaced bytes between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// amount writes a value of the leaf f of c as a user would.
func (f field) amount(c *Config, a bounds.Amount) string {
	if a.Time {
		text := time.Duration(a.N).String()
		for _, zero := range []string{"m0s", "h0m"} { // 1h0m0s is 1h
			if strings.HasSuffix(text, zero) {
				text = strings.TrimSuffix(text, zero[1:])
			}
		}
		return text
	}
	if f.index != nil {
		if _, ok := reflect.ValueOf(c).Elem().FieldByIndex(f.index).Interface().(Bytes); ok {
			return Bytes(a.N).String()
		}
	}
	return strconv.FormatInt(a.N, 10)
}

// isZeroNumber reports whether the leaf f of c is a number, a size or a duration
// of 0.
func (f field) isZeroNumber(c *Config) bool {
	v := reflect.ValueOf(c).Elem().FieldByIndex(f.index)
	return f.tag.Get("min") == "" && v.CanInt() && v.Int() == 0
}
