// Command diloco trains the charlm model on Newton's "Opticks" with any number of
// peers: inner AdamW, outer Nesterov momentum on averaged pseudo-gradients.
//
// Start a master and at least two peers, in any order; more may join or leave
// at any time:
//
//	gopccl master --listen 127.0.0.1:48148
//	go run ./examples/diloco -master 127.0.0.1:48148 -checkpoint /var/lib/run/peer1
//	go run ./examples/diloco -master 127.0.0.1:48148 -checkpoint /var/lib/run/peer2
//
// -outer-device 0 takes the outer steps on a CUDA device, with the
// bits of the processor: peers may differ in it.
//
// The trainer itself is trainers.DiLoCo.
package main

import "github.com/gopccl/gopccl/examples/trainers"

func main() {
	o := trainers.DefaultOptions()
	trainers.Main("diloco", trainers.DiLoCo, o)
}
