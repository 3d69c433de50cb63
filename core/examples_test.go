package core_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// each runs f for n connected peers at once, as if each were a process.
func each(n int, f func(ctx context.Context, i int, comm *core.Communicator)) {
	ctx := context.Background()
	master, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	var running, peers sync.WaitGroup
	running.Go(func() {
		if err := master.Run(ctx); err != nil {
			log.Print(err)
		}
	})
	for i := range n {
		peers.Go(func() {
			comm, err := core.Connect(ctx, core.Options{Master: master.Addr().String(), PortBase: -1})
			if err != nil {
				log.Fatal(err)
			}
			defer comm.Close()
			if err := comm.WaitForPeers(ctx, n); err != nil {
				log.Fatal(err)
			}
			f(ctx, i, comm)
		})
	}
	peers.Wait()
	master.Close()
	running.Wait()
}

func ExampleConnect() {
	ctx := context.Background()
	master, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- master.Run(ctx) }()

	comm, err := core.Connect(ctx, core.Options{Master: master.Addr().String(), PortBase: -1})
	if err != nil {
		log.Fatal(err)
	}
	at := comm.Attributes()
	fmt.Printf("rank %d of %d, only gopccl peers: %v\n", at.Rank, at.LocalWorldSize, at.Native)
	comm.Close()

	_, err = core.Connect(ctx, core.Options{Master: "no port"})
	fmt.Println(errors.Is(err, errs.InvalidArgument))
	master.Close()
	fmt.Println(<-ended)
	// Output:
	// rank 0 of 1, only gopccl peers: true
	// true
	// <nil>
}

func ExampleCommunicator_AllReduce() {
	sums := make([][]float64, 2)
	each(2, func(ctx context.Context, i int, comm *core.Communicator) {
		mine := []float64{1, 2, float64(i)}
		sums[i] = make([]float64, 3)
		info, err := comm.AllReduce(ctx, core.ReduceOf(sums[i], mine, core.Sum))
		if err != nil {
			log.Fatal(err)
		}
		if i == 0 {
			fmt.Println(info.WorldSize, "peers")
		}
	})
	fmt.Println(sums[0], sums[1])
	// Output:
	// 2 peers
	// [2 4 1] [2 4 1]
}

// Values travel as bytes, and every peer has the same result.
func ExampleCommunicator_AllReduce_quantized() {
	results := make([][]float32, 2)
	each(2, func(ctx context.Context, i int, comm *core.Communicator) {
		results[i] = []float32{0, 127.5, 255, float32(i)}
		r := core.ReduceOf(results[i], results[i], core.Avg) // in place
		r.Quantize = core.Quantize{Algorithm: "minmax", Type: dtype.Uint8}
		if _, err := comm.AllReduce(ctx, r); err != nil {
			log.Fatal(err)
		}
	})
	same := true
	for k := range results[0] {
		same = same && results[0][k] == results[1][k]
	}
	fmt.Println("the same bits:", same)
	// Output:
	// the same bits: true
}

// Several operations are in flight at once, and complete in any order.
func ExampleCommunicator_AllReduceAsync() {
	layers := [2][3][]float32{}
	each(2, func(ctx context.Context, i int, comm *core.Communicator) {
		var flying []*core.Handle
		for k := range layers[i] {
			layers[i][k] = []float32{float32(k), 1}
			r := core.ReduceOf(layers[i][k], layers[i][k], core.Sum)
			r.Tag = uint64(k) // distinct tags
			h, err := comm.AllReduceAsync(ctx, r)
			if err != nil {
				log.Fatal(err)
			}
			flying = append(flying, h)
		}
		for _, h := range flying { // in the same order on every peer
			if _, err := h.Wait(ctx); err != nil {
				log.Fatal(err)
			}
		}
	})
	fmt.Println(layers[0], layers[1])
	// Output:
	// [[0 2] [2 2] [4 2]] [[0 2] [2 2] [4 2]]
}

// Three peers begin, one leaves, and the others go on without it.
func ExampleCommunicator_AllReduceMultipleWithRetry() {
	results := make([][]float32, 3)
	each(3, func(ctx context.Context, i int, comm *core.Communicator) {
		if i == 2 {
			comm.Close()
			return
		}
		results[i] = []float32{1, float32(i)}
		rs := []core.Reduce{core.ReduceOf(results[i], results[i], core.Sum)}
		info, err := comm.AllReduceMultipleWithRetry(ctx, rs, 1)
		if err != nil {
			log.Fatal(err)
		}
		if i == 0 {
			fmt.Println("done:", info.Done)
		}
	})
	fmt.Println(results[0], results[1])
	// Output:
	// done: [true]
	// [2 1] [2 1]
}

// A peer that has no state gets that of the others.
func ExampleCommunicator_SyncSharedState() {
	each(3, func(ctx context.Context, i int, comm *core.Communicator) {
		weights := []float32{1, 2, 3}
		if i == 2 {
			weights = []float32{0, 0, 0}
		}
		state := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("weights", weights)}}
		info, err := comm.SyncSharedState(ctx, state, core.SyncOptions{})
		if err != nil {
			log.Fatal(err)
		}
		if i == 2 {
			fmt.Println(info.Outdated, info.RxBytes, weights)
		}
	})
	// Output:
	// true 12 [1 2 3]
}

// A program embeds a master, hears of what happens, and looks at its peers.
func ExampleNewMaster() {
	ctx, stop := context.WithCancel(context.Background())
	facts := make(chan core.Fact, 100)
	master, err := core.NewMaster(core.MasterOptions{
		Listen: "127.0.0.1:0", // port 0: a free one, which Addr tells
		OnFact: func(f core.Fact) { facts <- f },
	})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- master.Run(ctx) }()

	comm, err := core.Connect(ctx, core.Options{Master: master.Addr().String(), Group: 7, PortBase: -1})
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range master.Status().Groups {
		fmt.Printf("group %d: %d member\n", g.ID, g.Members)
	}
	comm.Close()
	for f := range facts {
		if f.Kind == "left" || f.Kind == "dropped" {
			fmt.Println("a peer of group", f.Group, "is gone")
			break
		}
	}
	stop()
	fmt.Println(<-ended)
	master.Close()
	// Output:
	// group 7: 1 member
	// a peer of group 7 is gone
	// <nil>
}

func ExampleSharedState_SaveCheckpoint() {
	dir, done := scratch()
	defer done()
	weights := []float32{1, 2, 3}
	state := &core.SharedState{Revision: 41, Tensors: []core.Tensor{core.TensorOf("weights", weights)}}
	path, _, err := state.SaveCheckpoint(dir, map[string]string{"epoch": "4"}, 3)
	if err != nil {
		log.Fatal(err)
	}

	state.Revision, weights[0] = 0, 9 // another process
	meta, err := state.LoadCheckpoint(path)
	fmt.Println(state.Revision, weights, meta["epoch"], err)
	// Output:
	// 41 [1 2 3] 4 <nil>
}
