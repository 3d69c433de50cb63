package conf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/bounds"
)

const envPrefix = "GOPCCL_"

// Flag is a setting from the command line: Name is what the user typed
// ("--listen"), Key what it sets ("master.listen").
type Flag struct {
	Name, Key, Value string
}

// Setting is one value in force.
type Setting struct {
	Key    string
	Value  string
	Origin string // "default", "file PATH", "environment NAME" or "flag NAME"
}

// Load merges defaults, files in their order, environment (of the form of
// os.Environ) and flags, the later the stronger. Errors are *errs.Error with
// code InvalidConfig and name the key, where it stands and, for unknown keys,
// the nearest valid one; all mistakes are reported at once.
func Load(files, environ []string, flags []Flag) (*Config, error) {
	c := &Config{origins: map[string]string{}}
	l := loader{c: c}
	l.source(raw(DefaultYAML), yaml.Parser(), func(string) string { return "default" })
	for _, path := range files {
		if _, err := os.Stat(path); err != nil {
			l.fail("file %s: %w", path, err)
			continue
		}
		l.source(file.Provider(path), yaml.Parser(), func(string) string { return "file " + path })
	}
	l.environment(environ)
	for _, f := range flags {
		l.value(f.Key, f.Value, "flag "+f.Name)
	}
	l.law()
	if len(l.mistakes) == 0 {
		l.combinations()
	}
	if len(l.mistakes) > 0 {
		return nil, errs.New(errs.InvalidConfig, "load configuration", errors.Join(l.mistakes...))
	}
	return c, nil
}

// Explain returns every setting with its origin, in the order of default.yaml,
// and then those of the plugins as plugins.NAME.KEY.
func (c *Config) Explain() []Setting {
	list := make([]Setting, len(fields))
	for i, f := range fields {
		list[i] = Setting{Key: f.key, Value: f.text(c), Origin: c.origins[f.key]}
	}
	for _, p := range c.Plugins {
		for _, f := range pluginFields {
			list = append(list, Setting{Key: pluginsKey + "." + p.Name + "." + f.key, Value: f.text(&p), Origin: c.origins[pluginsKey]})
		}
	}
	return list
}

// Keys returns every key in the order of default.yaml, without those of plugins.
func Keys() []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}

type loader struct {
	c        *Config
	mistakes []error
}

func (l *loader) fail(format string, args ...any) {
	l.mistakes = append(l.mistakes, fmt.Errorf(format, args...))
}

// source reads one provider into a tree of its own, so that every value knows
// where it came from.
func (l *loader) source(p koanf.Provider, parser koanf.Parser, origin func(key string) string) {
	k := koanf.New(".")
	if err := k.Load(p, parser); err != nil {
		l.fail("%s: %w", origin(""), err)
		return
	}
	for _, key := range k.Keys() {
		where := origin(key)
		if key == pluginsKey {
			l.plugins(k.Get(key), where)
			continue
		}
		switch v := k.Get(key).(type) {
		case nil:
			if !isSection(key) {
				l.fail("%s: %s has no value", where, key)
			}
		case map[string]any:
			if !isSection(key) {
				l.unknown(key, where)
			}
		case []any:
			l.fail("%s: %s wants one value, not a list", where, key)
		default:
			l.value(key, fmt.Sprint(v), where)
		}
	}
}

func (l *loader) value(key, text, origin string) {
	i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
	switch {
	case i >= 0:
		if err := fields[i].set(l.c, text); err != nil {
			l.fail("%s: %s: %w", origin, key, err)
		}
		l.c.origins[key] = origin
	case isSection(key):
		l.fail("%s: %s is a section, not a setting", origin, key)
	case key == pluginsKey:
		l.fail("%s: %s is a list and stands in files only", origin, key)
	default:
		l.unknown(key, origin)
	}
}

func (l *loader) unknown(key, origin string) {
	l.fail("%s: there is no setting %q (nearest: %q)", origin, key, nearest(key, Keys()))
}

// short are other names of variables that every process of a run needs.
var short = map[string]string{
	envPrefix + "CREDENTIAL": "security.credential",
	envPrefix + "JOIN":       "security.join",
}

// environment reads GOPCCL_SECTION_KEY. Sections of settings that nobody knows
// are taken for single words: the first underscore ends the section. Names of one word (GOPCCL_CONFIG) are not settings.
func (l *loader) environment(environ []string) {
	toKey := func(name string) (string, bool) {
		if key, ok := short[name]; ok {
			return key, true
		}
		if i := slices.IndexFunc(fields, func(f field) bool { return EnvName(f.key) == name }); i >= 0 {
			return fields[i].key, true
		}
		section, key, ok := strings.Cut(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "_")
		return section + "." + key, ok
	}
	p := env.Provider(".", env.Opt{
		Prefix:      envPrefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, value string) (string, any) {
			key, ok := toKey(name)
			if !ok {
				return "", nil
			}
			return key, value
		},
	})
	l.source(p, nil, func(key string) string { return "environment " + EnvName(key) })
}

// EnvName returns the environment variable of a key.
func EnvName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// law asks the options themselves what they take: there are no rules for their
// values here, but that 0 takes no default in silence. Mistakes are named by key.
func (l *loader) law() {
	for _, o := range []struct {
		of    string
		check func() error
	}{
		{"master", func() error {
			o := l.c.MasterOptions(nil)
			o.Security = core.SecurityOptions{} // a peer's has the same law
			o.Enroll = ""                       // whether there is a credential is asked where it is used
			return o.Check()
		}},
		{"peer", func() error { return l.c.PeerOptions(nil).Check() }},
	} {
		find := func(name bounds.Field) (field, bool) {
			i := slices.IndexFunc(fields, func(f field) bool { return f.of == o.of && f.option == name })
			if i < 0 {
				return field{}, false
			}
			return fields[i], true
		}
		name := func(n bounds.Field) string {
			if f, ok := find(n); ok {
				return f.key
			}
			return string(n)
		}
		amount := func(a bounds.Amount) string {
			f, _ := find(a.Of)
			return f.amount(l.c, a)
		}
		var broken bounds.Errors
		if err := o.check(); err != nil && !errors.As(err, &broken) {
			l.mistakes = append(l.mistakes, err)
		}
		for _, b := range broken {
			f, ok := find(b.Field())
			if !ok {
				l.fail("%s", b.In(name, amount))
				continue
			}
			l.fail("%s: %s", l.c.origins[f.key], b.In(name, amount))
		}
		for _, f := range fields {
			if f.of == o.of && f.tag.Get("zero") == "" && f.isZeroNumber(l.c) {
				l.fail("%s: %s 0 is nothing: leave it out to take the default", l.c.origins[f.key], f.key)
			}
		}
	}
}

// written are the wire types of the built-in quantizers. Those of plugins are
// theirs to know.
var written = map[string][]string{
	"minmax":    {"uint8", "uint16", "uint32"},
	"zeropoint": {"uint8", "int8", "uint16", "int16", "uint32", "int32"},
	"blocks":    {"int4"},
}

// combinations checks what no single value can get wrong, and no options know.
func (l *loader) combinations() {
	c := l.c
	known := []string{"none", "minmax", "zeropoint", "blocks"}
	for _, p := range c.Plugins {
		if p.Kind == "quantizer" {
			known = append(known, p.Name)
		}
	}
	if a := c.Quantize.Algorithm; !slices.Contains(known, a) {
		l.fail("%s: quantize.algorithm: %q is not one of %s (nearest: %q)", c.origins["quantize.algorithm"], a, strings.Join(known, ", "), nearest(a, known))
	}
	if writes := written[c.Quantize.Algorithm]; writes != nil && !slices.Contains(writes, c.Quantize.Type) {
		l.fail("%s: quantize.type %s does not go with %s, which writes %s",
			c.origins["quantize.type"], c.Quantize.Type, c.Quantize.Algorithm, strings.Join(writes, ", "))
	}
}

func isSection(key string) bool {
	return slices.ContainsFunc(fields, func(f field) bool { return strings.HasPrefix(f.key, key+".") })
}

// raw is a koanf provider of bytes in memory.
type raw []byte

func (r raw) ReadBytes() ([]byte, error)    { return r, nil }
func (r raw) Read() (map[string]any, error) { return nil, errors.New("raw bytes need a parser") }
