package bounds

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type options struct {
	Pool    int
	Memory  int64
	Timeout time.Duration
}

func (o *options) bounds() []Bound {
	return []Bound{
		Int("Pool", &o.Pool, 1, 8),
		Int64("Memory", &o.Memory, 10, 1<<40),
		Time("Timeout", &o.Timeout, time.Second, time.Hour).OrOff(),
	}
}

func TestBounds(t *testing.T) {
	for _, good := range []options{{}, {1, 10, time.Second}, {8, 1 << 40, time.Hour}, {Timeout: -5}} {
		var e Errors
		e.Check(good.bounds())
		require.NoError(t, e.Err(), "%+v", good)
	}
	o := options{9, 9, time.Hour + 1}
	var e Errors
	e.Check(o.bounds())
	e.Break("%v exceeds %v %q", Field("Pool"), Field("Memory"), "x")
	require.Len(t, e, 4)
	require.EqualError(t, e.Err(), `Pool 9 is not from 1 to 8; Memory 9 is not from 10 to 1099511627776; Timeout 1h0m0.000000001s is not from 1s to 1h0m0s; Pool exceeds Memory "x"`)
	require.Equal(t, Field("Timeout"), e[2].Field())
	lower := func(f Field) string { return strings.ToLower(string(f)) }
	require.Equal(t, "memory ? is not from ? to ?", e[1].In(lower, func(Amount) string { return "?" }))
	require.Empty(t, Broken{Format: "nothing"}.Field())

	o = options{-1, -1, 0}
	e = nil
	e.Check(o.bounds())
	require.Len(t, e, 2, "what is not switched off by a negative value refuses it")
	o.bounds()[2].Set(int64(time.Minute))
	o.bounds()[0].Set(3)
	o.bounds()[1].Set(4)
	require.Equal(t, options{3, 4, time.Minute}, o)
}
