package link

import (
	"testing"
	"time"

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
			v.counts[peer(byte(1+i))] = &count{Count: pace.NewCount(1), seen: true, span: pace.Span{Arrived: uint64(10 * (i + 1)), Waiting: waits}}
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

// Each peer is told whether more connections to one of the others are being tried.
func TestOthersThatTry(t *testing.T) {
	tries, rests, other := pace.NewCount(1), pace.NewCount(1), pace.NewCount(1)
	for at := time.Duration(0); !tries.Trying(); at += sampling {
		require.Less(t, at, time.Minute)
		tries.Step(at, pace.Span{RTT: 50 * time.Millisecond, Base: 50 * time.Millisecond, Segment: 1448, Used: 1, Waiting: true, Arrived: 10_000, Sent: 10_000})
	}
	v := &survey{counts: map[wire.UUID]*count{{1}: {Count: tries, seen: true}, {2}: {Count: rests, seen: true}}}
	tell := func() []bool {
		v.compare()
		return []bool{v.counts[wire.UUID{1}].span.Others.Trying, v.counts[wire.UUID{2}].span.Others.Trying}
	}
	require.Equal(t, []bool{false, true}, tell())
	v.counts[wire.UUID{3}] = &count{Count: tries, seen: true}
	require.Equal(t, []bool{true, true}, tell())
	v.counts[wire.UUID{1}].Count, v.counts[wire.UUID{3}].Count = other, other
	require.Equal(t, []bool{false, false}, tell())
}
