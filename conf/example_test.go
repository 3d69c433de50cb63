package conf_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
)

// trainer is a program that reads its YAML file, as `gopccl` does. GOPCCL_*
// variables and its own flags would come on top.
func trainer(ctx context.Context, file string, flags ...conf.Flag) error {
	c, err := conf.Load([]string{file}, os.Environ(), flags)
	if err != nil {
		return err // it names the key, and where it stands
	}
	comm, err := core.Connect(ctx, c.PeerOptions(nil))
	if err != nil {
		return err
	}
	defer comm.Close()
	fmt.Println("group", c.Peer.Group, "rank", comm.Attributes().Rank)

	gradient := []float32{1, 2, 3}
	r := core.ReduceOf(gradient, gradient, core.Avg)
	r.Quantize = c.Quantization()
	fmt.Println("quantization", r.Quantize.Algorithm, r.Quantize.Type)
	// comm.AllReduceMultipleWithRetry(ctx, []core.Reduce{r}, 1) and so on
	return nil
}

const file = `
peer:
  group: 3
data:
  frame_bytes: 256KiB
quantize:
  algorithm: minmax
  type: uint8
`

// A trainer that reads its configuration, and the master that it finds there.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "gopccl")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "gopccl.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		log.Fatal(err)
	}
	c, err := conf.Load(nil, nil, []conf.Flag{{Name: "--listen", Key: "master.listen", Value: "127.0.0.1:0"}})
	if err != nil {
		log.Fatal(err)
	}
	master, err := core.NewMaster(c.MasterOptions(nil))
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- master.Run(ctx) }()

	at := conf.Flag{Name: "--master", Key: "peer.master", Value: master.Addr().String()}
	if err := trainer(ctx, path, at); err != nil {
		log.Fatal(err)
	}
	master.Close()
	fmt.Println(<-ended)
	// Output:
	// group 3 rank 0
	// quantization minmax uint8
	// <nil>
}
