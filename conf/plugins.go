package conf

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// pluginsKey is the one key that holds a list.
const pluginsKey = "plugins"

// plugins reads the list of plugins of one source, which takes the place of
// that of a weaker source.
func (l *loader) plugins(value any, origin string) {
	list, ok := value.([]any)
	if !ok && value != nil {
		l.fail("%s: %s wants a list of plugins, each with name, kind and command", origin, pluginsKey)
		return
	}
	l.c.Plugins = nil
	l.c.origins[pluginsKey] = origin
	for i, item := range list {
		where := fmt.Sprintf("%s: %s, number %d", origin, pluginsKey, i+1)
		m, ok := item.(map[string]any)
		if !ok {
			l.fail("%s: wants keys such as name, kind and command", where)
			continue
		}
		if name, ok := m["name"].(string); ok {
			where = fmt.Sprintf("%s: %s, %q", origin, pluginsKey, name)
		}
		p := Plugin{MTLS: true, StartTimeout: 10 * time.Second}
		for _, key := range sortedKeys(m) {
			l.pluginKey(&p, key, m[key], where)
		}
		for _, must := range []struct{ key, value string }{{"name", p.Name}, {"kind", p.Kind}, {"command", p.Command}} {
			if must.value == "" {
				l.fail("%s: %s is missing", where, must.key)
			}
		}
		if slices.ContainsFunc(l.c.Plugins, func(o Plugin) bool { return o.Name == p.Name }) {
			l.fail("%s: the name is taken by another plugin", where)
		}
		l.c.Plugins = append(l.c.Plugins, p)
	}
}

func (l *loader) pluginKey(p *Plugin, key string, value any, where string) {
	i := slices.IndexFunc(pluginFields, func(f field) bool { return f.key == key })
	if i < 0 {
		var known []string
		for _, f := range pluginFields {
			known = append(known, f.key)
		}
		l.fail("%s: there is no setting %q (nearest: %q)", where, key, nearest(key, known))
		return
	}
	list, isList := value.([]any)
	switch {
	case key == "args" && isList:
		for _, a := range list {
			switch a.(type) {
			case []any, map[string]any, nil:
				l.fail("%s: args wants words", where)
				return
			}
			p.Args = append(p.Args, fmt.Sprint(a))
		}
		return
	case key == "args":
		l.fail("%s: args wants a list", where)
		return
	}
	switch value.(type) {
	case []any, map[string]any, nil:
		l.fail("%s: %s wants one value", where, key)
		return
	}
	if err := pluginFields[i].set(p, strings.TrimSpace(fmt.Sprint(value))); err != nil {
		l.fail("%s: %s: %w", where, key, err)
	}
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
