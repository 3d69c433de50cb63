//go:build cgo

package main

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
)

// handles maps the numbers that C holds to what they stand for. A number is
// used once, so that a destroyed handle never names something new, nor one of
// the process that this one was forked from.
type handles struct {
	last  atomic.Uintptr
	table sync.Map // uintptr to *comm or *master
}

// step keeps the numbers apart from small constants and from each other.
const step = 1 << 8

var objects handles

func init() { objects.last.Store(uintptr(uint64(os.Getpid()) << 32)) }

func (h *handles) add(v any) uintptr {
	n := h.last.Add(step)
	h.table.Store(n, v)
	return n
}

var (
	errNull    = errors.New("the handle is NULL")
	errForeign = errors.New("the handle was destroyed, or is none of this function's")
)

func whyNot(n uintptr) error {
	if n == 0 {
		return errNull
	}
	return errForeign
}

// lookup returns what n stands for.
func lookup[T any](c call, n uintptr) (*T, error) {
	if v, ok := objects.table.Load(n); ok {
		if t, ok := v.(*T); ok {
			return t, nil
		}
	}
	return nil, c.bad("%w", whyNot(n))
}

// remove returns what n stood for.
func remove[T any](c call, n uintptr) (*T, error) {
	t, err := lookup[T](c, n)
	if err != nil {
		return nil, err
	}
	if _, mine := objects.table.LoadAndDelete(n); !mine { // another thread was faster
		return nil, c.bad("%w", errForeign)
	}
	return t, nil
}
