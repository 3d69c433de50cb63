package dtype

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Control spec, section 3: the numbers on the wire and in the C ABI.
func TestTypeNumbers(t *testing.T) {
	wire := []string{
		"uint8", "int8", "uint16", "uint32", "int16", "int32",
		"uint64", "int64", "float16", "bfloat16", "float32", "float64",
	}
	abi := []string{
		"uint8", "int8", "int16", "uint16", "uint32", "int32",
		"uint64", "int64", "float16", "bfloat16", "float32", "float64",
	}
	for i, name := range wire {
		typ := Type(i)
		require.Equal(t, name, typ.String())
		require.Equal(t, name, abi[typ.ABI()])
		back, ok := TypeFromABI(typ.ABI())
		require.True(t, ok)
		require.Equal(t, typ, back)
		parsed, err := ParseType(name)
		require.NoError(t, err)
		require.Equal(t, typ, parsed)
	}
	require.False(t, Type(12).Valid())
	require.Zero(t, Type(12).Size())
	require.Equal(t, "dtype(12)", Type(12).String())
	_, ok := TypeFromABI(12)
	require.False(t, ok)
	_, err := ParseType("complex64")
	require.ErrorContains(t, err, "complex64")
}

// Control spec, section 3: the numbers on the wire and in the C ABI.
func TestOpNumbers(t *testing.T) {
	for i, name := range []string{"sum", "avg", "prod", "max", "min"} {
		op, ok := OpFromABI(uint8(i))
		require.True(t, ok)
		require.Equal(t, Op(i+1), op)
		require.True(t, op.Valid())
		require.Equal(t, name, op.String())
		n, ok := op.ABI()
		require.True(t, ok)
		require.Equal(t, uint8(i), n)
		parsed, err := ParseOp(name)
		require.NoError(t, err)
		require.Equal(t, op, parsed)
	}
	for _, n := range []uint8{5, 6, 254, 255} {
		_, ok := OpFromABI(n)
		require.False(t, ok, n)
	}
	require.False(t, Set.Valid())
	_, ok := Set.ABI()
	require.False(t, ok)
	_, err := ParseOp("set")
	require.Error(t, err)
	require.Equal(t, "op(6)", Op(6).String())
}

func checkElement[T Element](t *testing.T, want Type) {
	t.Helper()
	require.Equal(t, want, TypeOf[T]())
	s := []T{1, 2, 3}
	b := AsBytes(s)
	require.Len(t, b, 3*want.Size())
	require.Same(t, (*byte)(unsafe.Pointer(&s[0])), &b[0])
	require.True(t, Aligned(b, want.Size()))
	v := View[T](b)
	require.Equal(t, s, v)
	v[1] = 9
	require.Equal(t, T(9), s[1], "a view shares memory")
	if want.Size() > 1 {
		require.Len(t, View[T](b[:len(b)-1]), 2)
		require.False(t, Aligned(b[1:], want.Size()))
	}
	require.Nil(t, AsBytes([]T{}))
	require.Nil(t, View[T](nil))
}

func TestElementsAndViews(t *testing.T) {
	type named float32
	checkElement[uint8](t, Uint8)
	checkElement[int8](t, Int8)
	checkElement[uint16](t, Uint16)
	checkElement[int16](t, Int16)
	checkElement[uint32](t, Uint32)
	checkElement[int32](t, Int32)
	checkElement[uint64](t, Uint64)
	checkElement[int64](t, Int64)
	checkElement[float32](t, Float32)
	checkElement[float64](t, Float64)
	checkElement[named](t, Float32)
	require.True(t, Aligned(nil, 8))
}

func TestTypeProperties(t *testing.T) {
	sizes := []int{1, 1, 2, 4, 2, 4, 8, 8, 2, 2, 4, 8}
	for i := range NumTypes {
		typ := Type(i)
		require.Equal(t, sizes[i], typ.Size())
		require.Equal(t, i >= 8, typ.IsFloat())
		require.Equal(t, typ == Int8 || typ == Int16 || typ == Int32 || typ == Int64, typ.IsSigned())
	}
}

// Every table has an entry for every type: lengths are checked by the compiler,
// entries that were left empty here.
func TestTablesAreComplete(t *testing.T) {
	for typ := range Type(NumTypes) {
		require.NotEmpty(t, typeNames[typ])
		require.NotZero(t, typeSizes[typ], "%v", typ)
		require.NotZero(t, typeClasses[typ], "%v", typ)
	}
	for op := range Op(NumOps) {
		require.NotEmpty(t, opNames[op])
	}
	require.PanicsWithValue(t, "somebody: nothing is there for dtype(12)", func() { Unhandled("somebody", Type(NumTypes)) })
}
