// Command ddp trains the charlm model on Newton's "Opticks" with any number of
// peers: plain data parallelism with AdamW.
//
// Start a master and at least two peers, in any order; more may join or leave
// at any time:
//
//	gopccl master --listen 127.0.0.1:48148
//	go run ./examples/ddp -master 127.0.0.1:48148 -checkpoint /var/lib/run/peer1
//	go run ./examples/ddp -master 127.0.0.1:48148 -checkpoint /var/lib/run/peer2
//
// The trainer itself is trainers.DDP.
package main

import "github.com/gopccl/gopccl/examples/trainers"

func main() {
	o := trainers.DefaultOptions()
	o.Steps, o.LossEvery, o.CheckpointEvery = 2000, 25, 50
	trainers.Main("ddp", trainers.DDP, o)
}
