//go:build cgo

package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// The library knows torn memory by its address and what was left there: a
// program that was written for PCCL reloads its tensors and says nothing.
func TestTornMemory(t *testing.T) {
	m := tornTable{left: map[uint64]tornTensor{}}
	w, v := []float32{1, 2, 3}, []float32{4}
	fresh := func() *core.SharedState {
		return &core.SharedState{Tensors: []core.Tensor{core.TensorOf("w", w), core.TensorOf("v", v), core.TensorOf("none", []float32{})}}
	}
	marked := func() []string {
		st := fresh()
		m.mark(st)
		return st.Torn()
	}
	lost := errors.New("lost")
	st := fresh()
	st.MarkTorn("w", "none")
	m.note(st, lost)
	require.Equal(t, []string{"w"}, marked(), "another object of the same memory")
	m.note(fresh(), errs.New(errs.Busy, "sync", nil))
	require.Equal(t, []string{"w"}, marked(), "a refused call changes nothing")
	shorter := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("w", w[:2])}}
	m.mark(shorter)
	require.Empty(t, shorter.Torn(), "it is another tensor")

	w[2] = 9 // a second transfer fails
	st.MarkTorn("v")
	m.note(st, lost)
	require.Equal(t, []string{"w", "v"}, marked())
	w[0] = 7 // the program loads a checkpoint
	require.Equal(t, []string{"v"}, marked())
	m.note(fresh(), nil)
	require.Empty(t, m.left, "a synchronisation that succeeds leaves nothing")

	// What the program has marked stays so, whatever is in it.
	m.set(&fresh().Tensors[1], tornTensor{bytes: 4, marked: true})
	v[0] = 5
	st = fresh()
	m.mark(st)
	require.Equal(t, []string{"v"}, st.Torn())
	m.note(st, lost)
	v[0] = 6
	require.Equal(t, []string{"v"}, marked())
}
