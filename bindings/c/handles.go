//go:build cgo

package main

import (
	"context"
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
	table sync.Map // uintptr to *comm or *master, or leaving ones
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
	errForeign = errors.New("the handle was destroyed, or is not one that this function takes")
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

// leaving is what a number stands for while its object, a T, ends.
type leaving[T any] struct{ end *task[struct{}] }

// retire ends what n stands for, once; no other function knows n from then on.
// A caller in the meantime waits for the same end. If the caller gives up the
// waiting, the object ends without it, and the call can be made again.
func retire[T any](c call, n uintptr, end func(*T) error) error {
	for {
		v, _ := objects.table.Load(n)
		switch v := v.(type) {
		case *T:
			l := &leaving[T]{newTask[struct{}]()}
			if !objects.table.CompareAndSwap(n, v, l) {
				continue // another thread was faster
			}
			go l.end.run(c, func() (struct{}, error) {
				defer objects.table.Delete(n)
				return struct{}{}, end(v)
			})
			return l.wait(c)
		case *leaving[T]:
			return v.wait(c)
		default:
			return c.bad("%w", whyNot(n))
		}
	}
}

func (l *leaving[T]) wait(c call) error {
	if !until(context.Background(), l.end.done) {
		return interrupted(c)
	}
	return l.end.err
}
