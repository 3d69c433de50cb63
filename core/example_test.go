package core_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core"
)

// train is what every peer of a run does, each in a process of its own: it
// brings a vector near to 3 together with the others.
func train(ctx context.Context, master string, world int) (uint64, float32, error) {
	comm, err := core.Connect(ctx, core.Options{Master: master, PortBase: -1})
	if err != nil {
		return 0, 0, err
	}
	defer comm.Close()
	weights, gradient := make([]float32, 1000), make([]float32, 1000)
	state := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("weights", weights)}}
	for state.Revision < 5 {
		if err := comm.WaitForPeers(ctx, world); err != nil { // lets in those who wait
			return 0, 0, err
		}
		if _, err := comm.SyncSharedState(ctx, state, core.SyncOptions{}); err != nil {
			return 0, 0, err
		}
		for i := range gradient {
			gradient[i] = weights[i] - 3 // your model
		}
		r := core.ReduceOf(gradient, gradient, core.Avg) // in place
		if _, err := comm.AllReduceMultipleWithRetry(ctx, []core.Reduce{r}, 1); err != nil {
			return 0, 0, err
		}
		for i := range weights {
			weights[i] -= 0.5 * gradient[i]
		}
		state.Revision++
	}
	return state.Revision, weights[0], nil
}

// Two peers train, and a master coordinates them. All of it is in one process
// here; usually the master is `gopccl master`, and each peer a program of its own.
func Example() {
	ctx := context.Background()
	master, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"}) // a free port
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := master.Run(ctx); err != nil {
			log.Print(err)
		}
	})

	var peers sync.WaitGroup
	for range 2 {
		peers.Go(func() {
			revision, weight, err := train(ctx, master.Addr().String(), 2)
			fmt.Println(revision, weight, err)
		})
	}
	peers.Wait()
	master.Close()
	running.Wait()
	// Output:
	// 5 2.90625 <nil>
	// 5 2.90625 <nil>
}
