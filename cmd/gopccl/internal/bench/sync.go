package bench

import (
	"bytes"
	"context"
	"fmt"

	"github.com/gopccl/gopccl/core"
)

// Transfer is one job: synchronise a shared state of Bytes bytes. If Outdated,
// the last process has other content each time and gets it from the others;
// else all agree, and only hashes travel.
type Transfer struct {
	Bytes    int
	Outdated bool
	Rounds   int // timed, after one that warms up and is verified
}

func (j Transfer) run(ctx context.Context, comm *core.Communicator, index int) (Report, error) {
	var rep Report
	outdated := j.Outdated && index == comm.Attributes().LocalWorldSize-1
	data, want := make([]byte, j.Bytes), make([]byte, j.Bytes)
	state := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("state", data)}}
	for round := range j.Rounds + 1 {
		fillState(want, round)
		copy(data, want)
		if outdated {
			fillState(data, round+1000)
		}
		state.Revision = uint64(round)
		if err := barrier(ctx, comm); err != nil {
			return rep, err
		}
		c := startClock()
		info, err := comm.SyncSharedState(ctx, state, core.SyncOptions{})
		if err != nil {
			return rep, err
		}
		if round > 0 {
			c.stop(&rep)
		}
		rep.Tx, rep.Rx = info.TxBytes, info.RxBytes
		if !bytes.Equal(data, want) {
			return rep, fmt.Errorf("wrong content after synchronisation (outdated: %v)", outdated)
		}
	}
	return rep, nil
}

func fillState(b []byte, seed int) {
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
}

// SyncResult is one line of `gopccl bench sync`. Seconds are those of the
// slowest peer in each round; rx_bytes is what the outdated peer received.
type SyncResult struct {
	World    int     `json:"world"`
	Bytes    int     `json:"bytes"`
	Outdated int     `json:"outdated"`
	Rounds   int     `json:"rounds"`
	Median   float64 `json:"median_s"`
	Min      float64 `json:"min_s"`
	Max      float64 `json:"max_s"`
	Rate     float64 `json:"gb_per_s"` // bytes of the state by the median
	Rx       uint64  `json:"rx_bytes"`
	Tx       uint64  `json:"tx_bytes"`
}

// Sync measures one job in a world of processes.
func (w World) Sync(ctx context.Context, j Transfer) (res SyncResult, err error) {
	err = w.run(ctx, Order{Sync: []Transfer{j}}, func(_ int, reports []Report) error {
		t := combine(reports)
		res = SyncResult{
			World: w.Size, Bytes: j.Bytes, Rounds: j.Rounds, Median: t.median, Min: t.min, Max: t.max,
			Rate: float64(j.Bytes) / 1e9 / t.median, Rx: t.rx, Tx: t.tx,
		}
		if j.Outdated {
			res.Outdated = 1
		}
		return nil
	})
	return res, err
}
