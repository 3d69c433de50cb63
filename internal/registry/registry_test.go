package registry

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRegistry(t *testing.T) {
	r := New[int]("thing", "auto", "none")
	require.Empty(t, r.Names())
	r.Register("b", 2)
	r.Register("a", 1)
	require.Equal(t, []string{"a", "b"}, r.Names())
	v, ok := r.Lookup("b")
	require.True(t, ok)
	require.Equal(t, 2, v)
	_, ok = r.Lookup("c")
	require.False(t, ok)
	for _, name := range []string{"", "auto", "none", "a"} {
		require.PanicsWithValue(t, `gopccl: thing name "`+name+`" is empty, reserved or taken`, func() { r.Register(name, 3) })
	}

	undo := r.Replace("a", 5)
	v, _ = r.Lookup("a")
	require.Equal(t, 5, v)
	undo()
	v, _ = r.Lookup("a")
	require.Equal(t, 1, v)
	undo = r.Replace("c", 7)
	require.Equal(t, []string{"a", "b", "c"}, r.Names())
	undo()
	require.Equal(t, []string{"a", "b"}, r.Names())
}
