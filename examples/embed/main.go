// Command embed is the smallest complete trainer: it keeps a vector equal on all peers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

func main() {
	master := flag.String("master", "127.0.0.1:48148", "HOST:PORT of the master")
	flag.Parse()
	ctx := context.Background()
	comm, err := core.Connect(ctx, core.Options{Master: *master}) // until the others let us in
	check(err)
	defer comm.Close()

	weights, gradient := make([]float32, 1000), make([]float32, 1000)
	state := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("weights", weights)}}
	for state.Revision < 100 {
		pending, err := comm.PeersPending(ctx)
		check(err)
		if pending { // let in peers that wait
			check(comm.UpdateTopology(ctx))
		}
		check(comm.WaitForPeers(ctx, 2))                              // too few to train
		_, err = comm.SyncSharedState(ctx, state, core.SyncOptions{}) // a newcomer gets the state
		check(err)
		for i := range gradient {
			gradient[i] = weights[i] - float32(i%10) // your model
		}
		reduce := core.ReduceOf(gradient, gradient, core.Avg) // in place; repeated if a peer dies
		_, err = comm.AllReduceMultipleWithRetry(ctx, []core.Reduce{reduce}, 1)
		if !errors.Is(err, errs.TooFewPeers) { // the last peer continues alone
			check(err)
		}
		for i := range weights {
			weights[i] -= float32(0.1 * gradient[i]) // rounded: the same bits on every processor
		}
		state.Revision++
	}
	fmt.Printf("revision %d, state %016x\n", state.Revision, core.StateHash(state))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
