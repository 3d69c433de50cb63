package fsm

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// A view that differs in anything is another one: what is not seen to have changed is not shown.
func TestSameView(t *testing.T) {
	other := map[reflect.Type]any{
		reflect.TypeFor[bool](): true, reflect.TypeFor[int](): 1, reflect.TypeFor[uint64](): uint64(1), reflect.TypeFor[string](): "x",
		reflect.TypeFor[time.Duration](): time.Second, reflect.TypeFor[wire.UUID](): wire.UUID{1}, reflect.TypeFor[[]wire.UUID](): []wire.UUID{{1}},
		reflect.TypeFor[wire.Direct](): wire.Direct{Schemes: "x"}, reflect.TypeFor[*plan.Options](): new(plan.Options),
	}
	require.True(t, new(View).Same(new(View)))
	require.True(t, (&View{Ring: uids(1, 2)}).Same(&View{Ring: uids(1, 2)}))
	require.False(t, (&View{Ring: uids(1, 2)}).Same(&View{Ring: uids(2, 1)}))
	for _, f := range reflect.VisibleFields(reflect.TypeFor[View]()) {
		if f.Anonymous {
			continue
		}
		var v View
		require.Contains(t, other, f.Type, f.Name)
		reflect.ValueOf(&v).Elem().FieldByIndex(f.Index).Set(reflect.ValueOf(other[f.Type]))
		require.False(t, v.Same(new(View)), f.Name)
		require.True(t, v.Same(&v))
	}
}
