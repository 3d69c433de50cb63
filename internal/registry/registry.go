// Package registry is a table of implementations by name, which the extension
// points of core share.
package registry

import (
	"fmt"
	"slices"
	"sync"
)

// Registry holds implementations of T by name. It is safe for concurrent use;
// make it with New.
type Registry[T any] struct {
	what     string // such as "backend", for panics
	reserved []string

	mu    sync.RWMutex
	items map[string]T
}

// New returns an empty registry. what names its entries in panics, such as
// "backend"; nothing may be registered under a reserved name.
func New[T any](what string, reserved ...string) *Registry[T] {
	return &Registry[T]{what: what, reserved: reserved, items: map[string]T{}}
}

// Register makes v available under name. It panics if the name is empty,
// reserved or taken, since that is a programmer's error at start-up.
func (r *Registry[T]) Register(name string, v T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.items[name]; taken || name == "" || slices.Contains(r.reserved, name) {
		panic(fmt.Sprintf("gopccl: %s name %q is empty, reserved or taken", r.what, name))
	}
	r.items[name] = v
}

// Replace is Register for a name that may be taken; undo brings back what was
// there. It is for tests and for programs that bring their own.
func (r *Registry[T]) Replace(name string, v T) (undo func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, taken := r.items[name]
	r.items[name] = v
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if taken {
			r.items[name] = before
		} else {
			delete(r.items, name)
		}
	}
}

// Lookup returns what is registered under name.
func (r *Registry[T]) Lookup(name string) (v T, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	v, ok = r.items[name]
	return v, ok
}

// Names returns the registered names in alphabetical order.
func (r *Registry[T]) Names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	names := make([]string, 0, len(r.items))
	for name := range r.items {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
