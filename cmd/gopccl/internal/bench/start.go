package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/secure"
)

// StartResult is one line of `gopccl bench start`: medians of the time, in seconds, from
// the first call of a world's peers to the end of their first all-reduce.
type StartResult struct {
	World  int     `json:"world"`
	Rounds int     `json:"rounds"`
	Plain  float64 `json:"plain"`
	TLS    float64 `json:"tls"`
	// More is the median of how much longer a start in TLS took than the one in
	// plaintext beside it.
	More float64 `json:"more"`
}

// Start starts worlds of so many peers in this process, in plaintext and in TLS by turns,
// so many of each after one that warms up.
func Start(ctx context.Context, world, rounds int) (StartResult, error) {
	r := StartResult{World: world, Rounds: rounds}
	made, err := newCredentials()
	if err != nil {
		return r, err
	}
	master, err := made.master()
	if err != nil {
		return r, err
	}
	peers := make([]*secure.Credential, world)
	for i := range peers {
		text, err := made.peer(i)
		if err != nil {
			return r, err
		}
		if peers[i], err = secure.ParseCredential(text); err != nil {
			return r, err
		}
	}
	var plain, tls, more []float64
	for k := range 1 + rounds {
		var took [2]float64
		for turn := range took {
			i := (k + turn) % 2 // who follows whom changes
			if i == 0 {
				took[i], err = startOnce(ctx, nil, make([]*secure.Credential, world))
			} else {
				took[i], err = startOnce(ctx, master, peers)
			}
			if err != nil {
				return r, err
			}
		}
		if k > 0 {
			plain, tls, more = append(plain, took[0]), append(tls, took[1]), append(more, took[1]-took[0])
		}
	}
	r.Plain, r.TLS, r.More = median(plain), median(tls), median(more)
	return r, nil
}

// startOnce starts one world, whose master runs before the clock does. A credential that
// is nil is plaintext.
func startOnce(ctx context.Context, head *secure.Credential, peers []*secure.Credential) (seconds float64, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0", Solver: "none", Security: core.SecurityOptions{Credential: head}})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	go m.Run(ctx)
	comms, fails := make([]*core.Communicator, len(peers)), make([]error, len(peers))
	defer func() {
		for _, c := range comms {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
	}()
	var wg sync.WaitGroup
	began := time.Now()
	for i, credential := range peers {
		wg.Go(func() {
			comms[i], fails[i] = core.Connect(ctx, core.Options{
				Master: m.Addr().String(), ListenHost: "127.0.0.1", PortBase: -1,
				Security: core.SecurityOptions{Credential: credential},
			})
			for fails[i] == nil && comms[i].Attributes().LocalWorldSize < len(peers) {
				fails[i] = comms[i].UpdateTopology(ctx)
			}
			if fails[i] == nil {
				fails[i] = barrier(ctx, comms[i])
			}
			if fails[i] != nil {
				stop() // the others would wait for it
			}
		})
	}
	wg.Wait()
	return time.Since(began).Seconds(), errors.Join(fails...)
}
