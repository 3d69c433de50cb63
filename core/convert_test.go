package core

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// fill gives every field of a struct a value that is not zero.
func fill(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(t, v.Field(i))
			}
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Func:
		v.Set(reflect.MakeFunc(v.Type(), func([]reflect.Value) []reflect.Value { return nil }))
	case reflect.Interface:
	default:
		t.Fatalf("a field of kind %v", v.Kind())
	}
}

// What users set reaches the engine: no field is forgotten on the way.
func TestConversionsForgetNothing(t *testing.T) {
	var r Reduce
	var m MasterOptions
	var p Options
	var o SyncOptions
	var s SharedState
	var call Collective
	for _, v := range []any{&r, &m, &p, &o, &s, &call} {
		fill(t, reflect.ValueOf(v).Elem())
	}
	s.MarkTorn("x")
	for _, c := range []struct{ from, to any }{{r, r.inner()}, {m, m.inner()}, {p, p.inner()}, {o, o.inner()}, {s, *s.inner()}, {call, call.inner()}} {
		from, to := reflect.ValueOf(c.from), reflect.ValueOf(c.to)
		for i := range to.NumField() {
			f := to.Type().Field(i)
			if !f.IsExported() || f.Type.Kind() == reflect.Interface {
				continue
			}
			require.False(t, to.Field(i).IsZero(), "%v.%s", to.Type(), f.Name)
			if in := from.FieldByName(f.Name); in.IsValid() && in.Comparable() && f.Type.Kind() != reflect.Func && in.Type() == f.Type {
				require.Equal(t, in.Interface(), to.Field(i).Interface(), "%v.%s", to.Type(), f.Name)
			}
		}
	}
	require.Nil(t, MasterOptions{}.inner().OnFact, "no listener becomes none")
	require.Equal(t, MasterOptions{RingSolver: m.RingSolver}.inner().RingSolver, m.RingSolver)
}

// A refused call leaves a state as it was; one that succeeded gives it a revision.
func TestAdoptStates(t *testing.T) {
	s := SharedState{Revision: 3}
	s.MarkTorn("a", "b", "a")
	require.Equal(t, []string{"a", "b"}, s.Torn())
	in := s.inner()
	s.adopt(in)
	require.Equal(t, []string{"a", "b"}, s.Torn())
	in.Revision, in.Torn = 4, nil
	s.adopt(in)
	require.Equal(t, uint64(4), s.Revision)
	require.Empty(t, s.Torn())
	require.Empty(t, (*SharedState)(nil).inner().Tensors)
}
