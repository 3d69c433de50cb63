package link

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/wire"
)

// Each peer is told what the others have shown, and whether all of these wait: of those with data in this tick.
func TestOthersOfATick(t *testing.T) {
	peer := func(i byte) wire.UUID { return wire.UUID{7: i} }
	tick := func(waiting ...bool) (told []pace.Others) {
		v := &survey{counts: map[wire.UUID]*count{peer(9): {span: pace.Span{Arrived: 1000}}}} // not seen
		for i, waits := range waiting {
			v.counts[peer(byte(1+i))] = &count{seen: true, span: pace.Span{Arrived: uint64(10 * (i + 1)), Waiting: waits}}
		}
		v.compare()
		for i := range waiting {
			told = append(told, v.counts[peer(byte(1+i))].span.Others)
		}
		return told
	}
	require.Equal(t, []pace.Others{
		{Arrived: 50, Peers: 2, Who: 2 ^ 3, Waiting: true}, {Arrived: 40, Peers: 2, Who: 1 ^ 3, Waiting: true}, {Arrived: 30, Peers: 2, Who: 1 ^ 2, Waiting: true},
	}, tick(true, true, true))
	waits := func(told []pace.Others) (is []bool) {
		for _, o := range told {
			is = append(is, o.Waiting)
		}
		return is
	}
	require.Equal(t, []bool{true, false, false}, waits(tick(false, true, true)))
	require.Equal(t, []bool{false, false, false}, waits(tick(false, false, true)))
	require.Zero(t, tick(true)[0].Peers)
}
